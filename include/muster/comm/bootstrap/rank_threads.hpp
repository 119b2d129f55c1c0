// Maps a thread to its rank of a world, and ends the ranks of a job together: with one exit status, which one rank
// explains.
#pragma once

#include <exception>

#include <muster/comm/context.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Waits for the other ranks when this rank has finished. Collective. Detects ranks that wait in a collective that will
/// never complete. After 600 s it logs a warning and returns.
void finish(group& world);

/// Exchanges the ranks' outcomes and agrees on the exit status and on the rank that prints the failure.
/// Collective.
[[nodiscard]] context::outcome agree_on_exit_status_of_world(group& world, std::exception_ptr failure);

/// Makes the calling thread the world's rank during the object's life.
class rank_of_thread {
 public:
  explicit rank_of_thread(group& world) noexcept;
  rank_of_thread(const rank_of_thread&) = delete;
  rank_of_thread& operator=(const rank_of_thread&) = delete;
  ~rank_of_thread();

  /// Returns the world of the calling thread's rank; null if the thread is not a rank.
  [[nodiscard]] static group* world() noexcept;

 private:
  group* before_;
};

}}}  // namespace muster::v0::detail
