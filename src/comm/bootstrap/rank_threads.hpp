// Which rank of a world a thread is; and how the ranks of a job end: together, with one status, and one of them says
// why.
#pragma once

#include <exception>

#include <muster/comm/context.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Collective, when this rank has done all: waits for the others, and finds those in a collective that never will be.
void finish(group& world);

/// Collective: the ranks tell each other how they ended and agree on which of them speaks and on the status.
[[nodiscard]] context::outcome settle_world(group& world, std::exception_ptr failure);

/// While it lives, the calling thread is the rank of this world.
class rank_of_thread {
 public:
  explicit rank_of_thread(group& world) noexcept;
  rank_of_thread(const rank_of_thread&) = delete;
  rank_of_thread& operator=(const rank_of_thread&) = delete;
  ~rank_of_thread();

  /// The world of the rank that the calling thread is; null where it is none.
  [[nodiscard]] static group* world() noexcept;

 private:
  group* before_;
};

}}}  // namespace muster::v0::detail
