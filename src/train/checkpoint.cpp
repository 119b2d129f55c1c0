#include <muster/train/checkpoint.hpp>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>

#include "checkpoint_file.hpp"
#include "octets.hpp"

namespace muster::inline v0 {

using detail::checkpoint_head;
using detail::checkpoint_image;
using detail::checkpoint_part;
using detail::checkpoint_rank;

namespace {

std::uint64_t draw_id() {
  return muster::digest()
      .add(static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()))
      .add(static_cast<std::uint64_t>(::getpid()))
      .value();
}

/// Sends text from one rank to all; empty means that all is well.
std::string tell_all(group& ranks, std::string text, int from) {
  std::uint64_t size = text.size();
  broadcast(ranks, std::span(&size, 1), from);
  text.resize(static_cast<std::size_t>(size));
  if (size > 0) broadcast(ranks, detail::octets(std::as_writable_bytes(std::span(text))), from);
  return text;
}

/// The first rank's that has one.
std::string first_problem(group& ranks, const std::string& mine) {
  std::vector<std::uint8_t> troubled(static_cast<std::size_t>(ranks.size()));
  const std::uint8_t here = mine.empty() ? 0 : 1;
  allgather(ranks, std::span(&here, 1), troubled);
  const auto first = std::find(troubled.begin(), troubled.end(), std::uint8_t{1});
  if (first == troubled.end()) return {};
  const int rank = static_cast<int>(first - troubled.begin());
  const std::string text = tell_all(ranks, mine, rank);
  return ranks.size() == 1 ? text : "rank " + std::to_string(rank) + ": " + text;
}

/// The parts of one kind, as they are now.
class snapshot {
 public:
  snapshot(const std::vector<state_part>& parts, state_kind kind) {
    kept_.reserve(parts.size());  // views point into it
    for (const auto& part : parts) {
      if (part.kind != kind) continue;
      if (part.save) {
        kept_.push_back(part.save());
        parts_.push_back({part.name, kept_.back()});
      } else {
        parts_.push_back({part.name, part.bytes});
      }
    }
  }
  [[nodiscard]] const std::vector<checkpoint_part>& parts() const noexcept { return parts_; }

 private:
  std::vector<std::vector<std::byte>> kept_;
  std::vector<checkpoint_part> parts_;
};

/// What of a file does not fit the state ("..."); empty when it does. The file's parts come in the order of the
/// state's.
std::string misfit(const checkpoint_image& image, const std::vector<state_part>& parts, state_kind kind,
                   const std::string& path) {
  const auto told = [&](const std::string& what) {
    return path + ": this checkpoint is of something else (" + what + "); give it the model it was made with";
  };
  std::size_t at = 0;
  for (const auto& part : parts) {
    if (part.kind != kind) continue;
    if (at == image.parts.size() || image.parts[at].name != part.name) {
      return told(at == image.parts.size()
                      ? "it has no '" + part.name + "'"
                      : "it has '" + image.parts[at].name + "' where this state has '" + part.name + "'");
    }
    const auto& found = image.parts[at++];
    if (!part.save && found.bytes.size() != part.bytes.size()) {
      return told("its '" + part.name + "' has " + std::to_string(found.bytes.size()) + " bytes and this state's has " +
                  std::to_string(part.bytes.size()));
    }
  }
  if (at < image.parts.size()) return told("it has '" + image.parts[at].name + "' and this state does not");
  return {};
}

void put(const state_part& part, std::span<const std::byte> bytes) {
  if (part.load)
    part.load(bytes);
  else if (!bytes.empty())
    std::memcpy(part.bytes.data(), bytes.data(), bytes.size());
}

constexpr std::string_view ending = ".state";

/// "step-000000001200.1f...": steps and id, or nothing when it is no such name. What comes behind them is in `rest`.
std::optional<std::pair<std::uint64_t, std::uint64_t>> parse_name(std::string_view name, std::string_view& rest) {
  constexpr std::string_view begin = "step-";
  if (!name.starts_with(begin)) return std::nullopt;
  std::uint64_t steps = 0, id = 0;
  const char* const last = name.data() + name.size();
  const auto number = std::from_chars(name.data() + begin.size(), last, steps);
  if (number.ec != std::errc() || number.ptr == last || *number.ptr != '.') return std::nullopt;
  const auto digits = std::from_chars(number.ptr + 1, last, id, 16);
  if (digits.ec != std::errc()) return std::nullopt;
  rest = {digits.ptr, static_cast<std::size_t>(last - digits.ptr)};
  return std::pair{steps, id};
}

}  // namespace

struct checkpoint::found {
  std::uint64_t steps = 0;
  std::uint64_t id = 0;
  std::filesystem::file_time_type written;
};

