// How far workers may be apart, and what becomes of gradients that are old.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 { namespace ps {

/// What a pull waits for, and what a push does.
///
/// A worker's clock counts its steps: it says n when all that it pushed in its first n steps has been acknowledged.
struct consistency {
  enum class kind : std::uint8_t {
    asynchronous,  ///< no worker waits for another
    bounded,       ///< a pull of clock c waits until every live worker's clock is c - bound at least (stale synchronous
                   ///< parallel: Ho et al. 2013, https://proceedings.neurips.cc/paper/2013/hash/
                   ///< b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html)
    bulk           ///< pushes are summed; when all live workers' clocks have passed c, the sum of c is one update. Of
                   ///< one scale; pushes of a later clock than the first that is open wait for it
  };
  enum class policy : std::uint8_t { keep, drop, damp };

  kind what = kind::asynchronous;
  std::uint64_t bound = 0;  ///< of bounded, in clocks

  /// A push is old when its range had more updates than `fresh` since the version that it was computed from. Those are
  /// kept nevertheless, dropped, or damped: weighted by 1 / (1 + what is beyond `fresh`).
  policy old_pushes = policy::keep;
  std::uint64_t fresh = 0;

  /// The weight of a push that many updates old.
  [[nodiscard]] float weight_of(std::uint64_t age) const noexcept {
    if (old_pushes == policy::keep || age <= fresh) return 1.0f;
    return old_pushes == policy::drop ? 0.0f : 1.0f / (1.0f + static_cast<float>(age - fresh));
  }

  /// Whether a pull of that clock may have values now: where every live worker's clock is `slowest` at least, and the
  /// sums of all clocks before `folded` are in them.
  [[nodiscard]] bool answers(std::uint64_t clock, std::uint64_t slowest, std::uint64_t folded) const noexcept {
    if (what == kind::bounded) return slowest + bound >= clock;
    // A former head may have folded what a worker that it did not know has not even sent.
    if (what == kind::bulk) return folded >= clock && slowest >= clock;
    return true;
  }

  friend bool operator==(const consistency&, const consistency&) = default;
};

/// Reads what `--consistency` takes:
///
///     async | bounded:CLOCKS | bulk      [,drop=UPDATES | ,damp=UPDATES]
///
/// Throws configuration_error saying what is wrong and what is known.
[[nodiscard]] consistency parse_consistency(std::string_view text);
/// As `parse_consistency` reads it.
[[nodiscard]] std::string to_string(const consistency& how);

}}}  // namespace muster::v0::ps
