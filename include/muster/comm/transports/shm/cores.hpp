// The cores on which ranks run, and the caches that the cores share.
#pragma once

#include <sched.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Returns the core to which `rank` should move, or -1 if `rank` should stay. Only the highest rank of a core moves, to
/// the core of `allowed` with the fewest ranks, and only if its own core has at least two ranks more. `last_cores` has
/// each rank's last known core.
[[nodiscard]] int emptier_core(std::span<const std::uint32_t> last_cores, int rank,
                               std::span<const std::uint32_t> allowed);

/// Returns the cores of a set, ascending.
[[nodiscard]] std::vector<std::uint32_t> cores_of(const cpu_set_t& set);

/// Returns the cores on which the calling thread may run, ascending; empty where the system does not report them.
[[nodiscard]] std::vector<std::uint32_t> allowed_cores();

/// Returns true if all cores share one third-level cache, according to the files in the folder `system`, or if the
/// system has no such files. Reads one file for each core until one differs.
[[nodiscard]] bool share_a_cache(std::span<const std::uint32_t> cores,
                                 const std::filesystem::path& system = "/sys/devices/system/cpu");

/// Binds the calling thread, and all threads that it starts, to that core. Returns false if the system refuses.
bool bind_to_core(std::uint32_t core) noexcept;

/// Moves the calling thread to that core. The set of cores on which the thread may run is unchanged. Returns false if
/// the system refuses. Takes some microseconds.
bool move_to_core(std::uint32_t core) noexcept;

/// Spreads ranks evenly over cores. The system rebalances only every few milliseconds. In that time a thousand small
/// collectives pass, and with three ranks on one core and one on another each takes one context switch more than
/// necessary. After a move that did not last (another process needs the core, and the system moves the rank back) a
/// rank waits twice as long before the next move.
class core_spreader {
 public:
  explicit core_spreader(int rank_count) : last_cores_(static_cast<std::size_t>(rank_count)) {}

  /// Returns true if a check is due. Called at each collective.
  [[nodiscard]] bool is_due() noexcept { return ++calls_ % calls_between_checks == 0; }
  /// Returns each rank's last known core, to be filled in before `spread`.
  [[nodiscard]] std::span<std::uint32_t> last_cores() noexcept { return last_cores_; }
  /// Moves the calling thread, which runs `rank`, if another core is better.
  void spread(int rank);

 private:
  static constexpr std::uint32_t calls_between_checks = 16;

  std::vector<std::uint32_t> last_cores_;
  std::uint32_t calls_ = 0;
  clock::time_point next_check_{};  // time of the next check
  clock::time_point last_move_{};
  clock::duration wait_{};  // time to wait after a move
};

}}}  // namespace muster::v0::detail
