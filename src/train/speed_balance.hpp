// How much of each batch every rank gets, by its speed.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/elastic/step.hpp>

#include "../elastic/waiting_time.hpp"

namespace muster::inline v0::detail {

/// The weights by these speeds, of which 0 is not known and counts as their mean: in ten-thousandths, none of them 0.
/// Null where none is known.
[[nodiscard]] rank_weights weights_by(const std::vector<double>& speeds);
/// Whether some rank would get a twentieth more or less.
[[nodiscard]] bool differ(const rank_weights& one, const rank_weights& other);

/// Measures this rank and agrees with the others. Used by the thread that is the rank.
class speed_balance {
 public:
  /// Collective, before a step: every so many steps, and when ranks have come or gone, they tell one another how fast
  /// they are.
  void meet(step& with);
  /// Calls `f`, which returns how many samples of this rank it has worked on.
  template <class F>
  void measure(F&& f) {
    const waiting_time waited;
    const auto began = clock::now();
    const std::uint64_t samples = f();
    note(samples, clock::now() - began - waited.sum());
  }
  /// Of the ranks of that generation; null where these have not met.
  [[nodiscard]] rank_weights weights(std::uint64_t generation) const noexcept {
    return generation == generation_ ? weights_ : nullptr;
  }

 private:
  void note(std::uint64_t samples, seconds own) noexcept;

  std::uint64_t generation_ = ~std::uint64_t{0};
  rank_weights weights_;
  double samples_ = 0;  // of the last seconds, older ones less
  double seconds_ = 0;
  bool idle_ = false;  // it had no samples since the last meeting
};

}  // namespace muster::inline v0::detail
