#include <muster/train/checkpoint.hpp>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "../comm/group/words.hpp"
#include "../core/checked_file.hpp"
#include "../core/text.hpp"
#include "checkpoint_writer.hpp"

namespace muster { inline namespace v0 {

using detail::checkpoint_head;
using detail::checkpoint_image;
using detail::checkpoint_part;
using detail::is_made_name;

namespace {

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
  const std::string text = detail::word_of(ranks, mine, rank);
  return ranks.size() == 1 ? text : "rank " + std::to_string(rank) + ": " + text;
}

/// Copies the parts of one kind, as they are now, into the memory of the last copy.
void copy_parts(const std::vector<state_part>& parts, state_kind kind, std::vector<checkpoint_part>& to) {
  std::size_t at = 0;
  for (const auto& part : parts) {
    if (part.kind != kind) continue;
    if (at == to.size()) to.emplace_back();
    auto& made = to[at++];
    made.name = part.name;
    if (part.save) {
      made.kept = part.save();
    } else {
      made.kept.resize(part.bytes.size());
      if (!part.bytes.empty()) std::memcpy(made.kept.data(), part.bytes.data(), part.bytes.size());
    }
    made.bytes = made.kept;
  }
  to.resize(at);
}

// Names of classes that the labels are numbers of: what the parameters learned of one is not of another.
constexpr const char* classes_part = "muster: classes";

std::string classes_of(const state& of) {
  for (const auto& property : of.properties())
    if (property.name == "the names of classes of the data") return property.value;
  return {};
}

/// Throws when a checkpoint is of classes with other names than those of the data. One of data without names, and of
/// before names were saved, is taken.
void require_classes(const checkpoint_image& image, const state& of, const std::string& path) {
  const std::string here = classes_of(of);
  if (image.parts.empty() || image.parts.back().name != classes_part || here.empty()) return;
  const auto bytes = image.parts.back().bytes;
  const std::string_view there(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (there == here) return;
  const auto theirs = detail::split(there, '/'), ours = detail::split(here, '/');
  const auto [one, other] = std::ranges::mismatch(theirs, ours);
  const auto name_at = [](const auto& all, auto at) {
    return at == all.end() ? std::string("none") : "'" + std::string(*at) + "'";
  };
  throw data_error({.file = path}, "this checkpoint is of other classes (class " +
                                       std::to_string(one - theirs.begin()) + " is " + name_at(theirs, one) +
                                       " there and " + name_at(ours, other) +
                                       " here); give it the classes it was made with, by muster::with_classes");
}

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
  if (at < image.parts.size() && image.parts[at].name == classes_part) ++at;
  if (at < image.parts.size()) refuse("it has '" + image.parts[at].name + "' and this state does not");
}

void put(const state_part& part, std::span<const std::byte> bytes) {
  if (part.load)
    part.load(bytes);
  else if (!bytes.empty())
    std::memcpy(part.bytes.data(), bytes.data(), bytes.size());
}

// As in local SGD and gossip, where another number of ranks would begin with weights of no training.
bool are_weights_of_ranks(const std::vector<state_part>& parts) {
  return std::ranges::any_of(
      parts, [](const auto& part) { return part.name == "parameters" && part.kind == state_kind::rank_local; });
}

/// The part of a file's name that all files of its checkpoint have; empty where it is no such name.
std::string name_in(const std::string& file) {
  constexpr std::size_t fewest_digits = 12;
  const std::string whole = file.substr(0, file.find('.', file.find('.') + 1));
  const std::string ending = file.substr(whole.size());
  const bool is_whole =
      is_made_name(whole, "step-#.%") && whole.find('.') >= std::string_view("step-").size() + fewest_digits;
  const auto ends = [&](const char* pattern) { return is_made_name(ending, pattern); };
  return is_whole && (ends(".state") || ends(".rank-#") || ends(".state.#-#.tmp") || ends(".rank-#.#-#.tmp")) ? whole
                                                                                                              : "";
}

/// In their order these are those of one number of steps, too: the ids are times.
std::string checkpoint_name(const checkpoint_head& head) {
  return detail::printed("step-%012" PRIu64 ".%016" PRIx64, head.position.steps, head.id);
}

constexpr int of_all = checkpoint_head::all_ranks;

std::string file_of(const std::string& folder, const std::string& name, int rank) {
  return folder + "/" + name + (rank == of_all ? ".state" : ".rank-" + std::to_string(rank));
}

// Newest last.
std::vector<std::string> list(const std::string& folder) {
  std::vector<std::string> all;
  std::error_code trouble;
  for (const auto& entry : std::filesystem::directory_iterator(folder, trouble)) {
    const std::string file = entry.path().filename().string();
    if (const auto name = name_in(file); !name.empty() && file == name + ".state") all.push_back(name);
  }
  std::ranges::sort(all);
  return all;
}

std::uint64_t newest_id(const std::string& folder) {
  std::uint64_t newest = 0;
  for (const std::string& name : list(folder)) {
    std::uint64_t id = 0;
    if (std::sscanf(name.c_str(), "step-%*u.%" SCNx64, &id) == 1) newest = std::max(newest, id);
  }
  return newest;
}

// All ranks have written what they had to: what is there of others is left over.
void remove_old(const std::string& folder, const checkpoint_options& options, const std::string& newest) {
  const auto all = list(folder);
  std::set<std::string> keep = {newest};
  std::string best = newest;
  double best_metric = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (k + options.keep >= all.size()) keep.insert(all[k]);
    try {
      const double metric = detail::read_checkpoint_head(file_of(folder, all[k], of_all)).metric;
      if (std::isnan(metric) || (options.smaller_is_better ? metric > best_metric : metric < best_metric)) continue;
      best_metric = metric;
      best = all[k];
    } catch (const data_error&) {
    }
  }
  keep.insert(best);

