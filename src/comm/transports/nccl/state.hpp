// What is behind a communicator: the connection, what it waits for, and the end of it.
#pragma once

#include <nccl.h>

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/transports/nccl/communicator.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/device/stream.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Throws what an answer of NCCL's other than ncclSuccess means: peer_failure, naming no rank, for a connection that
/// broke; configuration_error for a call NCCL does not take; else muster::error. `comm` may be null.
void check_nccl(ncclResult_t answer, const std::string& what, ncclComm_t comm = nullptr);

class nccl_state {
 public:
  /// Collective over the ranks. Throws configuration_error where two ranks have one device or versions differ.
  nccl_state(group& ranks, seconds timeout);
  nccl_state(const nccl_state&) = delete;
  nccl_state& operator=(const nccl_state&) = delete;
  ~nccl_state();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] seconds timeout() const noexcept { return timeout_; }
  [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
  [[nodiscard]] bool connects(const group& ranks) const noexcept { return !failed() && ranks_ == ranks.state(); }
  [[nodiscard]] ncclComm_t comm() const noexcept { return comm_; }
  /// Throws the first cause of its end, or configuration_error on another device than its own.
  void enter();
  /// Puts calls on a stream, as one group where they are several; returns their number.
  std::uint64_t put_on(std::span<const nccl::device_call> calls, device_stream_ref stream, clock::time_point until);
  /// Looks for what NCCL, the device or the group has to say; throws the first cause once there is one.
  void look(const std::string& what);
  /// Ends it, for good: NCCL first lets go of the streams, and the group's ranks are told.
  void fail(std::exception_ptr cause) noexcept;
  [[noreturn]] void time_out(const std::string& what, std::uint64_t sequence);

 private:
  /// Until NCCL has taken what it was given.
  void settle(ncclResult_t answer, const std::string& what, clock::time_point until);
  [[nodiscard]] ncclResult_t present_answer() const noexcept;
  void fail_unless_good(ncclResult_t answer, const std::string& what);
  void look_at_group();
  /// A broken connection names no rank: the group may know soon which one it was.
  void ask_group_for_names();
  void let_go() noexcept;

  ncclComm_t comm_ = nullptr;
  std::shared_ptr<group_state> ranks_;
  int rank_;
  int size_;
  int device_;
  seconds timeout_;
  std::uint64_t sequence_ = 0;
  std::exception_ptr failure_;

  friend class nccl_operation;
  std::vector<const nccl_operation*> under_way_;              // those that a caller still holds
  std::shared_ptr<std::vector<device_event>> left_to_abort_;  // if ncclCommAbort has not returned
};

/// One collective under way. Its end waits for that of the collective, since the device may still write; an error then
/// stays in the communicator.
class nccl_operation {
 public:
  nccl_operation(std::shared_ptr<nccl_state> of, std::span<const nccl::device_call> calls, device_stream_ref stream);
  nccl_operation(const nccl_operation&) = delete;
  nccl_operation& operator=(const nccl_operation&) = delete;
  ~nccl_operation();

  bool test();
  void wait();
  [[nodiscard]] const device_event& mark() const noexcept { return mark_; }

 private:
  std::shared_ptr<nccl_state> state_;
  std::string what_;
  clock::time_point deadline_;
  std::uint64_t sequence_;
  device_event mark_;  // behind it in its stream
};

}}}  // namespace muster::v0::detail
