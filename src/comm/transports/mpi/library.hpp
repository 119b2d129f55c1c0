// MPI as this process sees it: whether muster initialised it, what it allows, and whether it can still be used.
#pragma once

#include <mpi.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace muster::inline v0::detail {

/// One for all transports; the last one to go ends MPI, if it was muster that began it.
class mpi_library {
 public:
  static std::shared_ptr<mpi_library> acquire();
  mpi_library(const mpi_library&) = delete;
  mpi_library& operator=(const mpi_library&) = delete;
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

}  // namespace muster::inline v0::detail
