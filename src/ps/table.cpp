#include <muster/ps/table.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include <muster/core/error.hpp>
#include <muster/core/update.hpp>

namespace muster { inline namespace v0 { namespace ps {
namespace {

constexpr std::size_t ranges_a_server = 8;  // at most, unless they would be larger than the largest
// Elements. Smaller ranges only cost messages: with 8 of 128 KiB a push of 1 MiB over tcp takes 1.2 times as long.
constexpr std::size_t good_range = 128 * 1024;
constexpr std::size_t smallest_range = 1024;  // even where not every server has one then

// ---- update functions that are known by name ----

/// A step of core/update, of which each push says the scale.
template <update_step Step>
class step_function final : public update_function {
 public:
  explicit step_function(const Step& step) : step_(step) {}
  std::size_t states() const override { return step_.states(); }
  void apply(std::span<float> values, std::span<const float> pushed, std::span<const std::span<float>> state,
             std::uint64_t count, float scale) const override {
    auto step = step_;
    if constexpr (requires { step.learning_rate; }) step.learning_rate *= decltype(step.learning_rate){scale};
    if constexpr (requires { step.weight; }) step.weight = scale;
    if constexpr (requires { step.count; }) step.count = count;
    std::array<std::span<float>, 2> states;
    std::ranges::copy(state, states.begin());
    update(step, values, pushed, states);
  }

 private:
  Step step_;
};

using made_update = std::shared_ptr<const update_function>;
using maker = std::function<made_update(spec_reader&)>;

template <update_step Step>
made_update function_of(const Step& step) {
  return std::make_shared<step_function<Step>>(step);
}

float decay_of(spec_reader& spec) { return static_cast<float>(spec.number_of("decay", 0.0, 0.0, false)); }
float rate_of(spec_reader& spec) { return static_cast<float>(spec.number("rate", 0.0, false)); }

made_update make_sgd(spec_reader& spec) {
  sgd_step<float> step{.learning_rate = rate_of(spec), .nesterov = spec.name() == "nesterov"};
  if (spec.name() != "sgd") {
    step.momentum = static_cast<float>(spec.number("momentum", 0.0, false));
    if (step.momentum >= 1)
      spec.refuse("with a momentum of 1 or more velocities grow without bound", "write such as momentum:0.1,0.9");
  }
  step.decay = decay_of(spec);
  return function_of(step);
}

made_update make_adagrad(spec_reader& spec) {
  return function_of(adagrad_step<float>{.learning_rate = rate_of(spec), .decay = decay_of(spec)});
}

made_update make_adam(spec_reader& spec) {
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

registry& known() {
  static registry all;
  return all;
}

std::vector<std::string> names_of(const registry& all) {
  std::vector<std::string> names;
  for (const auto& [each, its] : all.makers) names.push_back(each);
  return names;
}

}  // namespace

table_layout::table_layout(std::vector<table_spec> tables, std::size_t servers) : tables_(std::move(tables)) {
  const auto refuse = [](const table_spec& one, const std::string& why, const std::string& suggestion) {
    throw configuration_error("table '" + one.name + "' cannot be made (" + why + "); " + suggestion);
  };
  servers = std::max<std::size_t>(1, servers);
  for (std::uint32_t index = 0; index < tables_.size(); ++index) {
    const auto& one = tables_[index];
    if (one.name.empty()) refuse(one, "it has no name", "give it one");
    const auto same = std::ranges::count_if(tables_, [&](const auto& other) { return other.name == one.name; });
    if (same != 1) refuse(one, "another has its name", "give each table a name of its own");
    if (one.width == 0) refuse(one, "its rows have no elements", "choose a width from 1");
    if (one.size != 0 && (one.most_rows != 0 || one.most_age != 0))
      refuse(one, "a dense table keeps all its elements", "bound only sparse tables");
    if (one.leases && (one.size != 0 || one.width != 1 || one.ranges > 1))
      refuse(one, "a table of leases has no values", "give it a name alone");
    (void)make_update(one.update);
    first_.push_back(static_cast<range_id>(ranges_.size()));
    if (one.size == 0) {
      length_.push_back(1);
      const std::size_t chosen = one.leases ? 1 : servers * ranges_a_server;
      ranges_.resize(ranges_.size() + (one.ranges != 0 ? one.ranges : chosen), {index, 0, 0});
    } else {
      const auto good = std::clamp<std::size_t>(one.size / (servers * good_range), 1, ranges_a_server) * servers;
      const auto pieces = one.ranges != 0 ? one.ranges : std::min(good, (one.size - 1) / smallest_range + 1);
      const auto length = std::min(largest_range, ((one.size - 1) / pieces / 16 + 1) * 16);
      length_.push_back(length);
      for (std::size_t begin = 0; begin < one.size; begin += length)
        ranges_.push_back({index, begin, std::min(length, one.size - begin)});
    }
    if (ranges_.size() > most_ranges)
      refuse(one, "the tables would have more than " + std::to_string(most_ranges) + " ranges", "make them smaller");
  }
  first_.push_back(static_cast<range_id>(ranges_.size()));
}

std::shared_ptr<const update_function> make_update(std::string_view text) {
  spec_reader spec("update function", text);
  auto& all = known();
  maker make;
  {
    const std::lock_guard lock(all.mutex);
    make = all.makers.at(spec.name(names_of(all), "one of these"));
  }
  auto made = make(spec);
  spec.finish("sgd:0.1,decay=1e-4, or the name alone");
  return made;
}

void register_update(const std::string& name, maker make) {
  auto& all = known();
  const std::lock_guard lock(all.mutex);
  muster::detail::require_registrable("update function", name, names_of(all), make != nullptr);
  all.makers.emplace(name, std::move(make));
}

}}}  // namespace muster::v0::ps
