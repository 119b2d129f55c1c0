// Learning rates as functions of how far the training is.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <muster/core/training_position.hpp>
#include <muster/elastic/state.hpp>

namespace muster::inline v0 {

/// The same rate always. Like every schedule below, a function from a position in the training to the learning rate.
struct constant_rate {
  double rate;

  /// The rate.
  double operator()(const training_position&) const noexcept { return rate; }
};

/// Falls by `factor` at each milestone. Milestones count from the start of the training, a warm-up included, and fall
/// in the warm-up too.
struct step_rate {
  double rate;
  std::vector<double> milestones;  ///< in epochs, ascending
  double factor = 0.1;

  /// The rate at a position; O(milestones).
  double operator()(const training_position& at) const noexcept;
};

/// How long a schedule lasts: epochs, or steps where there are none (a training without a data set).
struct training_length {
  double epochs = 0.0;
  double steps = 0.0;  ///< counts when it is not 0

  /// The part of it that is done, in [0, 1].
  [[nodiscard]] double done(const training_position& at) const noexcept;
};

/// Half a wave from `rate` to `last` (Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983, without restarts).
struct cosine_rate {
  double rate;
  training_length length;
  double last = 0.0;

  /// The rate at a position; `last` from the end of `length` on.
  double operator()(const training_position& at) const noexcept;
};

/// From `rate` to `last` by (1 - done)^power; a power of 1 is a straight line.
struct polynomial_rate {
  double rate;
  training_length length;
  double power = 1.0;
  double last = 0.0;

  /// The rate at a position; `last` from the end of `length` on.
  double operator()(const training_position& at) const noexcept;
};

/// rate * factor^(epoch / every), also between whole epochs.
struct exponential_rate {
  double rate;
  double factor;
  double every = 1.0;  ///< epochs

  /// The rate at a position.
  double operator()(const training_position& at) const noexcept;
};

/// alpha / sqrt(t) at the t-th step, t from 1.
struct inverse_sqrt_rate {
  double alpha;

  /// The rate at a position.
  double operator()(const training_position& at) const noexcept;
};

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
  /// A new value of what is watched, such as the loss of a validation. All ranks observe the same ones, or their rates
  /// differ.
  void observe(double value) noexcept;
};

/// Any of these, or any other function of the position, as one value. Called with the same position (and told the same
/// observations) it gives the same rate: ranks agree on it without talking.
class schedule {
 public:
  /// Owns a copy of the function; a copy of a schedule has its own.
  template <class Function>
  requires(!std::same_as<std::remove_cvref_t<Function>, schedule> &&
           std::is_invocable_r_v<double, const std::remove_cvref_t<Function>&, const training_position&>)
      schedule(Function&& function)  // NOLINT: converts on purpose
      : held_(std::make_unique<held<std::remove_cvref_t<Function>>>(std::forward<Function>(function))) {}
  schedule(const schedule& other) : held_(other.held_->copy()) {}
  schedule(schedule&&) noexcept = default;
  schedule& operator=(schedule other) noexcept {
    held_.swap(other.held_);
    return *this;
  }

  /// The learning rate for the step that begins at this position.
  [[nodiscard]] double operator()(const training_position& at) const { return held_->rate(at); }
  /// Tells it how good the model is, after each validation: the same value at every rank, as the last word of an
  /// evaluation. Only `plateau_rate` and other functions with an `observe(double)` listen.
  void observe(double value) { held_->observe(value); }
  /// Whether it listens.
  [[nodiscard]] bool observes() const noexcept { return held_->observes(); }
  /// As an owner of state: what it has observed.
  void describe(state_parts& parts) { held_->describe(parts); }

 private:
  struct erased {
    erased() = default;
    erased& operator=(const erased&) = delete;
    virtual ~erased() = default;
    [[nodiscard]] virtual double rate(const training_position& at) const = 0;
    virtual void observe(double value) = 0;
    [[nodiscard]] virtual bool observes() const noexcept = 0;
    virtual void describe(state_parts& parts) = 0;
    [[nodiscard]] virtual std::unique_ptr<erased> copy() const = 0;

   protected:
    erased(const erased&) = default;
  };
  template <class F>
  struct held final : erased {
    template <class Given>
    explicit held(Given&& given) : function(std::forward<Given>(given)) {}
    [[nodiscard]] double rate(const training_position& at) const override { return function(at); }
    void observe(double value) override {
      if constexpr (requires { function.observe(value); }) function.observe(value);
    }
    [[nodiscard]] bool observes() const noexcept override {
      if constexpr (requires { function.observes(); })
        return function.observes();
      else
        return requires(F & each, double value) { each.observe(value); };
    }
    void describe(state_parts& parts) override {
      if constexpr (requires { function.describe(parts); })
        function.describe(parts);
      else if constexpr (requires { function.seen; })
        parts.add("what the schedule has seen", std::span(&function.seen, 1), state_kind::replicated,
                  in_step::keep_on_failure);  // observed between steps: what an evaluation observes stays
    }
    [[nodiscard]] std::unique_ptr<erased> copy() const override { return std::make_unique<held>(function); }
    F function;
  };

  std::unique_ptr<erased> held_;
};
static_assert(state_owner<schedule>);

/// Another schedule behind a linear warm-up with linear scaling, step by step (Goyal et al. 2017,
/// https://arxiv.org/abs/1706.02677, sections 2.1 and 2.2): `scale` is how many times larger the global batch is than
/// the one that its rate was chosen for; its rate times a factor that goes from `from` to `scale` within the first
/// `epochs`, and stays there.
struct warmed_up {
  schedule after;
  double epochs = 0.0;
  double scale = 1.0;
  double from = 1.0;

  /// As of `after`, its rate times the factor; observations and state are those of `after`.
  double operator()(const training_position& at) const;
  void observe(double value) { after.observe(value); }
  [[nodiscard]] bool observes() const noexcept { return after.observes(); }
  void describe(state_parts& parts) { after.describe(parts); }
};

/// Reads a schedule as command lines give it:
///
///     constant:RATE
///     step:RATE[,epochs=E+E...][,factor=F]                   as in step_rate
///     cosine:RATE,epochs=E[,last=R]
///     polynomial:RATE,epochs=E[,power=P][,last=R]            steps=N instead of epochs=E, also for cosine
///     exponential:RATE,factor=F[,every=EPOCHS]
///     inverse-sqrt:ALPHA
///     plateau:RATE[,factor=F][,patience=N][,threshold=T][,cooldown=N][,smallest=R][,better=lower|higher]
///
/// and behind any of them `,warmup=EPOCHS`, `,scale=S`, `,from=F` as in warmed_up. Throws configuration_error saying
/// what is wrong and what is known.
[[nodiscard]] schedule parse_schedule(std::string_view text);

}  // namespace muster::inline v0
