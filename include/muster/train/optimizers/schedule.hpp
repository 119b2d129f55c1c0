// Learning rates as functions of how far the training is.
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

/// Falls by `factor` when what it is told to `observe` has not become better for more than `patience` times; the rules
/// are those of PyTorch's ReduceLROnPlateau with a relative threshold.
struct plateau_rate {
  double rate;
  double factor = 0.1;
  double patience = 10;
  double threshold = 1e-4;        ///< by what part of the best a value must beat it
  double cooldown = 0;            ///< observations after a fall that do not count
  double smallest = 0.0;          ///< the rate does not fall below it
  bool larger_is_better = false;  ///< accuracies; losses otherwise

  /// What it has seen; zeros before the first observation. Part of a checkpoint.
  struct memory {
    double best = 0;
    double now = 0;  ///< the rate, once it has fallen
    std::uint64_t observations = 0;
    std::uint64_t bad = 0;      ///< in a row
    std::uint64_t cooling = 0;  ///< observations of the cooldown that are left
    std::uint64_t falls = 0;
  };
  memory seen{};

  /// The rate after the last observation; the position does not matter.
  double operator()(const training_position&) const noexcept { return seen.falls == 0 ? rate : seen.now; }
  /// Its numbers, in words.
  [[nodiscard]] std::string described() const;
  /// A new value of what is watched, such as the loss of a validation. All ranks observe the same ones, or their rates
  /// differ.
  void observe(double value) noexcept;
};

/// A linear warm-up with linear scaling, step by step (Goyal et al. 2017, https://arxiv.org/abs/1706.02677,
/// sections 2.1 and 2.2): `scale` is how many times larger the global batch is than the one that a rate was chosen for;
/// the rate times a factor that goes from `from` to `scale` within the first `epochs`, and stays there.
struct warm_up {
  double epochs = 0.0;
  double scale = 1.0;
  double from = 1.0;

  /// The factor at a position.
  double operator()(const training_position& at) const noexcept;
};

/// A function from a position in the training to the learning rate, or a plateau_rate, as one value. Called with the
/// same position (and told the same observations) it gives the same rate: ranks agree on it without talking.
class schedule {
 public:
  /// Owns a copy of the function; a copy of a schedule has its own.
  template <std::convertible_to<std::function<double(const training_position&)>> Function>
  requires(!std::same_as<std::remove_cvref_t<Function>, schedule> &&
           !std::same_as<std::remove_cvref_t<Function>, plateau_rate>)
      schedule(Function&& function)  // NOLINT: converts on purpose
      : rate_(std::forward<Function>(function)) {}
  schedule(const plateau_rate& rate) : plateau_(rate) {}  // NOLINT: converts on purpose

  /// The learning rate for the step that begins at this position.
  [[nodiscard]] double operator()(const training_position& at) const {
    return (plateau_ ? (*plateau_)(at) : rate_(at)) * rise_(at);
  }
  /// Has it behind a warm-up.
  void begin_with(const warm_up& rise) noexcept { rise_ = rise; }
  /// Tells it how good the model is, after each validation: the same value at every rank, as the last word of an
  /// evaluation. Only `plateau_rate` listens.
  void observe(double value) noexcept {
    if (plateau_) plateau_->observe(value);
  }
  /// Whether it listens.
  [[nodiscard]] bool observes() const noexcept { return plateau_.has_value(); }
  /// As an owner of state: what it has observed. It stays at its place from then on.
  void describe(state_parts& parts) {
    if (!plateau_) return;
    parts.add_property("the plateau schedule", plateau_->described());
    parts.add("what the schedule has seen", std::span(&plateau_->seen, 1), state_kind::replicated,
              in_step::keep_on_failure);  // observed between steps: what an evaluation observes stays
  }

 private:
  std::function<double(const training_position&)> rate_;
  std::optional<plateau_rate> plateau_;  // instead of it
  warm_up rise_;
};
static_assert(state_owner<schedule>);

/// Reads a schedule as command lines give it:
///
///     constant:RATE
///     step:RATE[,epochs=E+E...][,factor=F]         times the factor at each of these epochs, which count from the
///     start
///                                                  of the training, a warm-up included
///     cosine:RATE,epochs=E[,last=R]                half a wave from the rate to the last one (Loshchilov and Hutter
///                                                  2017, https://arxiv.org/abs/1608.03983, without restarts)
///     polynomial:RATE,epochs=E[,power=P][,last=R]  to the last one by (1 - done)^power; a power of 1 is a straight
///     line exponential:RATE,factor=F[,every=EPOCHS]     rate * factor^(epoch / every), also between whole epochs
///     inverse-sqrt:ALPHA                           alpha / sqrt(t) at the t-th step, t from 1
///     plateau:RATE[,factor=F][,patience=N][,threshold=T][,cooldown=N][,smallest=R][,better=lower|higher]
///
/// with steps=N instead of epochs=E for cosine and polynomial, in a training without a data set,
/// and behind any of them `,warmup=EPOCHS`, `,scale=S`, `,from=F` as in warm_up. Throws configuration_error saying
/// what is wrong and what is known.
[[nodiscard]] schedule parse_schedule(std::string_view text);

}}  // namespace muster::v0
