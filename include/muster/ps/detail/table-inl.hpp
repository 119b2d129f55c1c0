#pragma once

#include <muster/ps/table.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/update.hpp>

namespace muster { inline namespace v0 { namespace ps {
namespace detail {

inline constexpr std::size_t ranges_a_server =
    8;  // at most, unless these ranges would exceed `table_layout::largest_range`
// In elements. Smaller ranges only cost messages: with 8 ranges of 128 KiB a push of 1 MiB over tcp takes 1.2 times as
// long.
inline constexpr std::size_t good_range = 128 * 1024;
inline constexpr std::size_t smallest_range = 1024;  // also if some servers then have no range

// ---- named update functions ----

/// A step of core/update, scaled by each push.
template <update_step Step>
class step_function final : public update_function {
 public:
  explicit step_function(const Step& step) : step_(step) {}
  std::size_t states() const override { return step_.states(); }
  void apply(std::span<float> values, std::span<const float> pushed, std::span<const std::span<float>> optimizer_state,
             std::uint64_t count, float scale) const override {
    auto step = step_;
    if constexpr (requires { step.learning_rate; }) step.learning_rate *= decltype(step.learning_rate){scale};
    if constexpr (requires { step.weight; }) step.weight = scale;
    if constexpr (requires { step.count; }) step.count = count;
    std::array<std::span<float>, 2> states;
    std::ranges::copy(optimizer_state, states.begin());
    update(step, values, pushed, states);
  }

 private:
  Step step_;
};

using update_pointer = std::shared_ptr<const update_function>;
using maker = std::function<update_pointer(spec_reader&)>;

template <update_step Step>
update_pointer function_of(const Step& step) {
  return std::make_shared<step_function<Step>>(step);
}

inline float decay_of(spec_reader& spec) { return static_cast<float>(spec.number_of("decay", 0.0, 0.0, false)); }
inline float rate_of(spec_reader& spec) { return static_cast<float>(spec.number("rate", 0.0, false)); }

inline update_pointer make_sgd(spec_reader& spec) {
  sgd_step<float> step{.learning_rate = rate_of(spec), .nesterov = spec.name() == "nesterov"};
  if (spec.name() != "sgd") {
    step.momentum = static_cast<float>(spec.number("momentum", 0.0, false));
    if (step.momentum >= 1)
      spec.refuse("with a momentum of 1 or more velocities grow without bound", "write such as momentum:0.1,0.9");
  }
  step.decay = decay_of(spec);
  return function_of(step);
}

inline update_pointer make_adagrad(spec_reader& spec) {
  return function_of(adagrad_step<float>{.learning_rate = rate_of(spec), .decay = decay_of(spec)});
}

inline update_pointer make_adam(spec_reader& spec) {
  const double rate = spec.number("rate", 0.0, false);
  return function_of(adam_step<float>{
      .learning_rate = rate, .decay = spec.number_of("decay", 0.0, 0.0, false), .decoupled = spec.name() == "adamw"});
}

struct registry {
  std::mutex mutex;
  std::map<std::string, maker> makers = {{"assign", [](spec_reader&) { return function_of(assign_step<float>{}); }},
                                         {"add", [](spec_reader&) { return function_of(add_step<float>{}); }},
                                         {"sgd", make_sgd},
                                         {"momentum", make_sgd},
                                         {"nesterov", make_sgd},
                                         {"adagrad", make_adagrad},
                                         {"adam", make_adam},
                                         {"adamw", make_adam}};
};

inline registry& update_registry() {
  static registry all;
  return all;
}

inline std::vector<std::string> names_of(const registry& all) {
  std::vector<std::string> names;
  for (const auto& [name, factory] : all.makers) names.push_back(name);
  return names;
}

[[noreturn]] inline void refuse_table(const table_spec& spec, const std::string& reason,
                                      const std::string& suggestion) {
  throw configuration_error("table '" + spec.name + "' cannot be made (" + reason + "); " + suggestion);
}

// Throws configuration_error for a table that no server can hold, or whose name another table has.
inline void check_table(const table_spec& spec, const std::vector<table_spec>& tables) {
  if (spec.name.empty()) refuse_table(spec, "it has no name", "give it one");
  const auto namesakes = std::ranges::count_if(tables, [&](const auto& other) { return other.name == spec.name; });
  if (namesakes != 1) refuse_table(spec, "another table has the same name", "give each table a unique name");
  if (spec.width == 0) refuse_table(spec, "its rows have no elements", "choose a width from 1");
  if (spec.size != 0 && (spec.most_rows != 0 || spec.most_age != 0))
    refuse_table(spec, "a dense table keeps all its elements", "bound only sparse tables");
  if (spec.leases && (spec.size != 0 || spec.width != 1 || spec.ranges > 1))
    refuse_table(spec, "a table of leases has no values", "give it a name alone");
  if (spec.initial_values && (spec.size == 0 || spec.leases))
    refuse_table(spec, "its elements are 0 at first", "give initial values to a dense table, or push them");
  (void)make_update(spec.update);
}

}  // namespace detail

MUSTER_INLINE table_layout::table_layout(std::vector<table_spec> tables, std::size_t servers)
    : tables_(std::move(tables)) {
  servers = std::max<std::size_t>(1, servers);
  for (std::uint32_t index = 0; index < tables_.size(); ++index) {
    const auto& spec = tables_[index];
    detail::check_table(spec, tables_);
    first_.push_back(static_cast<range_id>(ranges_.size()));
    if (spec.size == 0) {
      length_.push_back(1);
      const std::size_t chosen = spec.leases ? 1 : servers * detail::ranges_a_server;
      ranges_.resize(ranges_.size() + (spec.ranges != 0 ? spec.ranges : chosen), {index, 0, 0});
    } else {
      const auto good =
          std::clamp<std::size_t>(spec.size / (servers * detail::good_range), 1, detail::ranges_a_server) * servers;
      const auto pieces = spec.ranges != 0 ? spec.ranges : std::min(good, (spec.size - 1) / detail::smallest_range + 1);
      const auto length = std::min(largest_range, ((spec.size - 1) / pieces / 16 + 1) * 16);
      length_.push_back(length);
      for (std::size_t begin = 0; begin < spec.size; begin += length)
        ranges_.push_back({index, begin, std::min(length, spec.size - begin)});
    }
    if (ranges_.size() > most_ranges)
      detail::refuse_table(spec, "the tables would have more than " + std::to_string(most_ranges) + " ranges",
                           "make them smaller");
  }
  first_.push_back(static_cast<range_id>(ranges_.size()));
}

MUSTER_INLINE std::shared_ptr<const update_function> make_update(std::string_view text) {
  spec_reader spec("update function", text);
  auto& all = detail::update_registry();
  detail::maker make;
  {
    const std::lock_guard lock(all.mutex);
    make = all.makers.at(spec.name(detail::names_of(all), "one of these"));
  }
  auto function = make(spec);
  spec.finish("sgd:0.1,decay=1e-4, or the name alone");
  return function;
}

MUSTER_INLINE void register_update(const std::string& name, detail::maker make) {
  auto& all = detail::update_registry();
  const std::lock_guard lock(all.mutex);
  muster::detail::require_registrable("update function", name, detail::names_of(all), make != nullptr);
  all.makers.emplace(name, std::move(make));
}

}}}  // namespace muster::v0::ps
