#include <muster/train/schedule.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <muster/core/error.hpp>

namespace muster::inline v0 {
namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& why, const std::string& suggestion) {
  throw configuration_error("schedule '" + std::string(text) + "' cannot be used (" + why + "); " + suggestion);
}

/// The number that `word` is, which must be at least `low` (and above it if `open`).
double number(std::string_view text, std::string_view what, std::string_view word, double low, bool open) {
  double value{};
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool parsed = code == std::errc() && end == word.data() + word.size() && std::isfinite(value);
  if (!parsed) {
    refuse(text, std::string(what) + " '" + std::string(word) + "' is not a number", "write one such as 0.1");
  }
  if (value < low || (open && value == low)) {
    refuse(text, std::string(what) + " " + std::string(word) + " is out of range",
           open ? "give a positive one" : "give one from 0 on");
  }
  return value;
}

/// Cuts `text` up to `separator` off its front and returns that part.
std::string_view take(std::string_view& text, char separator) {
  const auto end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  return part;
}

step_rate parse_step(std::string_view text, double rate, std::string_view rest) {
  step_rate schedule{.rate = rate, .milestones = {}};
  const std::vector<std::string> keys{"epochs", "factor", "warmup", "scale"};
  std::vector<std::string> seen;
  while (!rest.empty()) {
    std::string_view value = take(rest, ',');
    const std::string key(take(value, '='));
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      refuse(text, "'" + key + "' is given twice", "give it once");
    seen.push_back(key);
    if (key == "epochs") {
      do {
        schedule.milestones.push_back(number(text, "epoch", take(value, '+'), 0.0, false));
      } while (!value.empty());
      if (std::adjacent_find(schedule.milestones.begin(), schedule.milestones.end(), std::greater_equal<>()) !=
          schedule.milestones.end()) {
        refuse(text, "its epochs do not ascend", "write them in order, such as epochs=82+109");
      }
    } else if (key == "factor") {
      schedule.factor = number(text, key, value, 0.0, true);
    } else if (key == "warmup") {
      schedule.warmup_epochs = number(text, key, value, 0.0, false);
    } else if (key == "scale") {
      schedule.scale = number(text, key, value, 0.0, true);
    } else {
      const auto meant = closest(key, keys);
      refuse(text, "'" + key + "' is not one of epochs, factor, warmup, scale",
             meant ? "did you mean '" + *meant + "'?" : "write such as step:0.1,epochs=82+109,factor=0.1");
    }
  }
  return schedule;
}

}  // namespace

double step_rate::operator()(const training_position& at) const noexcept {
  const double progress = warmup_epochs > 0.0 ? std::min(1.0, at.epoch / warmup_epochs) : 1.0;
  const auto passed = std::upper_bound(milestones.begin(), milestones.end(), at.epoch) - milestones.begin();
  return rate * (1.0 + (scale - 1.0) * progress) * std::pow(factor, static_cast<double>(passed));
}

double inverse_sqrt_rate::operator()(const training_position& at) const noexcept {
  return alpha / std::sqrt(static_cast<double>(at.step) + 1.0);
}

schedule parse_schedule(std::string_view text) {
  const std::vector<std::string> names{"constant", "step", "inverse-sqrt"};
  std::string_view rest = text;
  const std::string name(take(rest, ':'));
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    const auto meant = closest(name, names);
    refuse(text, "'" + name + "' is not one of constant, step, inverse-sqrt",
           meant ? "did you mean '" + *meant + "'?" : "write such as constant:0.1 or inverse-sqrt:200");
  }
  const double rate = number(text, name == "inverse-sqrt" ? "alpha" : "rate", take(rest, ','), 0.0, true);
  if (name == "step") return parse_step(text, rate, rest);
  if (!rest.empty()) refuse(text, name + " takes one number", "drop '" + std::string(rest) + "'");
  if (name == "inverse-sqrt") return inverse_sqrt_rate{rate};
  return constant_rate{rate};
}

}  // namespace muster::inline v0
