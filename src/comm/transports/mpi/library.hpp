// MPI as this process sees it: whether muster initialised it, what it allows, and whether it can still be used.
#pragma once

#include <mpi.h>

#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// One for all transports; the last one to go ends MPI, if it was muster that began it.
class mpi_library {
 public:
  static std::shared_ptr<mpi_library> acquire();
  ~mpi_library();

  /// Throws configuration_error when MPI does not allow a call from this thread.
  void check_thread() const;
  /// Whether threads besides the main one may call MPI, one at a time.
  [[nodiscard]] bool any_thread() const noexcept { return level_ >= MPI_THREAD_SERIALIZED; }
  [[nodiscard]] bool concurrent() const noexcept { return level_ == MPI_THREAD_MULTIPLE; }

  /// MPI may still write into memory that is not ours any more: from now on nothing gives it a chance to, not even
  /// MPI_Finalize. Called after a failure that left an operation which MPI can neither finish nor cancel.
  void abandon() noexcept { abandoned_ = true; }
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_; }
  /// What f, which blocks in MPI, returns. Nothing in MPI ends a wait: where MPI allows it f has a thread of its own,
  /// which is left behind when it does not return in time, and MPI with it; then nothing.
  template <class F>
  [[nodiscard]] std::optional<std::invoke_result_t<F>> in_time(F f, clock::time_point until) {
    std::packaged_task<std::invoke_result_t<F>()> task(std::move(f));
    auto done = task.get_future();
    if (any_thread()) {
      std::thread(std::move(task)).detach();
    } else {
      task();
    }
    if (done.wait_until(until) == std::future_status::ready) return done.get();
    abandon();
    return std::nullopt;
  }
  /// MPI is not finalised in the end: where ranks die, leave or hang, that could wait for them for ever. The launcher
  /// then ends those that are left.
  void leave_open() noexcept { ours_ = false; }
  /// Frees a communicator some time later, where ranks may have died in it. What was sent in it may be on its way
  /// still, and Open MPI 5 would take that for a message of the next communicator that gets the same number.
  void retire(MPI_Comm communicator);

 private:
  mpi_library();

  bool ours_ = false;
  bool abandoned_ = false;
  int level_ = MPI_THREAD_SINGLE;
  std::thread::id main_thread_;
  std::mutex retiring_;
  std::deque<MPI_Comm> retired_;
};

/// Throws muster::error with MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

// Deaths of ranks as MPI sees them: User Level Failure Mitigation, where MPI has it and was started with it.

/// Whether MPI goes on when ranks die: it has the functions for that (found when muster was built; Open MPI from 5 on),
/// and was started with them (`mpirun --with-ft ulfm`). Asked after MPI_Init.
[[nodiscard]] bool mpi_survives_deaths() noexcept;

/// The ranks of a communicator that have ended, ascending. Acknowledges them, so that receives from any rank work
/// again. Local. None where MPI does not survive deaths.
[[nodiscard]] std::vector<int> ended_ranks(MPI_Comm communicator);

/// "rank 1 has ended (rank 3 of MPI_COMM_WORLD, as MPI says)".
[[nodiscard]] std::string text_of_end(MPI_Comm communicator, int rank);

/// Throws peer_failure naming the ranks of `communicator` that have ended when `code` says that one has, or that the
/// communicator was revoked because of one; and muster::error with MPI's own text for other failures.
void check_mpi(int code, const char* call, MPI_Comm communicator);

/// Wakes all that wait in that communicator, at every rank, with an error; it cannot be used any more. Nothing where
/// MPI does not survive deaths.
void revoke(MPI_Comm communicator) noexcept;

}}}  // namespace muster::v0::detail