checkpoint::checkpoint(std::string folder, const checkpoint_options& options)
    : folder_(std::move(folder)), options_(options) {
  if (options.keep == 0) {
    throw configuration_error(
        "a store of checkpoints cannot keep none (the last one is what a run goes on from); keep at least 1");
  }
  std::error_code trouble;
  std::filesystem::create_directories(folder_, trouble);
  require_writable(folder_ + "/step");
}

std::string checkpoint::name_of(std::uint64_t steps, std::uint64_t id) const {
  char name[64];
  std::snprintf(name, sizeof name, "/step-%012" PRIu64 ".%016" PRIx64, steps, id);
  return folder_ + name + std::string(ending);
}

std::string checkpoint::part_of(std::uint64_t steps, std::uint64_t id, int rank) const {
  std::string name = name_of(steps, id);
  name.resize(name.size() - ending.size());
  return name + ".rank-" + std::to_string(rank);
}

// Newest last.
std::vector<checkpoint::found> checkpoint::list() const {
  std::vector<found> all;
  std::error_code trouble;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, trouble)) {
    const std::string name = entry.path().filename().string();
    std::string_view rest;
    const auto parsed = parse_name(name, rest);
    if (parsed && rest == ending) all.push_back({parsed->first, parsed->second, entry.last_write_time(trouble)});
  }
  std::ranges::sort(all, {}, [](const found& one) { return std::tuple(one.steps, one.written, one.id); });
  return all;
}

std::vector<std::uint64_t> checkpoint::steps() const {
  std::vector<std::uint64_t> all;
  for (const auto& one : list()) all.push_back(one.steps);
  return all;
}

void checkpoint::save(group& ranks, state& of, double metric) {
  const auto& parts = of.parts();
  checkpoint_head head{
      .id = ranks.rank() == 0 ? draw_id() : 0, .metric = metric, .position = of.position(), .ranks = {}};
  broadcast(ranks, std::span(&head.id, 1), 0);

  checkpoint_rank mine;
  std::string problem;
  try {
    const snapshot own(parts, state_kind::rank_local);
    if (!own.parts().empty()) {
      checkpoint_head of_rank = head;
      of_rank.rank = static_cast<std::uint32_t>(ranks.rank());
      mine = detail::write_checkpoint(part_of(head.position.steps, head.id, ranks.rank()), of_rank, own.parts());
    }
  } catch (const error& failed) {
    problem = failed.what();
  }
  problem = first_problem(ranks, problem);
  if (!problem.empty()) throw configuration_error(problem);

  const std::uint64_t told[2] = {mine.bytes, mine.crc};
  std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(ranks.size()));
  allgather(ranks, std::span(told), all);
  if (ranks.rank() == 0) {
    for (std::size_t r = 0; r < all.size(); r += 2)
      head.ranks.push_back({all[r], static_cast<std::uint32_t>(all[r + 1])});
    try {
      const snapshot everyones(parts, state_kind::replicated);
      (void)detail::write_checkpoint(name_of(head.position.steps, head.id), head, everyones.parts());
      remove_old(head.id);
    } catch (const error& failed) {
      problem = failed.what();
    }
  }
  problem = tell_all(ranks, problem, 0);
  if (!problem.empty()) throw configuration_error(problem);
}

// All ranks have written what they had to: what is there of others is left over.
void checkpoint::remove_old(std::uint64_t newest) const {
  auto all = list();
  std::set<std::uint64_t> keep = {newest};
  for (std::size_t k = 0; k < std::min(options_.keep, all.size()); ++k) keep.insert(all[all.size() - 1 - k].id);
  std::optional<double> best;
  std::uint64_t id_of_best = newest;
  for (const auto& one : all) {
    try {  // the head and the table alone would do, but a best one that is damaged is none
      const auto path = name_of(one.steps, one.id);
      const double metric = detail::parse_checkpoint(detail::read_whole_file(path), path).head.metric;
      if (std::isnan(metric)) continue;
      if (best && (options_.smaller_is_better ? metric > *best : metric < *best)) continue;
      best = metric;
      id_of_best = one.id;
    } catch (const data_error&) {
    }
  }
  keep.insert(id_of_best);

  std::vector<std::filesystem::path> others;
  std::error_code trouble;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, trouble)) {
    const std::string name = entry.path().filename().string();
    std::string_view rest;
    const auto parsed = parse_name(name, rest);
    if (!parsed || (keep.contains(parsed->second) && !rest.ends_with(".tmp"))) continue;
    if (rest == ending)
      std::filesystem::remove(entry.path(), trouble);  // first, so that no checkpoint lacks a part
    else
      others.push_back(entry.path());
  }
  for (const auto& path : others) std::filesystem::remove(path, trouble);
}

