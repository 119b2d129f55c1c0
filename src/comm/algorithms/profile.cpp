#include <muster/comm/algorithms/profile.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include <muster/comm/algorithms/registry.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>

namespace muster::inline v0 {
namespace {

using json = nlohmann::ordered_json;

constexpr int format_version = 1;

// Reads a profile and knows where it comes from, for its complaints.
struct reader {
  const std::string& origin;

  [[noreturn]] void refuse(const std::string& why) const {
    throw configuration_error(origin + " is not a profile (" + why +
                              "); make one with muster-info --calibrate --save FILE");
  }

  const json& member(const json& object, const char* name, bool (json::*is)() const noexcept, const char* type) const {
    const auto found = object.find(name);
    if (found == object.end()) refuse("it has no '" + std::string(name) + "'");
    if (!((*found).*is)()) refuse("'" + std::string(name) + "' is not " + type);
    return *found;
  }

  [[nodiscard]] double constant(const json& constants, const char* name) const {
    const double value = member(constants, name, &json::is_number, "a number").get<double>();
    if (!std::isfinite(value) || value < 0) refuse("'" + std::string(name) + "' is not 0 or more");
    return value;
  }

  template <class Names>
  auto named(const Names& all, const std::string& what, const std::string& name) const {
    std::vector<std::string> known;
    for (const auto each : all) {
      if (to_string(each) == name) return each;
      known.emplace_back(to_string(each));
    }
    const auto meant = closest(name, known);
    refuse("no " + what + " is named '" + name + "'" + (meant ? ", did you mean " + *meant + "?" : ""));
  }

  [[nodiscard]] std::vector<choices::row> rows(const std::string& name, collective kind, const json& list) const {
    const auto has = algorithms_of(kind);
    std::vector<choices::row> made;
    if (!list.is_array() || list.empty()) refuse("the choices of " + name + " are not a list");
    for (const auto& entry : list) {
      const bool last = made.size() + 1 == list.size();
      const bool is_pair = entry.is_array() && entry.size() == 2 && entry[1].is_string();
      if (!is_pair || !(last ? entry[0].is_null() : entry[0].is_number_unsigned()))
        refuse("row " + std::to_string(made.size()) + " of " + name + " is not [bytes, algorithm], null in the last");
      const auto how = named(known_algorithms(), "algorithm", entry[1].get<std::string>());
      if (std::find(has.begin(), has.end(), how) == has.end())
        refuse(name + " has no algorithm " + std::string(to_string(how)));
      const std::size_t below = last ? algorithm_rules::no_limit : entry[0].get<std::size_t>();
      if (below <= (made.empty() ? 0 : made.back().below)) refuse("the sizes of " + name + " do not rise");
      made.push_back({below, how});
    }
    return made;
  }

  [[nodiscard]] algorithm_profile read(std::string_view text) const {
    const auto whole = json::parse(text);
    if (!whole.is_object()) refuse("it is JSON, but not an object");
    const auto& format = member(whole, "format", &json::is_number_integer, "a whole number");
    if (format != format_version)
      refuse("its format is " + format.dump() + ", and this muster reads " + std::to_string(format_version));
    algorithm_profile made;
    made.transport = member(whole, "transport", &json::is_string, "a name").get<std::string>();
    const auto& ranks = member(whole, "ranks", &json::is_number_integer, "a whole number");
    if (ranks < 1 || ranks > 1'000'000) refuse("'ranks' is not a number of ranks");
    made.ranks = ranks.get<int>();
    const auto& constants = member(whole, "constants", &json::is_object, "an object");
    made.costs = {constant(constants, "latency"), constant(constants, "per_byte"),
                  constant(constants, "reduce_per_byte")};
    for (const auto& [name, list] : member(whole, "choices", &json::is_object, "an object").items()) {
      const auto kind = named(all_collectives, "collective", name);
      made.chosen[kind] = rows(name, kind, list);
    }
    return made;
  }
};

using vector3 = std::array<double, 3>;

std::vector<choices::row> fastest(collective kind, std::span<const measured_time> times) {
  std::map<std::size_t, std::map<algorithm, double>> by_size;
  for (const auto& t : times) {
    if (t.kind == kind) by_size[t.bytes][t.algorithm] = t.seconds;
  }
  constexpr double noise = 0.95;
  std::vector<choices::row> made;
  std::size_t before = 0;
  for (const auto& [bytes, candidates] : by_size) {
    const algorithm current = made.empty() ? algorithms_of(kind).front() : made.back().algorithm;
    const auto kept = candidates.find(current);
    auto best = std::min_element(candidates.begin(), candidates.end(),
                                 [](const auto& a, const auto& b) { return a.second < b.second; });
    if (kept != candidates.end() && best->second >= noise * kept->second) best = kept;
    if (made.empty()) {
      made.push_back({algorithm_rules::no_limit, best->first});
    } else if (best->first != current) {
      made.back().below =
          static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(before) * static_cast<double>(bytes))));
      made.push_back({algorithm_rules::no_limit, best->first});
    }
    before = bytes;
  }
  return made;
}

}  // namespace

