// Learning rates as functions of the position in the training.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <muster/core/training_position.hpp>
#include <muster/elastic/state.hpp>

namespace muster { inline namespace v0 {

/// A learning rate that falls by `factor` when the observed value has not improved for more than `patience`
/// observations. The rules are those in PyTorch's ReduceLROnPlateau with a relative threshold.
struct plateau_rate {
  double rate;
  double factor = 0.1;
  double patience = 10;
  double threshold = 1e-4;        ///< relative improvement on the best value that counts
  double cooldown = 0;            ///< number of observations that are ignored after a fall
  double smallest = 0.0;          ///< lower limit of the rate
  bool larger_is_better = false;  ///< true for accuracies, false for losses

  /// The state of the observations; zeros before the first observation. Part of a checkpoint.
  struct memory {
    double best = 0;
    double current_rate = 0;  ///< the rate after the last fall
    std::uint64_t observations = 0;
    std::uint64_t bad = 0;      ///< observations without improvement in a row
    std::uint64_t cooling = 0;  ///< remaining observations of the cooldown
    std::uint64_t falls = 0;
  };
  memory observed{};

  /// Returns the rate after the last observation, independent of the position.
  double operator()(const training_position&) const noexcept {
    return observed.falls == 0 ? rate : observed.current_rate;
  }
  /// Returns its constants as text.
  [[nodiscard]] std::string described() const;
  /// Observes a new value of the measure, such as the loss of a validation. All ranks must observe the same values, or
  /// their rates differ.
  void observe(double value) noexcept;
};

/// A linear warm-up with linear scaling, step by step (Goyal et al. 2017, https://arxiv.org/abs/1706.02677, sections
/// 2.1 and 2.2). `scale` is the ratio of the global batch to the batch for which the rate was chosen. The rate is
/// multiplied by a factor that changes linearly from `from` to `scale` within the first `epochs` and is `scale`
/// afterwards.
struct warm_up {
  double epochs = 0.0;
  double scale = 1.0;
  double from = 1.0;

  /// Returns the factor at a position.
  double operator()(const training_position& position) const noexcept;
};

/// A learning rate as one value: a function of the position in the training, or a plateau_rate. The same position and
/// the same observations give the same rate, so ranks agree on the rate without communication.
class schedule {
 public:
  /// Owns a copy of the function. A copy of a schedule has its own copy.
  template <std::convertible_to<std::function<double(const training_position&)>> Function>
  requires(!std::same_as<std::remove_cvref_t<Function>, schedule> &&
           !std::same_as<std::remove_cvref_t<Function>, plateau_rate>)
      schedule(Function&& function)  // NOLINT: converts on purpose
      : rate_(std::forward<Function>(function)) {}
  schedule(const plateau_rate& rate) : plateau_(rate) {}  // NOLINT: converts on purpose

  /// Returns the learning rate for the step that begins at this position.
  [[nodiscard]] double operator()(const training_position& position) const {
    return (plateau_ ? (*plateau_)(position) : rate_(position)) * warm_up_(position);
  }
  /// Sets the warm-up, whose factor multiplies the rate from the first step on. The schedule's epochs include the
  /// warm-up's epochs.
  void set_warm_up(const warm_up& warm_up_phase) noexcept { warm_up_ = warm_up_phase; }
  /// Observes the quality of the model after each validation. Call it with the same value at every rank, as the last
  /// operation of an evaluation. Only `plateau_rate` uses the observation.
  void observe(double value) noexcept {
    if (plateau_) plateau_->observe(value);
  }
  /// Returns true if the schedule uses observations.
  [[nodiscard]] bool observes() const noexcept { return plateau_.has_value(); }
  /// Describes the state to a session: the observations. The schedule must not move afterwards.
  void describe(state_parts& parts) {
    if (!plateau_) return;
    parts.add_property("the plateau schedule", plateau_->described());
    // Observations happen between steps, so the observations of an evaluation persist.
    parts.add("what the schedule has seen", std::span(&plateau_->observed, 1), state_kind::replicated,
              rollback_policy::keep_on_failure);
  }

 private:
  std::function<double(const training_position&)> rate_;
  std::optional<plateau_rate> plateau_;  // set instead of `rate_`
  warm_up warm_up_;
};
static_assert(state_owner<schedule>);

/// Parses a schedule of a command line:
///
///     constant:RATE
///     step:RATE[,epochs=E+E...][,factor=F]         times the factor at each of these epochs, which count
///                                                  from the start of the training, a warm-up included
///     cosine:RATE,epochs=E[,last=R]                half a cosine from the rate to the last rate (Loshchilov and Hutter
///                                                  2017, https://arxiv.org/abs/1608.03983, without restarts)
///     polynomial:RATE,epochs=E[,power=P][,last=R]  to the last rate by (1 - done)^power; power 1 is a straight line
///     exponential:RATE,factor=F[,every=EPOCHS]     rate * factor^(epoch / every), also between whole epochs
///     inverse-sqrt:ALPHA                           alpha / sqrt(t) at the t-th step, t from 1
///     plateau:RATE[,factor=F][,patience=N][,threshold=T][,cooldown=N][,smallest=R][,better=lower|higher]
///
/// Cosine and polynomial take steps=N instead of epochs=E in a training without a data set. Each schedule may end with
/// `,warmup=EPOCHS`, `,scale=S` and `,from=F` as in warm_up. Throws configuration_error with the mistake and the known
/// names.
[[nodiscard]] schedule parse_schedule(std::string_view text);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