bool checkpoint::load(group& ranks, state& of) {
  std::vector<std::uint64_t> names;
  if (ranks.rank() == 0) {
    for (const auto& one : list()) names.insert(names.end(), {one.steps, one.id});
  }
  std::uint64_t count = names.size();
  broadcast(ranks, std::span(&count, 1), 0);
  names.resize(static_cast<std::size_t>(count));
  if (count == 0) return false;
  broadcast(ranks, std::span(names), 0);

  const state_position before = of.position();
  std::string first;
  for (std::size_t k = names.size(); k > 0; k -= 2) {
    std::string why;
    if (load_one(ranks, of, names[k - 2], names[k - 1], why)) return true;
    if (ranks.rank() == 0) log(log_level::warning, "a checkpoint is left out: " + why);
    if (first.empty()) first = why;
  }
  of.move_to(before);
  throw data_error({.file = folder_},
                   "no checkpoint of this folder can be used (the newest: " + first + "); remove them to begin anew");
}

bool checkpoint::load_one(group& ranks, state& of, std::uint64_t steps, std::uint64_t id, std::string& why) {
  const auto& parts = of.parts();
  const std::string path = name_of(steps, id);
  std::vector<std::byte> file;
  checkpoint_image image;
  why.clear();
  if (ranks.rank() == 0) {
    try {
      file = detail::read_whole_file(path);
      image = detail::parse_checkpoint(file, path);
      image.head.position.evaluations = image.head.position.runs = 0;  // this start of the program has none yet
      why = misfit(image, parts, state_kind::replicated, path);
      if (why.empty() && (image.head.id != id || image.head.rank != checkpoint_head::replicated))
        why = path + ": this checkpoint was renamed (it is another one inside); give it its name back";
    } catch (const data_error& refused) {
      why = refused.what();
    }
  }
  why = tell_all(ranks, why, 0);
  if (!why.empty()) return false;

  // Where it is, and this rank's own part.
  broadcast(ranks, detail::octets(std::as_writable_bytes(std::span(&image.head.position, 1))), 0);
  std::uint64_t world = image.head.ranks.size();
  broadcast(ranks, std::span(&world, 1), 0);
  image.head.ranks.resize(static_cast<std::size_t>(world));
  if (world > 0) broadcast(ranks, detail::octets(std::as_writable_bytes(std::span(image.head.ranks))), 0);
  std::vector<std::byte> own_file;
  checkpoint_image own;
  const bool same_world = world == static_cast<std::uint64_t>(ranks.size());
  const checkpoint_rank mine =
      same_world ? image.head.ranks[static_cast<std::size_t>(ranks.rank())] : checkpoint_rank{};
  try {
    of.move_to(image.head.position);
    if (same_world && mine.bytes > 0) {
      const std::string own_path = part_of(steps, id, ranks.rank());
      own_file = detail::read_whole_file(own_path);
      own = detail::parse_checkpoint(own_file, own_path);
      if (own_file.size() != mine.bytes || crc32c(own_file) != mine.crc)
        why = own_path + ": this file is not of its checkpoint (its checksum is another); use another checkpoint";
      else
        why = misfit(own, parts, state_kind::rank_local, own_path);
    }
  } catch (const error& refused) {
    why = refused.what();
  }
  why = first_problem(ranks, why);
  if (!why.empty()) return false;

  std::size_t at = 0;
  std::vector<std::byte> bytes;
  std::string problem;
  for (const auto& part : parts) {
    if (part.kind != state_kind::replicated) continue;
    std::uint64_t size = ranks.rank() == 0 ? image.parts[at].bytes.size() : 0;
    broadcast(ranks, std::span(&size, 1), 0);
    bytes.assign(static_cast<std::size_t>(size), {});
    if (ranks.rank() == 0) bytes.assign(image.parts[at].bytes.begin(), image.parts[at].bytes.end());
    if (size > 0) broadcast(ranks, detail::octets(bytes), 0);
    try {
      if (problem.empty()) put(part, bytes);
    } catch (const error& refused) {
      problem = path + ": " + refused.what();
    }
    ++at;
  }
  at = 0;
  for (const auto& part : parts) {
    if (part.kind != state_kind::rank_local || own.parts.empty()) continue;
    try {
      if (problem.empty()) put(part, own.parts[at].bytes);
    } catch (const error& refused) {
      problem = path + ": " + refused.what();
    }
    ++at;
  }
  why = first_problem(ranks, problem);
  return why.empty();
}

}  // namespace muster::inline v0
