// The MPI library for this process: who initialised it, its thread level, and whether it is still usable.
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

/// The state of MPI, shared by all mpi transports of the process. The destructor runs with the last transport, and
/// finalises MPI if muster initialised it.
class mpi_library {
 public:
  /// Returns the library of the process, and initialises MPI if the program has not. Throws configuration_error after
  /// MPI_Finalize, or on a thread from which MPI allows no calls.
  static std::shared_ptr<mpi_library> acquire();
  ~mpi_library();

  /// Returns true if MPI allows calls from this thread.
  [[nodiscard]] bool allows_this_thread() const noexcept {
    return any_thread() || std::this_thread::get_id() == main_thread_;
  }
  /// Throws configuration_error if MPI does not allow calls from this thread.
  void check_thread() const;
  /// Returns true if any thread may call MPI, one thread at a time.
  [[nodiscard]] bool any_thread() const noexcept { return level_ >= MPI_THREAD_SERIALIZED; }
  /// Returns true if several threads may call MPI at the same time.
  [[nodiscard]] bool concurrent() const noexcept { return level_ == MPI_THREAD_MULTIPLE; }

  /// Marks MPI as unusable: after this call muster calls MPI no more, not even MPI_Finalize, because MPI may still
  /// write into memory that has been released. Called after a failure that left an operation which MPI can neither
  /// complete nor cancel.
  void abandon() noexcept { abandoned_ = true; }
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_; }
  /// Returns the result of `f`, which blocks in MPI; nothing if `f` has not returned by the deadline. MPI cannot end a
  /// wait, so `f` runs on its own thread. After the deadline that thread is left running, and MPI is abandoned. If the
  /// thread level allows no other thread, `f` runs on this thread, without a deadline.
  template <class F>
  [[nodiscard]] std::optional<std::invoke_result_t<F>> run_with_deadline(F f, clock::time_point deadline) {
    std::packaged_task<std::invoke_result_t<F>()> task(std::move(f));
    auto result = task.get_future();
    if (any_thread()) {
      std::thread(std::move(task)).detach();
    } else {
      task();
    }
    if (result.wait_until(deadline) == std::future_status::ready) return result.get();
    abandon();
    return std::nullopt;
  }
  /// Prevents MPI_Finalize at the end, which could wait for ever for ranks that have died, left or hang. The launcher
  /// then ends the remaining ranks.
  void skip_finalize() noexcept { initialised_here_ = false; }
  /// Takes over a communicator in which ranks may have died or a call has failed, and frees it after 32 more have been
  /// retired. Messages in the communicator may still be under way, and Open MPI 4 and 5 would deliver them to the next
  /// communicator that gets the same number, which would then lose messages of its own.
  void free_later(MPI_Comm communicator);

 private:
  mpi_library();

  bool initialised_here_ = false;
  bool abandoned_ = false;
  int level_ = MPI_THREAD_SINGLE;
  std::thread::id main_thread_;
  std::mutex retired_mutex_;
  std::deque<MPI_Comm> retired_;  // guarded by retired_mutex_
};

/// Throws muster::error with MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* function);

// Detection of dead ranks by User Level Failure Mitigation (ULFM), if MPI has it and was started with it.

/// Returns true if MPI continues when ranks die: it has the functions for that (detected when muster was built; Open
/// MPI from version 5), and was started with them (`mpirun --with-ft ulfm`). Called after MPI_Init.
[[nodiscard]] bool mpi_survives_deaths() noexcept;

/// Returns the ranks in a communicator that have ended, ascending. Acknowledges them to MPI, so that receives from any
/// rank work again. Local. Returns none if MPI does not survive deaths.
[[nodiscard]] std::vector<int> ended_ranks(MPI_Comm communicator);

/// Returns the text "rank 1 has ended (rank 3 of MPI_COMM_WORLD, according to MPI)".
[[nodiscard]] std::string text_of_end(MPI_Comm communicator, int rank);

/// Throws peer_failure with the ended ranks in `communicator` if `code` reports a death, or a communicator that was
/// revoked because of a death. Throws muster::error with MPI's text for other failures.
void check_mpi(int code, const char* function, MPI_Comm communicator);

/// Revokes the communicator: all pending operations in it, at every rank, end with an error, and it is unusable
/// afterwards. Does nothing if MPI does not survive deaths.
void revoke(MPI_Comm communicator) noexcept;

}}}  // namespace muster::v0::detail
