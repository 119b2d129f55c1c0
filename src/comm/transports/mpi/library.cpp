#include "library.hpp"

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace detail {

std::shared_ptr<mpi_library> mpi_library::acquire() {
  static std::mutex mutex;
  static std::weak_ptr<mpi_library> current;
  const std::lock_guard lock(mutex);
  auto library = current.lock();
  if (!library) current = library = std::shared_ptr<mpi_library>(new mpi_library());
  return library;
}

mpi_library::mpi_library() {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0) {
    throw configuration_error(
        "MPI cannot be used any more (MPI_Finalize was called); make one context for the whole program");
  }
  if (initialised != 0) {
    MPI_Query_thread(&level_);
    int is_main = 0;
    MPI_Is_thread_main(&is_main);
    if (level_ < MPI_THREAD_SERIALIZED && is_main == 0) {
      throw configuration_error(
          "MPI was initialised without threads and this is not its main thread (its level is below "
          "MPI_THREAD_SERIALIZED); "
          "make the context on the main thread or ask MPI_Init_thread for more");
    }
  } else {
    // Requests the serialised level: muster only promises that one thread at a time uses a group. The multiple level
    // would take locks in every call.
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level_), "MPI_Init_thread");
    initialised_here_ = true;
  }
  main_thread_ = std::this_thread::get_id();
}

mpi_library::~mpi_library() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (initialised_here_ && !abandoned_ && finalised == 0) MPI_Finalize();
}

void mpi_library::free_later(MPI_Comm communicator) {
  // All surviving ranks create communicators in the same order. After this many new communicators all messages in the
  // oldest one have arrived.
  constexpr std::size_t max_retired = 32;
  const std::lock_guard lock(retired_mutex_);
  retired_.push_back(communicator);
  if (retired_.size() <= max_retired) return;
  MPI_Comm_free(&retired_.front());
  retired_.pop_front();
}

void mpi_library::check_thread() const {
  if (allows_this_thread()) return;
  throw configuration_error(
      "MPI is used from a thread that is not its main one (its thread level is below MPI_THREAD_SERIALIZED); call from "
      "the "
      "main thread or ask MPI_Init_thread for more");
}

void check_mpi(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw error(error_kind::other, std::string(function) + " failed (" +
                                     std::string(text, static_cast<std::size_t>(length)) +
                                     "); see the output of mpirun");
}

}}}  // namespace muster::v0::detail
