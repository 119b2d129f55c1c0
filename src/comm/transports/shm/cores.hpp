// On which cores ranks run, and whether these share a cache.
#pragma once

#include <sched.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The core that `rank` should go to, or -1 when it should stay: the emptiest of `allowed` by where the ranks were seen
/// last, for the last rank of a core that has two more than that one.
[[nodiscard]] int emptier_core(std::span<const std::uint32_t> seen, int rank, std::span<const std::uint32_t> allowed);

/// The cores of a set, in their order.
[[nodiscard]] std::vector<std::uint32_t> cores_of(const cpu_set_t& set);

/// The cores that the calling thread may run on, in their order; none where the system does not say.
[[nodiscard]] std::vector<std::uint32_t> allowed_cores();

/// Whether one third-level cache serves all of these, by what the system writes in that folder; true where it writes
/// nothing. A file is read for each core until one differs.
[[nodiscard]] bool share_a_cache(std::span<const std::uint32_t> cores,
                                 const std::filesystem::path& system = "/sys/devices/system/cpu");

/// Binds the calling thread, and all that it starts, to that core. False when the system does not allow it.
bool bind_to_core(std::uint32_t core) noexcept;

/// Moves the calling thread to that core; where it may run, and may be moved to later, stays as it was. False when the
/// system does not allow it. Some microseconds.
bool move_to_core(std::uint32_t core) noexcept;

/// Spreads ranks evenly over cores. The system evens them out every few milliseconds only, and in that time a thousand
/// small collectives pass: with three ranks on one core and one on another, each of them takes a context switch more
/// than it has to. A rank that moved in vain (another process needs the core, and the system moves it back) waits twice
/// as long before it moves again.
class core_spreader {
 public:
  explicit core_spreader(int ranks) : seen_(static_cast<std::size_t>(ranks)) {}

  /// Whether it is time to look; to be asked at each collective.
  [[nodiscard]] bool is_due() noexcept { return ++asked_ % between_looks == 0; }
  /// Where each rank was seen last: to be filled in before `spread`.
  [[nodiscard]] std::span<std::uint32_t> seen() noexcept { return seen_; }
  /// Moves the calling thread, which is that rank's, if it should go elsewhere.
  void spread(int rank);

 private:
  static constexpr std::uint32_t between_looks = 16;

  std::vector<std::uint32_t> seen_;
  std::uint32_t asked_ = 0;
  clock::time_point next_{};  // nothing to be done before
  clock::time_point moved_{};
  clock::duration rest_{};  // after a move
};

}}}  // namespace muster::v0::detail
