// What is behind a communicator: the connection, what it waits for, and the end of it.
#pragma once

#include <nccl.h>

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/transports/nccl/call.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/device/stream.hpp>

namespace muster::inline v0::detail {

/// What a rank says of itself before they connect.
struct nccl_card {
  int version = 0;
  char device[60] = {};  // its place on the bus
  std::uint64_t host = 0;
  ncclUniqueId id{};  // of rank 0
};

/// This rank's; the root draws the id.
[[nodiscard]] nccl_card make_card(bool root);
/// Throws configuration_error where two ranks have one device or versions differ.
void check_cards(std::span<const nccl_card> endpoints);

class nccl_state {
 public:
  /// Collective over the ranks of the endpoints. `ranks` may be null.
  nccl_state(std::span<const nccl_card> endpoints, int rank, std::shared_ptr<group_state> ranks, seconds timeout);
  nccl_state(const nccl_state&) = delete;
  nccl_state& operator=(const nccl_state&) = delete;
  ~nccl_state();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] seconds timeout() const noexcept { return timeout_; }
  [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
  [[nodiscard]] ncclComm_t comm() const noexcept { return comm_; }
  /// Throws the first cause of its end, or configuration_error on another device than its own.
  void enter();
  /// Puts calls on a stream, as one group where they are several; returns their number.
  std::uint64_t put_on(std::span<const nccl::device_call> calls, device_stream_ref stream, clock::time_point until);
  /// The mark behind them.
  void remember(const std::shared_ptr<const device_event>& signature);
  /// Looks for what NCCL, the device or the group has to say; throws the first cause once there is one.
  void look(const std::string& what);
  /// Ends it, for good: NCCL first lets go of the streams, and the group's ranks are told.
  void fail(std::exception_ptr cause) noexcept;
  [[noreturn]] void time_out(const std::string& what, std::uint64_t sequence);

 private:
  /// Until NCCL has taken what it was given.
  void settle(ncclResult_t answer, const std::string& what, clock::time_point until);
  void look_at_group();
  /// A broken connection names no rank: the group may know soon which one it was.
  void ask_group_for_names();
  void let_go() noexcept;

  ncclComm_t comm_ = nullptr;
  std::shared_ptr<group_state> ranks_;
  int rank_ = 0;
  int size_ = 1;
  int device_ = 0;
  seconds timeout_;
  std::uint64_t sequence_ = 0;
  std::vector<std::weak_ptr<const device_event>> under_way_;  // of works that a caller still holds
  std::exception_ptr failure_;
};

}  // namespace muster::inline v0::detail
