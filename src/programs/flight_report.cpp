#include "flight_report.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <utility>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>

namespace {

using members = std::map<int, const recorded_group*>;  // of one group, by rank

std::string list_of(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + muster::format_ranks(ranks);
}

std::string seconds_of(double span) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", span);
  return text;
}

std::string name_of(std::uint64_t number, const recorded_call& call) {
  return "call " + std::to_string(number) + " (" + call.what + ")";
}

// The first call that all of them remember and not all made alike.
std::optional<std::string> first_difference(const members& all) {
  std::uint64_t from = 0;
  std::uint64_t until = ~std::uint64_t{0};
  for (const auto& [rank, its] : all) {
    if (its->ring.empty()) return std::nullopt;
    from = std::max(from, its->ring.begin()->first);
    until = std::min(until, its->calls);
  }
  for (auto number = from; number < until; ++number) {
    std::map<std::string, std::vector<int>> by_call;
    for (const auto& [rank, its] : all) {
      const auto found = its->ring.find(number);
      if (found == its->ring.end()) return std::nullopt;
      by_call[found->second.what].push_back(rank);
    }
    if (by_call.size() == 1) continue;
    std::string text = "the ranks part at call " + std::to_string(number) + ":";
    for (const auto& [what, ranks] : by_call) text += " " + list_of(ranks) + " called " + what + ";";
    return text;
  }
  return std::nullopt;
}

void explain_group(std::uint64_t id, const members& all, std::vector<std::string>& lines) {
  const auto size = all.begin()->second->size;
  std::map<std::uint64_t, std::vector<int>> waiting;  // ranks, by the call that they are in
  std::vector<int> silent;
  std::uint64_t furthest = 0;
  for (int rank = 0; rank < size; ++rank) {
    const auto found = all.find(rank);
    if (found == all.end()) {
      silent.push_back(rank);
    } else if (const auto& its = *found->second; its.done < its.calls) {
      waiting[its.done].push_back(rank);
    }
    if (found != all.end()) furthest = std::max(furthest, found->second->done);
  }
  if (waiting.empty()) return;
  const std::string group = id == 0 ? "world" : "group " + std::to_string(id);
  for (const auto& [number, ranks] : waiting) {
    const auto& call = all.at(ranks.front())->ring.at(number);
    lines.push_back(group + " of " + std::to_string(size) + ": " + list_of(ranks) + " waited in " +
                    name_of(number, call) + ", " + std::to_string(call.bytes) + " bytes, for " + seconds_of(call.took));
  }
  if (!silent.empty())
    lines.push_back(group + ": missing: " + list_of(silent) + " (in no collective, or stopped: there is no record)");
  if (const auto parted = first_difference(all)) return lines.push_back(group + ": " + *parted);
  for (const auto& [rank, its] : all) {
    if (its->calls > furthest) continue;  // it came to where the others wait
    const auto last = its->ring.find(its->calls - 1);
    lines.push_back(group + ": missing: rank " + std::to_string(rank) + " has not come to call " +
                    std::to_string(furthest) +
                    (last == its->ring.end() ? "" : "; its last was " + name_of(last->first, last->second)));
  }
}

}  // namespace

std::optional<flight_record> parse_flight_record(std::string_view text) {
  std::istringstream lines{std::string(text)};
  std::string line;
  flight_record read;
  recorded_group* group = nullptr;
  if (!std::getline(lines, line) || line != "muster-flight-record 1") return std::nullopt;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "process") words >> read.process;
    if (kind == "status") words >> read.status;
    if (kind == "why") std::getline(words >> std::ws, read.why);
    if (kind == "group") {
      std::uint64_t id = 0;
      words >> id;
      group = &read.groups[id];
      words >> group->rank >> group->size >> group->calls >> group->done;
      if (group->size > muster::most_ranks || group->rank < 0 || group->rank >= group->size) return std::nullopt;
    }
    if (kind == "call" && group != nullptr) {
      std::uint64_t number = 0;
      recorded_call call;
      words >> number >> call.bytes >> call.state >> call.began >> call.took;
      std::getline(words >> std::ws, call.what);
      if (words) group->ring[number] = std::move(call);
    }
    if (words.fail()) return std::nullopt;
  }
  return read;
}

std::vector<std::string> explain_hang(const std::vector<flight_record>& records) {
  std::map<std::uint64_t, members> groups;
  for (const auto& one : records) {
    for (const auto& [id, its] : one.groups) {
      if (its.ring.contains(its.done) || its.done == its.calls) groups[id].emplace(its.rank, &its);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [id, all] : groups) explain_group(id, all, lines);
  return lines;
}

std::string stacks_of(long process) {
  const std::string command = "eu-stack -p " + std::to_string(process) + " 2>/dev/null";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::string text;
  char piece[4096];
  for (std::size_t n = 0; pipe && (n = std::fread(piece, 1, sizeof piece, pipe.get())) > 0;) text.append(piece, n);
  return text.empty() ? "no stack (eu-stack cannot be run; Debian has it in elfutils)\n" : text;
}
