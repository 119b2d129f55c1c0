// The implementation of an NCCL communicator: its connection, its pending operations, and its end.
//
// States: connected; failed. The first failure is stored in `failure_`, aborts the group and NCCL's communicator, and
// is thrown by every later call. A communicator never leaves the failed state.
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

/// Throws the exception for a result other than ncclSuccess: peer_failure, without ranks, for a broken connection;
/// configuration_error for a call that NCCL refuses; otherwise muster::error. `comm` may be null.
void check_nccl(ncclResult_t code, const std::string& call_name, ncclComm_t comm = nullptr);

/// The state of a communicator, shared with its operations. Used by one thread at a time.
class nccl_state {
 public:
  /// Connects the ranks' devices. Collective. Throws configuration_error if two ranks use the same device or different
  /// versions of NCCL.
  nccl_state(group& ranks, seconds timeout);
  nccl_state(const nccl_state&) = delete;
  nccl_state& operator=(const nccl_state&) = delete;
  ~nccl_state();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] seconds timeout() const noexcept { return timeout_; }
  [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
  [[nodiscard]] bool connects(const group& ranks) const noexcept { return !failed() && group_ == ranks.state(); }
  [[nodiscard]] ncclComm_t comm() const noexcept { return comm_; }
  /// Checks the group before a call. Throws the failure of a failed communicator, or configuration_error if the current
  /// device is not the communicator's.
  void check_before_call();
  /// Starts calls on a stream, several calls as one NCCL group, and waits until NCCL has accepted them or until the
  /// deadline. Returns one sequence number for all of the calls.
  std::uint64_t start_calls(std::span<const nccl::device_call> calls, device_stream_ref stream,
                            clock::time_point deadline);
  /// Checks the group and NCCL for failures. Throws the first failure.
  void check(const std::string& call_name);
  /// Marks the communicator as failed for good: aborts the group, and then NCCL, which releases the streams.
  void fail(std::exception_ptr cause) noexcept;
  /// Fails the communicator with timeout_error and throws the failure.
  [[noreturn]] void time_out(const std::string& call_name, std::uint64_t sequence);

 private:
  /// Waits until NCCL has accepted a call.
  void wait_until_accepted(ncclResult_t code, const std::string& call_name, clock::time_point deadline);
  [[nodiscard]] ncclResult_t async_result() const noexcept;
  void require_success(ncclResult_t code, const std::string& call_name);
  void poll_group();
  /// Waits for a limited time until the group reports which rank has ended: a broken connection does not identify the
  /// rank.
  void wait_for_failed_ranks();
  void abort_communicator() noexcept;

  ncclComm_t comm_ = nullptr;
  std::shared_ptr<group_state> group_;
  int rank_;
  int size_;
  int device_;
  seconds timeout_;
  std::uint64_t sequence_ = 0;
  std::exception_ptr failure_;

  friend class nccl_operation;
  std::vector<const nccl_operation*> pending_;  // operations that a caller still holds
  // set if ncclCommAbort has not returned in time: end events of operations are then released by its thread
  std::shared_ptr<std::vector<device_event>> events_after_abort_;
};

/// A pending collective. Its destructor waits for the end of the collective, since the device may still write. An error
/// is then stored in the communicator.
class nccl_operation {
 public:
  nccl_operation(std::shared_ptr<nccl_state> state, std::span<const nccl::device_call> calls, device_stream_ref stream);
  nccl_operation(const nccl_operation&) = delete;
  nccl_operation& operator=(const nccl_operation&) = delete;
  ~nccl_operation();

  bool test();
  bool wait_for(seconds limit);
  [[nodiscard]] const device_event& mark() const noexcept { return end_event_; }

 private:
  std::shared_ptr<nccl_state> state_;
  std::string operation_;
  clock::time_point deadline_;
  std::uint64_t sequence_;
  device_event end_event_;  // recorded in the stream after the collective
};

}}}  // namespace muster::v0::detail