const std::vector<choices::row>* algorithm_profile::rows(collective kind) const noexcept {
  const auto found = chosen.find(kind);
  return found == chosen.end() ? nullptr : &found->second;
}

bool algorithm_profile::has(algorithm how) const noexcept {
  return std::any_of(chosen.begin(), chosen.end(), [&](const auto& entry) {
    return std::any_of(entry.second.begin(), entry.second.end(), [&](const auto& row) { return row.algorithm == how; });
  });
}

bool algorithm_profile::operator==(const algorithm_profile& other) const noexcept {
  return transport == other.transport && ranks == other.ranks && costs.latency == other.costs.latency &&
         costs.per_byte == other.costs.per_byte && costs.reduce_per_byte == other.costs.reduce_per_byte &&
         chosen == other.chosen;
}

std::string algorithm_profile::to_json() const {
  json tables = json::object();
  for (const auto& [kind, rows] : chosen) {
    auto& list = tables[std::string(to_string(kind))] = json::array();
    for (const auto& row : rows) {
      const json below = row.below == algorithm_rules::no_limit ? json() : json(row.below);
      list.push_back(json::array({below, to_string(row.algorithm)}));
    }
  }
  const json whole = {
      {"format", format_version},
      {"muster", library_version()},
      {"transport", transport},
      {"ranks", ranks},
      {"constants",
       {{"latency", costs.latency}, {"per_byte", costs.per_byte}, {"reduce_per_byte", costs.reduce_per_byte}}},
      {"choices", tables}};
  return whole.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

algorithm_profile algorithm_profile::parse(std::string_view text, const std::string& origin) {
  const reader from{origin};
  try {
    return from.read(text);
  } catch (const json::exception& broken) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ...": what is behind the bracket.
    const std::string why = broken.what();
    from.refuse(why.substr(std::min(why.find(']') + 2, why.size())));
  }
}

algorithm_profile algorithm_profile::load(const std::string& path, const std::string& origin) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) {
    throw configuration_error(origin + " cannot be '" + path +
                              "' (the file cannot be read); make one with muster-info --calibrate --save FILE");
  }
  std::ostringstream text;
  text << file.rdbuf();  // nothing from a folder, which is no profile either
  return parse(text.str(), origin + ": '" + path + "'");
}

transport_costs fit_costs(std::span<const measured_time> times, int ranks, const transport_costs& known) {
  // The model is linear in its constants: what each is multiplied with, over the time, should sum up to 1.
  std::array<vector3, 3> matrix{};
  vector3 right{};
  for (const auto& t : times) {
    if (t.algorithm == algorithm::native || t.seconds <= 0) continue;
    const auto factor = [&](transport_costs unit) {
      unit.next_message = known.next_message;
      unit.ranks_a_core = known.ranks_a_core;
      return estimate(t.kind, t.algorithm, t.bytes, ranks, unit) / t.seconds;
    };
    const vector3 row{factor({1, 0, 0}), factor({0, 1, 0}), factor({0, 0, 1})};
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) matrix[i][j] += row[i] * row[j];
      right[i] += row[i];
    }
  }
  // The least squares with no constant below 0: one after the other is set to its best (projected Gauss-Seidel), which
  // comes to the least of a convex function. Constants that go together take the most turns.
  constexpr int turns = 20'000;
  vector3 x{};
  for (int turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i < 3; ++i) {
      const double rest = right[i] - matrix[i][0] * x[0] - matrix[i][1] * x[1] - matrix[i][2] * x[2];
      if (matrix[i][i] > 0) x[i] = std::max(0.0, x[i] + rest / matrix[i][i]);
    }
  }
  return {x[0], x[1], x[2], known.next_message, known.ranks_a_core};
}

algorithm_profile make_profile(const transport_abilities& transport, int ranks, std::span<const measured_time> times) {
  algorithm_profile made;
  made.transport = transport.name;
  made.ranks = ranks;
  made.costs = fit_costs(times, ranks, transport.costs);
  for (const collective kind : all_collectives) {
    if (auto rows = fastest(kind, times); !rows.empty()) made.chosen[kind] = std::move(rows);
  }
  return made;
}

}  // namespace muster::inline v0
