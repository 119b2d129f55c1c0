// Consistency models: the staleness of pulled values, and the treatment of old gradients.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 { namespace ps {

/// The rules for when a server answers a pull and when a push takes effect.
///
/// A worker's clock counts its steps. The clock is n when every push of the worker's first n steps is acknowledged.
struct consistency {
  enum class kind : std::uint8_t {
    asynchronous,  ///< no worker waits for another
    /// A pull in clock c waits until every live worker's clock is at least c - bound (stale synchronous parallel: Ho et
    /// al. 2013, https://proceedings.neurips.cc/paper/2013/hash/b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html).
    bounded,
    /// The server sums the pushes; when all live workers' clocks have passed c, the sum of clock c is applied as one
    /// update. All pushes of a clock have the same scale. Pushes of a later clock than the first open clock wait.
    bulk
  };
  enum class policy : std::uint8_t { keep, drop, damp };

  kind type = kind::asynchronous;        ///< the consistency model
  std::uint64_t most_clocks_behind = 0;  ///< for `bounded`, in clocks

  /// A push is old if its range had more than `largest_fresh_age` updates since the version from which the push was
  /// computed. Old pushes are applied unchanged (keep), ignored (drop), or weighted by 1 / (1 + age - fresh) (damp).
  policy old_pushes = policy::keep;
  std::uint64_t largest_fresh_age = 0;

  /// Returns the weight of a push that is `age` updates old.
  [[nodiscard]] float weight_of(std::uint64_t age) const noexcept {
    if (old_pushes == policy::keep || age <= largest_fresh_age) return 1.0f;
    return old_pushes == policy::drop ? 0.0f : 1.0f / (1.0f + static_cast<float>(age - largest_fresh_age));
  }

  /// Returns true if a server may answer a pull of `clock` now. `slowest` is the smallest clock among live workers. The
  /// values contain the sum of every clock before `folded`.
  [[nodiscard]] bool answers(std::uint64_t clock, std::uint64_t slowest, std::uint64_t folded) const noexcept {
    if (type == kind::bounded) return slowest + most_clocks_behind >= clock;
    // A previous head may have folded a clock in which a worker that the head did not know has not sent its pushes yet.
    if (type == kind::bulk) return folded >= clock && slowest >= clock;
    return true;
  }

  friend bool operator==(const consistency&, const consistency&) = default;
};

/// Reads the value of `--consistency`:
///
///     async | bounded:CLOCKS | bulk      [,drop=UPDATES | ,damp=UPDATES]
///
/// Throws configuration_error that names the mistake and the known models.
[[nodiscard]] consistency parse_consistency(std::string_view text);
/// Returns the text that `parse_consistency` reads as `model`.
[[nodiscard]] std::string to_string(const consistency& model);

}}}  // namespace muster::v0::ps

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/ps/detail/definitions.hpp>
#endif
