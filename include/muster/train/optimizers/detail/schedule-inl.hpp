#pragma once

#include <muster/train/optimizers/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <muster/core/inline.hpp>
#include <muster/core/spec.hpp>
#include <muster/core/text.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline std::vector<double> read_milestones(spec_reader& spec) {
  std::vector<double> milestones;
  const auto epochs = spec.take("epochs");
  if (!epochs) return milestones;
  for (const auto word : detail::split(*epochs, '+')) milestones.push_back(spec.read("epoch", word, 0.0, false));
  if (std::adjacent_find(milestones.begin(), milestones.end(), std::greater_equal<>()) != milestones.end())
    spec.refuse("its epochs do not ascend", "write them in order, such as epochs=82+109");
  return milestones;
}

/// The length of a schedule in epochs, or in steps if epochs is 0.
struct training_length {
  double epochs = 0.0;
  double steps = 0.0;

  /// Returns the completed fraction of the schedule, in [0, 1].
  [[nodiscard]] double completed_fraction(const training_position& position) const noexcept {
    return std::clamp(steps != 0.0 ? static_cast<double>(position.step) / steps : position.epoch / epochs, 0.0, 1.0);
  }
};

inline training_length read_length(spec_reader& spec, const std::string& name) {
  const training_length length{.epochs = spec.number_of("epochs", 0.0, 0.0, true),
                               .steps = spec.number_of("steps", 0.0, 0.0, true)};
  if ((length.epochs == 0.0) == (length.steps == 0.0)) {
    spec.refuse(length.epochs == 0.0 ? "its length is missing" : "its length is given in epochs and in steps",
                "write such as " + name + ":0.1,epochs=90");
  }
  return length;
}

inline double read_integer(spec_reader& spec, const std::string& key, double fallback) {
  const double number = spec.number_of(key, fallback, 0.0, false);
  constexpr double most = 1e15;  // integers below this are exact in a double
  if (number != std::floor(number) || number > most)
    spec.refuse(key + " is not a whole number up to 1e15", "write such as " + key + "=10");
  return number;
}

inline plateau_rate read_plateau(spec_reader& spec, double rate) {
  plateau_rate result{.rate = rate};
  result.factor = spec.number_of("factor", result.factor, 0.0, true);
  if (result.factor >= 1.0) spec.refuse("the rate would not fall", "give a factor below 1");
  result.patience = read_integer(spec, "patience", result.patience);
  result.threshold = spec.number_of("threshold", result.threshold, 0.0, false);
  result.cooldown = read_integer(spec, "cooldown", result.cooldown);
  result.smallest = spec.number_of("smallest", result.smallest, 0.0, false);
  result.larger_is_better = spec.choice_of<bool>("better", false, {{"lower", false}, {"higher", true}});
  return result;
}

inline schedule read_plain(spec_reader& spec, const std::string& name, double rate) {
  if (name == "step") {
    const auto milestones = read_milestones(spec);
    const double factor = spec.number_of("factor", 0.1, 0.0, true);
    return [=](const training_position& position) {
      const auto passed = std::ranges::upper_bound(milestones, position.epoch) - milestones.begin();
      return rate * std::pow(factor, static_cast<double>(passed));
    };
  }
  if (name == "cosine" || name == "polynomial") {
    const auto length = read_length(spec, name);
    const double power = name == "cosine" ? 0.0 : spec.number_of("power", 1.0, 0.0, true);
    const double last = spec.number_of("last", 0.0, 0.0, false);
    return [=](const training_position& position) {
      const double done = length.completed_fraction(position);
      return last + (rate - last) *
                        (power == 0.0 ? 0.5 * (1.0 + std::cos(std::numbers::pi * done)) : std::pow(1.0 - done, power));
    };
  }
  if (name == "exponential") {
    const double factor = spec.number_of("factor", 0.0, 0.0, true);
    if (factor == 0.0) spec.refuse("its factor is missing", "write such as exponential:0.1,factor=0.95");
    const double every = spec.number_of("every", 1.0, 0.0, true);
    return [=](const training_position& position) { return rate * std::pow(factor, position.epoch / every); };
  }
  if (name == "plateau") return read_plateau(spec, rate);
  if (name == "inverse-sqrt")
    return
        [=](const training_position& position) { return rate / std::sqrt(static_cast<double>(position.step) + 1.0); };
  return [=](const training_position&) { return rate; };
}

}  // namespace detail

MUSTER_INLINE std::string plateau_rate::described() const {
  return detail::printed("rate %g, factor %g, patience %g, threshold %g, cooldown %g, smallest %g, better %s", rate,
                         factor, patience, threshold, cooldown, smallest, larger_is_better ? "higher" : "lower");
}

MUSTER_INLINE void plateau_rate::observe(double value) noexcept {
  const double limit = observed.best * (larger_is_better ? 1.0 + threshold : 1.0 - threshold);
  const bool first = observed.observations++ == 0;
  if (first ? !std::isnan(value) : larger_is_better ? value > limit : value < limit) {
    observed.best = value;
    observed.bad = 0;
  } else {
    if (first) observed.observations = 0;  // NaN is not a best value
    ++observed.bad;
  }
  if (observed.cooling > 0) {
    --observed.cooling;
    observed.bad = 0;
  }
  if (static_cast<double>(observed.bad) <= patience) return;
  observed.current_rate = std::max((*this)({}) * factor, smallest);
  ++observed.falls;
  observed.cooling = static_cast<std::uint64_t>(cooldown);
  observed.bad = 0;
}

MUSTER_INLINE double warm_up::operator()(const training_position& position) const noexcept {
  const double progress = epochs > 0.0 ? std::min(1.0, position.epoch / epochs) : 1.0;
  return from + (scale - from) * progress;
}

MUSTER_INLINE schedule parse_schedule(std::string_view text) {
  spec_reader spec("schedule", text);
  const auto name = spec.name({"constant", "step", "cosine", "polynomial", "exponential", "inverse-sqrt", "plateau"},
                              "such as constant:0.1 or inverse-sqrt:200");
  const double rate = spec.number(name == "inverse-sqrt" ? "alpha" : "rate", 0.0, true);
  schedule result = detail::read_plain(spec, name, rate);
  warm_up warm_up_phase;
  warm_up_phase.epochs = spec.number_of("warmup", warm_up_phase.epochs, 0.0, false);
  warm_up_phase.scale = spec.number_of("scale", warm_up_phase.scale, 0.0, true);
  warm_up_phase.from = spec.number_of("from", warm_up_phase.from, 0.0, false);
  spec.finish("step:0.1,epochs=82+109,factor=0.1,warmup=5,scale=8");
  if (warm_up_phase.from != 1.0 && warm_up_phase.epochs == 0.0)
    spec.refuse("its warm-up has a start and no length", "give warmup=EPOCHS too");
  result.set_warm_up(warm_up_phase);
  return result;
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
