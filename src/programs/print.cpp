#include "print.hpp"

#include <cstdio>

namespace {

/// "18.3 KiB": sizes as people compare them.
std::string spelled_size(double bytes) {
  const bool whole = bytes < 1024;
  const char* unit = "B";
  for (const char* larger : {"KiB", "MiB", "GiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = larger;
  }
  char line[32];
  std::snprintf(line, sizeof line, "%.*f %s", bytes < 10 && !whole ? 1 : 0, bytes, unit);
  return line;
}

/// The times of one collective as a table: a line for each size, a column for each algorithm.
void print_times(muster::collective kind, const std::vector<muster::measured_time>& times) {
  std::string head;
  std::string lines;
  char cell[32];
  std::size_t first = 0;  // size
  std::size_t bytes = 0;
  for (const auto& t : times) {
    if (t.kind != kind) continue;
    if (first == 0) first = t.bytes;
    if (t.bytes == first) {
      std::snprintf(cell, sizeof cell, "%20s", std::string(to_string(t.algorithm)).c_str());
      head += cell;
    }
    if (t.bytes != bytes) {
      std::snprintf(cell, sizeof cell, "\n  %-14s", spelled_size(static_cast<double>(t.bytes)).c_str());
      lines += cell;
    }
    bytes = t.bytes;
    std::snprintf(cell, sizeof cell, "%17.2f us", 1e6 * t.seconds);
    lines += cell;
  }
  std::printf("%-16s%s%s\n", std::string(to_string(kind)).c_str(), head.c_str(), lines.c_str());
}

}  // namespace

json describe_costs(const muster::transport_costs& costs) {
  return {{"latency", costs.latency}, {"per_byte", costs.per_byte}, {"reduce_per_byte", costs.reduce_per_byte}};
}

json describe_choices(std::span<const muster::choices::row> rows) {
  json list = json::array();
  for (const auto& row : rows) {
    const json below = row.below == muster::algorithm_rules::no_limit ? json() : json(row.below);
    list.push_back(json::array({below, to_string(row.algorithm)}));
  }
  return list;
}

std::string text(const json& value) { return value.get<std::string>(); }

void print_costs(const char* indent, const std::string& name, const json& costs) {
  std::printf("%s%-12s latency %.3g us, %.3g ns a byte, reduction %.3g ns a byte\n", indent, name.c_str(),
              1e6 * costs["latency"].get<double>(), 1e9 * costs["per_byte"].get<double>(),
              1e9 * costs["reduce_per_byte"].get<double>());
}

/// "allreduce       up to 4.0 KiB recursive_doubling, above ring"
void print_choices(const json& choices) {
  for (const auto& [kind, rows] : choices.items()) {
    std::string line;
    for (const auto& row : rows) {
      if (!line.empty()) line += ", ";
      if (!row[0].is_null()) {
        line += "up to " + spelled_size(row[0].get<double>()) + " ";
      } else if (rows.size() > 1) {
        line += "above ";
      }
      line += text(row[1]);
    }
    std::printf("  %-16s%s\n", kind.c_str(), line.c_str());
  }
}

void print_measured(const muster::algorithm_profile& profile, const std::vector<muster::measured_time>& times) {
  std::printf("%d ranks over %s; median time of the slowest rank\n", profile.ranks, profile.transport.c_str());
  for (const auto& [kind, rows] : profile.chosen) print_times(kind, times);
  print_costs("", "fitted", describe_costs(profile.costs));
  std::printf("fastest\n");
  json choices = json::object();
  for (const auto& [kind, rows] : profile.chosen) choices[std::string(to_string(kind))] = describe_choices(rows);
  print_choices(choices);
}
