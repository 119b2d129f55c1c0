#include <muster/train/checkpoint.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
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

namespace muster::inline v0 {

using detail::checkpoint_head;
using detail::checkpoint_image;
using detail::checkpoint_part;
using detail::checkpoint_rank;

namespace {

// Bytes as collectives take them.
std::span<std::uint8_t> octets(std::span<std::byte> bytes) noexcept {
  return {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()};
}

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
  if (size > 0) broadcast(ranks, octets(std::as_writable_bytes(std::span(text))), from);
  return text;
}

/// Calls `part` at every rank, with something that it calls whenever it has got on, and returns what went wrong at the
/// first rank where something did. Files take as long as the disk does: ranks meet each time that one of them has got
/// on, so that the deadline of a collective is for a piece of a file and not for all of it.
std::string first_problem(group& ranks, const std::function<void(const std::function<void()>&)>& part) {
  enum : std::uint8_t { done, troubled, busy };
  std::vector<std::uint8_t> all(static_cast<std::size_t>(ranks.size()));
  const auto meet = [&](std::uint8_t mine) {
    allgather(ranks, std::span(&mine, 1), all);
    return std::ranges::find(all, std::uint8_t{busy}) != all.end();
  };
  std::string mine;
  try {
    part([&] { (void)meet(busy); });
  } catch (const error& failed) {  // where that is the group's failure, meeting once more throws it again
    mine = failed.what();
  }
  while (meet(mine.empty() ? done : troubled)) {
  }
  const auto first = std::ranges::find(all, std::uint8_t{troubled});
  if (first == all.end()) return {};
  const int rank = static_cast<int>(first - all.begin());
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

/// Throws when a file is not of such a state; its parts come in the order of the state's, which is as it was.
void require_fit(const checkpoint_image& image, const std::vector<state_part>& parts, state_kind kind,
                 const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    throw data_error({.file = path},
                     "this checkpoint does not fit this state (" + what + "); give it the model it was made with");
  };
  std::size_t at = 0;
  for (const auto& part : parts) {
    if (part.kind != kind) continue;
    if (at == image.parts.size() || image.parts[at].name != part.name) {
      refuse(at == image.parts.size()
                 ? "it has no '" + part.name + "'"
                 : "it has '" + image.parts[at].name + "' where this state has '" + part.name + "'");
    }
    const auto& found = image.parts[at++];
    if (part.load) {  // whether its owner can use them is the owner's to say
      const auto present = part.save();
      try {
        part.load(found.bytes);
      } catch (const error& refused) {
        throw data_error({.file = path}, refused.what());
      }
      part.load(present);
    } else if (found.bytes.size() != part.bytes.size()) {
      refuse("its '" + part.name + "' has " + std::to_string(found.bytes.size()) + " bytes and this state's has " +
             std::to_string(part.bytes.size()));
    }
  }
  if (at < image.parts.size()) refuse("it has '" + image.parts[at].name + "' and this state does not");
}

void put(const state_part& part, std::span<const std::byte> bytes) {
  if (part.load)
    part.load(bytes);
  else if (!bytes.empty())
    std::memcpy(part.bytes.data(), bytes.data(), bytes.size());
}

constexpr std::string_view ending = ".state";

/// "step-000000001200.1f...": steps and id, or nothing when it is no such name. What comes behind them is in `rest`.
std::optional<std::pair<std::uint64_t, std::uint64_t>> parse_name(const std::string& name, std::string_view& rest) {
  std::uint64_t steps = 0, id = 0;
  int length = 0;
  if (std::sscanf(name.c_str(), "step-%" SCNu64 ".%" SCNx64 "%n", &steps, &id, &length) != 2) return std::nullopt;
  rest = std::string_view(name).substr(static_cast<std::size_t>(length));
  return std::pair{steps, id};
}

}  // namespace

/// What was read of a checkpoint, and is not in the state yet.
struct checkpoint::content {
  std::vector<std::byte> file, own_file;
  checkpoint_image image, own;  // views of them

  void put_into(state& of) const {
    std::size_t of_all = 0, of_own = 0;
    for (const auto& part : std::as_const(of).parts()) {
      if (part.kind == state_kind::replicated)
        put(part, image.parts[of_all++].bytes);
      else if (!own.parts.empty())
        put(part, own.parts[of_own++].bytes);
    }
    of.move_to(place_in(of));
  }

  /// Where it was saved. What this start of the program has behind it stays.
  [[nodiscard]] state_position place_in(const state& of) const {
    state_position there = of.position();
    there.steps = image.head.position.steps;
    there.at = image.head.position.at;
    return there;
  }
};

struct checkpoint::found {
  std::uint64_t steps = 0;
  std::uint64_t id = 0;
  std::filesystem::file_time_type written;
};

