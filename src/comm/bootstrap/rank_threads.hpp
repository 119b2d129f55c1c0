// Ranks as threads of this process.
#pragma once

#include <functional>

#include <muster/comm/group.hpp>

namespace muster::inline v0::detail {

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

/// Runs `body` once on each of `count` threads, the ranks of one world over the transport local. When all have ended,
/// throws the exception of the lowest rank that had a reason of its own.
void run_as_threads(int count, const group_settings& settings, const std::function<void(group&)>& body);

}  // namespace muster::inline v0::detail