  std::vector<std::filesystem::path> others;
  std::error_code trouble;
  for (const auto& entry : std::filesystem::directory_iterator(folder, trouble)) {
    const std::string file = entry.path().filename().string();
    const auto name = name_in(file);
    if (name.empty() || (keep.contains(name) && !file.ends_with(".tmp"))) continue;
    if (file == name + ".state")
      std::filesystem::remove(entry.path(), trouble);  // first, so that no checkpoint lacks a part
    else
      others.push_back(entry.path());
  }
  for (const auto& path : others) std::filesystem::remove(path, trouble);
}

}  // namespace

/// What was read of a checkpoint, and is not in the state yet.
struct checkpoint::content {
  std::vector<std::byte> file, own_file;
  checkpoint_image image, own;  // views of them

  void put_into(state& of) const {
    auto next = image.parts.begin(), next_own = own.parts.begin();
    for (const auto& part : std::as_const(of).parts()) {
      if (part.kind == state_kind::replicated)
        put(part, (next++)->bytes);
      else if (!own.parts.empty())
        put(part, (next_own++)->bytes);
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

checkpoint::checkpoint(std::string folder, const checkpoint_options& options)
    : folder_(std::move(folder)), options_(options), writer_(std::make_unique<detail::checkpoint_writer>()) {
  if (options.keep == 0) {
    throw configuration_error(
        "a store of checkpoints cannot keep none (a run resumes from the last one); keep at least 1");
  }
  detail::require_checkpoint_folder(folder_);
  newest_ = newest_id(folder_);
}

checkpoint::checkpoint(checkpoint&&) noexcept = default;
checkpoint& checkpoint::operator=(checkpoint&&) noexcept = default;
checkpoint::~checkpoint() = default;

void checkpoint::save(session& by, state& of, double metric, const std::function<save_kind(step&)>& due) {
  by.evaluate(of, [&](step& now) {
    const auto how = due ? due(now) : save_kind::and_wait;
    if (how == save_kind::none) return;
    if (const std::string lost = finish(now.group()); !lost.empty() && now.group().rank() == 0)
      log(log_level::warning, "a checkpoint was not written: " + lost + "; those before it stay");
    begin(now.group(), of, metric);
    if (how == save_kind::in_background) return;
    if (const std::string problem = finish(now.group()); !problem.empty()) throw configuration_error(problem);
  });
}

void checkpoint::begin(group& ranks, const state& of, double metric) {
  checkpoint_head head{.ranks = ranks.size(),
                       .id = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()),
                       .metric = metric,
                       .position = of.position()};
  std::vector<std::uint64_t> known(static_cast<std::size_t>(ranks.size()));
  allgather(ranks, std::span(&newest_, 1), known);  // a rank that joined may have missed some
  newest_ = *std::ranges::max_element(known);
  if (ranks.rank() == 0 && newest_id(folder_) > newest_) head.id = 0;
  broadcast(ranks, std::span(&head.id, 1), 0);
  if (head.id == 0) {
    throw configuration_error(
        "the checkpoints in '" + folder_ +
        "' are not of this training alone (another one, or a rank that it lost, has saved since it "
        "did, and they would mix); give each training a folder of its own");
  }
  newest_ = std::max(newest_, head.id);
  const std::string name = checkpoint_name(head);
  copy_parts(of.parts(), state_kind::rank_local, writer_->own_parts);
  detail::checkpoint_files files{.head = head, .rank = ranks.rank(), .own = file_of(folder_, name, ranks.rank())};
  if (ranks.rank() == 0) {
    copy_parts(of.parts(), state_kind::replicated, writer_->shared_parts);
    if (const std::string classes = classes_of(of); !classes.empty()) {
      const auto bytes = std::as_bytes(std::span(classes));
      writer_->shared_parts.push_back({classes_part, {}, {}});
      auto& part = writer_->shared_parts.back();
      part.kept.assign(bytes.begin(), bytes.end());
      part.bytes = part.kept;
    }
    files.shared = file_of(folder_, name, of_all);
    for (int rank = 1; rank < ranks.size() && !writer_->own_parts.empty(); ++rank)
      files.others.push_back(file_of(folder_, name, rank));
    files.completed = [=, folder = folder_, options = options_] { remove_old(folder, options, name); };
  }
  writer_->start(std::move(files));
}

/// Completes what was begun, or, where a rank has not written its part, leaves it; says why.
std::string checkpoint::finish(group& ranks) {
  const auto own = first_problem(ranks, [&](const auto& on_piece) { writer_->wait_for_own(on_piece); });
  const auto rest = first_problem(ranks, [&](const auto& on_piece) { writer_->wait_for_all(on_piece); });
  return own.empty() ? rest : own;
}

// Until all ranks have all of it in memory it may fail, and nothing of the state has changed.
bool checkpoint::load(session& by, state& of) {
  std::optional<content> newest;
  by.evaluate(of, [&](step& now) { newest = read(now.group(), of); });
  if (newest) newest->put_into(of);
  return of.steps() > 0;
}

std::optional<checkpoint::content> checkpoint::read(group& ranks, state& of) const {
  std::vector<std::string> left;
  if (ranks.rank() == 0) left = list(folder_);
  std::string newest;
  for (;;) {
    const std::string name = detail::word_of(ranks, left.empty() ? "" : left.back(), 0);
    if (name.empty()) break;
    content one;
    const std::string why = read_one(ranks, of, name, one);
    if (why.empty()) return one;
    if (ranks.rank() == 0) {
      log(log_level::warning, "a checkpoint is left out: " + why);
      left.pop_back();
    }
    if (newest.empty()) newest = why;
  }
  if (newest.empty()) return std::nullopt;
  throw data_error({.file = folder_}, "no checkpoint of this folder can be used (the newest: " + newest +
                                          "); remove them to start from the beginning");
}

/// Says what is wrong with it at the first rank where something is.
std::string checkpoint::read_one(group& ranks, state& of, const std::string& name, content& to) const {
  const std::string path = file_of(folder_, name, of_all), own_path = file_of(folder_, name, ranks.rank());
  std::string why = first_problem(ranks, [&](const auto& on_piece) {
    if (ranks.rank() == 0) to.file = detail::read_whole_file(path, on_piece);
  });
  if (!why.empty()) return why;
  std::uint64_t size = to.file.size();
  broadcast(ranks, std::span(&size, 1), 0);
  to.file.resize(static_cast<std::size_t>(size));
  for (std::size_t at = 0; at < to.file.size(); at += detail::file_piece) {  // a deadline is for one
    const auto left = std::span(to.file).subspan(at);
    broadcast(ranks, left.first(std::min(left.size(), detail::file_piece)), 0);
  }

  const auto& parts = std::as_const(of).parts();
  const auto parse = [&](std::span<const std::byte> file, const std::string& file_name, int rank, state_kind kind) {
    auto image = detail::parse_checkpoint(file, file_name);
    if (checkpoint_name(image.head) != name || image.head.rank != rank) {
      throw data_error({.file = file_name},
                       "this file is not of its checkpoint (it was saved as another one's); use another checkpoint");
    }
    require_fit(image, parts, kind, file_name);
    return image;
  };
  return first_problem(ranks, [&](const auto& on_piece) {
    to.image = parse(to.file, path, of_all, state_kind::replicated);
    require_classes(to.image, of, path);
    const state_position before = of.position();
    of.move_to(to.place_in(of));  // whether its data is this one
    of.move_to(before);
    const int saved_by = to.image.head.ranks;
    if (saved_by != ranks.size() && are_weights_of_ranks(parts)) {
      throw data_error({.file = path}, "this checkpoint is of another number of ranks (its weights are those of " +
                                           std::to_string(saved_by) + " ranks, and here are " +
                                           std::to_string(ranks.size()) + "); start as many");
    }
    if (saved_by != ranks.size() || std::ranges::find(parts, state_kind::rank_local, &state_part::kind) == parts.end())
      return;
    to.own_file = detail::read_whole_file(own_path, on_piece);
    to.own = parse(to.own_file, own_path, ranks.rank(), state_kind::rank_local);
  });
}

seconds checkpoint_interval(seconds cost, seconds between_failures) {
  const double half = cost / (2 * between_failures);
  if (half >= 1) return between_failures;
  return std::sqrt(2 * cost.count() * between_failures.count()) * (1 + std::sqrt(half) / 3 + half / 9) * seconds(1) -
         cost;
}

}}  // namespace muster::v0
