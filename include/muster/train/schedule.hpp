// Learning rates as functions of how far the training is.
#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <muster/core/training_position.hpp>

namespace muster::inline v0 {

/// The same rate always.
struct constant_rate {
  double rate;

  double operator()(const training_position&) const noexcept { return rate; }
};

/// Falls by `factor` at each milestone; with `scale` the rate of `rate` is scaled linearly to a batch that is `scale`
/// times larger, and reached by a gradual warm-up from `rate` during the first `warmup_epochs`, step by step (Goyal et
/// al. 2017, https://arxiv.org/abs/1706.02677, sections 2.1 and 2.2). Milestones count from the start of the training,
/// warm-up included, and fall in the warm-up too.
struct step_rate {
  double rate;                     ///< before scaling
  std::vector<double> milestones;  ///< in epochs, ascending
  double factor = 0.1;
  double warmup_epochs = 0.0;
  double scale = 1.0;  ///< how many times larger the global batch is than the one `rate` was chosen for

  double operator()(const training_position& at) const noexcept;
};

/// alpha / sqrt(t) at the t-th step, t from 1.
struct inverse_sqrt_rate {
  double alpha;

  double operator()(const training_position& at) const noexcept;
};

/// Any of these, or any other function of the position, as one value. Called with the same position it gives the same
/// rate: ranks agree on it without talking.
class schedule {
 public:
  template <class Function>
  requires(!std::same_as<std::remove_cvref_t<Function>, schedule> &&
           std::is_invocable_r_v<double, const std::remove_cvref_t<Function>&, const training_position&>)
      schedule(Function&& function)
      : function_(std::forward<Function>(function)) {}  // NOLINT: converts on purpose

  /// The learning rate for the step that begins at this position.
  [[nodiscard]] double operator()(const training_position& at) const { return function_(at); }

 private:
  std::function<double(const training_position&)> function_;
};

/// Reads a schedule as command lines give it:
///
///     constant:RATE
///     step:RATE[,epochs=E+E...][,factor=F][,warmup=EPOCHS][,scale=S]      as in step_rate
///     inverse-sqrt:ALPHA
///
/// Throws configuration_error saying what is wrong and what is known.
[[nodiscard]] schedule parse_schedule(std::string_view text);

}  // namespace muster::inline v0
