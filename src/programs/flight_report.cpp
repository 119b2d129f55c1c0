#include "flight_report.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>

namespace {

using members = std::map<int, const recorded_group*>;   // Ranks in one group.
using alike = std::map<std::string, std::vector<int>>;  // Ranks, by their description.

std::string list_of(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + muster::format_ranks(ranks);
}

// Returns the ranks by their call with this number. Empty if a rank has not made the call or no longer remembers the
// call.
alike calls_at(std::uint64_t number, const members& all) {
  alike ranks_by_call;
  for (const auto& [rank, group] : all) {
    const auto found = group->ring.find(number);
    if (found == group->ring.end()) return {};
    ranks_by_call[found->second].push_back(rank);
  }
  return ranks_by_call;
}

// Returns the first remembered call that differs between ranks with full records.
std::string first_difference(const members& all) {
  std::uint64_t number = 0;
  for (const auto& [rank, group] : all) number = std::max(number, group->ring.empty() ? 0 : group->ring.begin()->first);
  for (auto calls = calls_at(number, all); !calls.empty(); calls = calls_at(++number, all)) {
    if (calls.size() == 1) continue;
    std::string text = "the ranks part at call " + std::to_string(number) + ":";
    for (const auto& [call, ranks] : calls) text += " " + list_of(ranks) + " called " + call + ";";
    return text;
  }
  return {};
}

std::string place_of(const recorded_group& group, std::uint64_t furthest) {
  const auto at = group.ring.find(group.done);
  if (at != group.ring.end()) return "wait in call " + std::to_string(group.done) + " (" + at->second + ")";
  std::string text = "missing: not in call " + std::to_string(furthest);
  if (!group.ring.empty()) text += "; the last was call " + std::to_string(group.ring.rbegin()->first);
  return text + (group.ring.empty() ? "" : " (" + group.ring.rbegin()->second + ")");
}

void explain_group(std::uint64_t group_id, const members& all, std::vector<std::string>& lines) {
  const auto is_waiting = [](const auto& entry) { return entry.second->ring.contains(entry.second->done); };
  if (std::ranges::none_of(all, is_waiting)) return;
  std::uint64_t furthest = 0;
  for (const auto& [rank, group] : all) furthest = std::max(furthest, group->done);
  const int size = all.begin()->second->size;
  alike places;
  for (int rank = 0; rank < size; ++rank) {
    const auto found = all.find(rank);
    places[found == all.end() ? "missing: in no collective, or stopped (there is no record)"
                              : place_of(*found->second, furthest)]
        .push_back(rank);
  }
  const std::string group = group_id == 0 ? "world" : "group " + std::to_string(group_id);
  for (const auto& [place, ranks] : places)
    lines.push_back(group + " of " + std::to_string(size) + ": " + list_of(ranks) + ": " + place);
  if (const auto parted = first_difference(all); !parted.empty()) lines.push_back(group + ": " + parted);
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
    std::uint64_t number = 0;
    words >> kind;
    if (kind == "process") words >> read.process;
    if (kind == "status") words >> read.status;
    if (kind == "group" && words >> number) {
      group = &read.groups[number];
      words >> group->rank >> group->size >> group->done;
      if (group->size > muster::most_ranks || group->rank < 0 || group->rank >= group->size) return std::nullopt;
    }
    if (kind == "call" && group != nullptr) {
      double ignored = 0;
      words >> number >> ignored >> ignored >> ignored;
      std::getline(words >> std::ws, group->ring[number]);
    }
    if (words.fail()) return std::nullopt;
  }
  return read;
}

std::vector<flight_record> read_flight_records(const std::filesystem::path& folder) {
  std::vector<flight_record> read;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != ".record") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    auto record = parse_flight_record(std::string{std::istreambuf_iterator<char>(file), {}});
    if (!record) continue;
    record->file = entry.path();
    read.push_back(std::move(*record));
  }
  return read;
}

std::vector<std::string> explain_hang(const std::vector<flight_record>& records) {
  std::map<std::uint64_t, members> groups;
  for (const auto& record : records) {
    for (const auto& [id, group] : record.groups) groups[id].emplace(group.rank, &group);
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