checkpoint::checkpoint(std::string folder, const checkpoint_options& options)
    : folder_(std::move(folder)), options_(options) {
  if (options.keep == 0) {
    throw configuration_error(
        "a store of checkpoints cannot keep none (a run resumes from the last one); keep at least 1");
  }
  std::error_code trouble;
  std::filesystem::create_directories(folder_, trouble);
  if (trouble) {
    throw configuration_error("cannot make the folder of checkpoints '" + folder_ + "' (" + trouble.message() +
                              "); choose one in a folder that may be written");
  }
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

void checkpoint::save(session& by, state& of, double metric, const std::function<bool(step&)>& due) {
  by.evaluate(of, [&](step& now) {
    if (!due || due(now)) write(now.group(), of, metric);
  });
}

void checkpoint::write(group& ranks, const state& of, double metric) const {
  const auto& parts = of.parts();
  checkpoint_head head{
      .id = ranks.rank() == 0 ? draw_id() : 0, .metric = metric, .position = of.position(), .ranks = {}};
  broadcast(ranks, std::span(&head.id, 1), 0);

  checkpoint_rank mine;
  std::string problem = first_problem(ranks, [&](const auto& on_piece) {
    const snapshot own(parts, state_kind::rank_local);
    if (own.parts().empty()) return;
    checkpoint_head of_rank = head;
    of_rank.rank = static_cast<std::uint32_t>(ranks.rank());
    mine =
        detail::write_checkpoint(part_of(head.position.steps, head.id, ranks.rank()), of_rank, own.parts(), on_piece);
  });
  if (!problem.empty()) throw configuration_error(problem);

  const std::uint64_t told[2] = {mine.bytes, mine.crc};
  std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(ranks.size()));
  allgather(ranks, std::span(told), all);
  problem = first_problem(ranks, [&](const auto& on_piece) {
    if (ranks.rank() != 0) return;
    for (std::size_t r = 0; r < all.size(); r += 2)
      head.ranks.push_back({all[r], static_cast<std::uint32_t>(all[r + 1])});
    const snapshot everyones(parts, state_kind::replicated);
    (void)detail::write_checkpoint(name_of(head.position.steps, head.id), head, everyones.parts(), on_piece);
    remove_old(head.id);
  });
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
    try {
      const double metric = detail::read_checkpoint_head(name_of(one.steps, one.id)).metric;
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

// Until all ranks have all of it in memory it may fail, and nothing of the state has changed.
bool checkpoint::load(session& by, state& of) {
  std::optional<content> newest;
  by.evaluate(of, [&](step& now) { newest = read(now.group(), of); });
  if (newest) newest->put_into(of);
  return of.steps() > 0;
}

std::optional<checkpoint::content> checkpoint::read(group& ranks, state& of) const {
  std::vector<std::uint64_t> names;
  if (ranks.rank() == 0) {
    for (const auto& one : list()) names.insert(names.end(), {one.steps, one.id});
  }
  std::uint64_t count = names.size();
  broadcast(ranks, std::span(&count, 1), 0);
  names.resize(static_cast<std::size_t>(count));
  if (count == 0) return std::nullopt;
  broadcast(ranks, std::span(names), 0);

  std::string first;
  for (std::size_t k = names.size(); k > 0; k -= 2) {
    content one;
    const std::string why = read_one(ranks, of, names[k - 2], names[k - 1], one);
    if (why.empty()) return one;
    if (ranks.rank() == 0) log(log_level::warning, "a checkpoint is left out: " + why);
    if (first.empty()) first = why;
  }
  throw data_error({.file = folder_}, "no checkpoint of this folder can be used (the newest: " + first +
                                          "); remove them to start from the beginning");
}

/// Says what is wrong with it at the first rank where something is.
std::string checkpoint::read_one(group& ranks, state& of, std::uint64_t steps, std::uint64_t id, content& to) const {
  const std::string path = name_of(steps, id), own_path = part_of(steps, id, ranks.rank());
  std::string why = first_problem(ranks, [&](const auto& on_piece) {
    if (ranks.rank() == 0) to.file = detail::read_whole_file(path, on_piece);
  });
  if (!why.empty()) return why;
  std::uint64_t size = to.file.size();
  broadcast(ranks, std::span(&size, 1), 0);
  to.file.resize(static_cast<std::size_t>(size));
  for (std::size_t at = 0; at < to.file.size(); at += detail::checkpoint_piece) {  // a deadline is for one
    const auto left = std::span(to.file).subspan(at);
    broadcast(ranks, octets(left.first(std::min(left.size(), detail::checkpoint_piece))), 0);
  }

  const auto& parts = std::as_const(of).parts();
  return first_problem(ranks, [&](const auto& on_piece) {
    to.image = detail::parse_checkpoint(to.file, path);
    const auto& head = to.image.head;
    if (head.id != id || head.rank != checkpoint_head::replicated) {
      throw data_error({.file = path}, "this checkpoint was renamed (its content has another step); restore its name");
    }
    require_fit(to.image, parts, state_kind::replicated, path);
    const state_position before = of.position();
    of.move_to(to.place_in(of));  // whether its data is this one
    of.move_to(before);
    const auto rank = static_cast<std::size_t>(ranks.rank());
    if (head.ranks.size() != static_cast<std::size_t>(ranks.size()) || head.ranks[rank].bytes == 0) return;
    to.own_file = detail::read_whole_file(own_path, on_piece);
    to.own = detail::parse_checkpoint(to.own_file, own_path);
    if (to.own_file.size() != head.ranks[rank].bytes || crc32c(to.own_file) != head.ranks[rank].crc) {
      throw data_error({.file = own_path},
                       "this file is not of its checkpoint (its checksum is another); use another checkpoint");
    }
    require_fit(to.own, parts, state_kind::rank_local, own_path);
  });
}

seconds checkpoint_interval(seconds cost, seconds between_failures) {
  const double half = cost / (2 * between_failures);
  if (half >= 1) return between_failures;
  return std::sqrt(2 * cost.count() * between_failures.count()) * (1 + std::sqrt(half) / 3 + half / 9) * seconds(1) -
         cost;
}

}  // namespace muster::inline v0
