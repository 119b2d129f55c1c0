#pragma once

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
#include <muster/comm/group/words.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/checked_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/text.hpp>
#include <muster/train/checkpoint_writer.hpp>

namespace muster { inline namespace v0 {

using detail::checkpoint_head;
using detail::checkpoint_image;
using detail::checkpoint_part;
using detail::matches_name_pattern;

namespace detail {

/// Calls `action` at every rank, with a callback that `action` calls after each piece. Returns the error of the
/// first rank that failed, or an empty text. Writing a file may take long. Ranks therefore synchronise each time that
/// any rank has finished a piece, so that the deadline of a collective applies to a piece and not to the whole file.
inline std::string first_problem(group& ranks, const std::function<void(const std::function<void()>&)>& action) {
  enum : std::uint8_t { done, troubled, busy };
  std::vector<std::uint8_t> all(static_cast<std::size_t>(ranks.size()));
  const auto meet = [&](std::uint8_t mine) {
    allgather(ranks, std::span(&mine, 1), all);
    return std::ranges::find(all, std::uint8_t{busy}) != all.end();
  };
  std::string mine;
  try {
    action([&] { (void)meet(busy); });
  } catch (const error& failed) {  // if the group itself failed, the next collective throws that error again
    mine = failed.what();
  }
  while (meet(mine.empty() ? done : troubled)) {
  }
  const auto first = std::ranges::find(all, std::uint8_t{troubled});
  if (first == all.end()) return {};
  const int rank = static_cast<int>(first - all.begin());
  const std::string text = detail::broadcast_string(ranks, mine, rank);
  return ranks.size() == 1 ? text : "rank " + std::to_string(rank) + ": " + text;
}

/// Copies the parts with the same kind, in their current state, into the memory of the last copy.
inline void copy_parts(const std::vector<state_part>& parts, state_kind kind, std::vector<checkpoint_part>& copies) {
  std::size_t at = 0;
  for (const auto& part : parts) {
    if (part.kind != kind) continue;
    if (at == copies.size()) copies.emplace_back();
    auto& target = copies[at++];
    target.name = part.name;
    if (part.save) {
      target.copy = part.save();
    } else {
      target.copy.resize(part.bytes.size());
      if (!part.bytes.empty()) std::memcpy(target.copy.data(), part.bytes.data(), part.bytes.size());
    }
    target.bytes = target.copy;
  }
  copies.resize(at);
}

/// Name of the part with the names of the classes. Labels are numbers of classes, so parameters that were trained with
/// other names are useless.
inline constexpr const char* classes_part = "muster: classes";

/// Returns the names of the classes with slashes between them; empty for data without named classes.
inline std::string classes_of(const state& described) {
  for (const auto& property : described.properties())
    if (property.name == "the names of classes of the data") return property.value;
  return {};
}

/// Throws when the names of a checkpoint's classes differ from the data's names. A checkpoint without names is
/// accepted: its data had none, or an older muster saved it.
inline void require_classes(const checkpoint_image& image, const state& target, const std::string& path) {
  const std::string expected = classes_of(target);
  if (image.parts.empty() || image.parts.back().name != classes_part || expected.empty()) return;
  const auto bytes = image.parts.back().bytes;
  const std::string_view saved(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (saved == expected) return;
  const auto saved_names = detail::split(saved, '/'), expected_names = detail::split(expected, '/');
  const auto [saved_at, expected_at] = std::ranges::mismatch(saved_names, expected_names);
  const auto name_at = [](const auto& names, auto at) {
    return at == names.end() ? std::string("none") : "'" + std::string(*at) + "'";
  };
  throw data_error({.file = path}, "this checkpoint has other classes (class " +
                                       std::to_string(saved_at - saved_names.begin()) + " is " +
                                       name_at(saved_names, saved_at) + " in the checkpoint and " +
                                       name_at(expected_names, expected_at) +
                                       " in the data); pass the checkpoint's classes to muster::with_classes");
}

/// Throws when a file does not fit the state. The parts of the file are in the order of the state's parts. The state
/// does not change.
inline void require_fit(const checkpoint_image& image, const std::vector<state_part>& parts, state_kind kind,
                        const std::string& path) {
  const auto refuse = [&](const std::string& reason) {
    throw data_error({.file = path},
                     "this checkpoint does not fit this state (" + reason + "); use the model that saved it");
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
    if (part.load) {  // only the part's owner knows which bytes are valid
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

inline void put(const state_part& part, std::span<const std::byte> bytes) {
  if (part.load)
    part.load(bytes);
  else if (!bytes.empty())
    std::memcpy(part.bytes.data(), bytes.data(), bytes.size());
}

// Returns true for rank-local weights, as in local SGD and gossip. Another number of ranks would begin with untrained
// weights.
inline bool are_weights_of_ranks(const std::vector<state_part>& parts) {
  return std::ranges::any_of(
      parts, [](const auto& part) { return part.name == "parameters" && part.kind == state_kind::rank_local; });
}

/// Returns the part of a file's name that all files of its checkpoint share; empty for another name.
inline std::string name_in(const std::string& file_name) {
  constexpr std::size_t fewest_digits = 12;
  const std::string stem = file_name.substr(0, file_name.find('.', file_name.find('.') + 1));
  const std::string ending = file_name.substr(stem.size());
  const bool is_checkpoint =
      matches_name_pattern(stem, "step-#.%") && stem.find('.') >= std::string_view("step-").size() + fewest_digits;
  const auto ends = [&](const char* pattern) { return matches_name_pattern(ending, pattern); };
  return is_checkpoint && (ends(".state") || ends(".rank-#") || ends(".state.#-#.tmp") || ends(".rank-#.#-#.tmp"))
             ? stem
             : "";
}

/// Returns the common name of a checkpoint's files. Names sort by steps, and then by id, which is a time.
inline std::string checkpoint_name(const checkpoint_head& head) {
  return detail::printed("step-%012" PRIu64 ".%016" PRIx64, head.position.steps, head.id);
}

inline constexpr int replicated_file = checkpoint_head::all_ranks;

inline std::string file_of(const std::string& folder, const std::string& name, int rank) {
  return folder + "/" + name + (rank == replicated_file ? ".state" : ".rank-" + std::to_string(rank));
}

// Returns the names of all complete checkpoints, the newest last.
inline std::vector<std::string> list(const std::string& folder) {
  std::vector<std::string> all;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string file = entry.path().filename().string();
    if (const auto name = name_in(file); !name.empty() && file == name + ".state") all.push_back(name);
  }
  std::ranges::sort(all);
  return all;
}

inline std::uint64_t newest_id(const std::string& folder) {
  std::uint64_t newest = 0;
  for (const std::string& name : list(folder)) {
    std::uint64_t id = 0;
    if (std::sscanf(name.c_str(), "step-%*u.%" SCNx64, &id) == 1) newest = std::max(newest, id);
  }
  return newest;
}

// Removes old checkpoints. All ranks have written their files, so other checkpoints' remaining files are obsolete.
inline void remove_old(const std::string& folder, const checkpoint_options& options, const std::string& newest) {
  const auto all = list(folder);
  std::set<std::string> keep = {newest};
  std::string best = newest;
  double best_metric = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (k + options.keep >= all.size()) keep.insert(all[k]);
    try {
      const double metric = detail::read_checkpoint_head(file_of(folder, all[k], replicated_file)).metric;
      if (std::isnan(metric) || (options.smaller_is_better ? metric > best_metric : metric < best_metric)) continue;
      best_metric = metric;
      best = all[k];
    } catch (const data_error&) {
    }
  }
  keep.insert(best);

  std::vector<std::filesystem::path> other_files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string file = entry.path().filename().string();
    const auto name = name_in(file);
    if (name.empty() || (keep.contains(name) && !file.ends_with(".tmp"))) continue;
    if (file == name + ".state")
      std::filesystem::remove(entry.path(), ignored);  // first, so that no complete checkpoint lacks a part
    else
      other_files.push_back(entry.path());
  }
  for (const auto& path : other_files) std::filesystem::remove(path, ignored);
}

}  // namespace detail

/// The contents of a checkpoint that were read and are not in the state yet.
struct checkpoint::content {
  std::vector<std::byte> file, own_file;
  checkpoint_image image, own;  // views of `file` and `own_file`

  void put_into(state& target) const {
    auto next = image.parts.begin(), next_own = own.parts.begin();
    for (const auto& part : std::as_const(target).parts()) {
      if (part.kind == state_kind::replicated)
        detail::put(part, (next++)->bytes);
      else if (!own.parts.empty())
        detail::put(part, (next_own++)->bytes);
    }
    target.move_to(place_in(target));
  }

  /// Returns the position of the save. The part of the position that belongs to this start of the program does not
  /// change.
  [[nodiscard]] state_position place_in(const state& target) const {
    state_position position = target.position();
    position.steps = image.head.position.steps;
    position.data = image.head.position.data;
    return position;
  }
};

MUSTER_INLINE checkpoint::checkpoint(std::string folder, const checkpoint_options& options)
    : folder_(std::move(folder)), options_(options), writer_(std::make_unique<detail::checkpoint_writer>()) {
  if (options.keep == 0) {
    throw configuration_error(
        "a store of checkpoints cannot keep none (a run resumes from the newest checkpoint); keep at least 1");
  }
  detail::require_checkpoint_folder(folder_);
  newest_ = detail::newest_id(folder_);
}

MUSTER_INLINE checkpoint::checkpoint(checkpoint&&) noexcept = default;
MUSTER_INLINE checkpoint& checkpoint::operator=(checkpoint&&) noexcept = default;
MUSTER_INLINE checkpoint::~checkpoint() = default;

MUSTER_INLINE void checkpoint::save(session& current_session, state& saved_state, double metric,
                                    const std::function<save_kind(step&)>& due) {
  current_session.evaluate(saved_state, [&](step& current) {
    const auto kind = due ? due(current) : save_kind::and_wait;
    if (kind == save_kind::none) return;
    if (const std::string lost = finish(current.group()); !lost.empty() && current.group().rank() == 0)
      log(log_level::warning, "a checkpoint was not written: " + lost + "; the earlier checkpoints remain");
    begin(current.group(), saved_state, metric);
    if (kind == save_kind::in_background) return;
    if (const std::string problem = finish(current.group()); !problem.empty()) throw configuration_error(problem);
  });
}

MUSTER_INLINE void checkpoint::begin(group& ranks, const state& saved_state, double metric) {
  checkpoint_head head{.ranks = ranks.size(),
                       .id = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()),
                       .metric = metric,
                       .position = saved_state.position()};
  std::vector<std::uint64_t> newest_ids(static_cast<std::size_t>(ranks.size()));
  allgather(ranks, std::span(&newest_, 1), newest_ids);  // a rank that joined may have missed some checkpoints
  newest_ = *std::ranges::max_element(newest_ids);
  if (ranks.rank() == 0 && detail::newest_id(folder_) > newest_) head.id = 0;
  broadcast(ranks, std::span(&head.id, 1), 0);
  if (head.id == 0) {
    throw configuration_error(
        "the checkpoints in '" + folder_ +
        "' do not belong to this training alone (another training, or a rank that it lost, has saved since its "
        "last save, and their checkpoints would mix); use a separate folder for each training");
  }
  newest_ = std::max(newest_, head.id);
  const std::string name = detail::checkpoint_name(head);
  detail::copy_parts(saved_state.parts(), state_kind::rank_local, writer_->own_parts);
  detail::checkpoint_files files{
      .head = head, .rank = ranks.rank(), .own = detail::file_of(folder_, name, ranks.rank())};
  if (ranks.rank() == 0) {
    detail::copy_parts(saved_state.parts(), state_kind::replicated, writer_->shared_parts);
    if (const std::string classes = detail::classes_of(saved_state); !classes.empty()) {
      const auto bytes = std::as_bytes(std::span(classes));
      writer_->shared_parts.push_back({detail::classes_part, {}, {}});
      auto& part = writer_->shared_parts.back();
      part.copy.assign(bytes.begin(), bytes.end());
      part.bytes = part.copy;
    }
    files.shared = detail::file_of(folder_, name, detail::replicated_file);
    for (int rank = 1; rank < ranks.size() && !writer_->own_parts.empty(); ++rank)
      files.other_files.push_back(detail::file_of(folder_, name, rank));
    files.completed = [=, folder = folder_, options = options_] { detail::remove_old(folder, options, name); };
  }
  writer_->start(std::move(files));
}

/// Completes the current save, or abandons it where a rank has not written its file. Returns the error.
MUSTER_INLINE std::string checkpoint::finish(group& ranks) {
  const auto own = detail::first_problem(ranks, [&](const auto& on_piece) { writer_->wait_for_own(on_piece); });
  const auto shared = detail::first_problem(ranks, [&](const auto& on_piece) { writer_->wait_for_all(on_piece); });
  return own.empty() ? shared : own;
}

// Until all ranks have read the checkpoint into memory, loading may fail, and the state does not change.
MUSTER_INLINE bool checkpoint::load(session& current_session, state& saved_state) {
  std::optional<content> newest;
  current_session.evaluate(saved_state, [&](step& current) { newest = read(current.group(), saved_state); });
  if (newest) newest->put_into(saved_state);
  return saved_state.steps() > 0;
}

MUSTER_INLINE std::optional<checkpoint::content> checkpoint::read(group& ranks, state& saved_state) const {
  std::vector<std::string> candidates;
  if (ranks.rank() == 0) candidates = detail::list(folder_);
  std::string newest;
  for (;;) {
    const std::string name = detail::broadcast_string(ranks, candidates.empty() ? "" : candidates.back(), 0);
    if (name.empty()) break;
    content loaded;
    const std::string reason = read_checkpoint(ranks, saved_state, name, loaded);
    if (reason.empty()) return loaded;
    if (ranks.rank() == 0) {
      log(log_level::warning, "a checkpoint is skipped: " + reason);
      candidates.pop_back();
    }
    if (newest.empty()) newest = reason;
  }
  if (newest.empty()) return std::nullopt;
  throw data_error({.file = folder_}, "no checkpoint in this folder can be used (the newest: " + newest +
                                          "); remove them to start from the beginning");
}

// Reads a checkpoint into `result`, and checks that it fits `expected_state`, which does not change. Collective.
// Returns the error of the first rank that failed, or an empty text.
MUSTER_INLINE std::string checkpoint::read_checkpoint(group& ranks, state& expected_state, const std::string& name,
                                                      content& result) const {
  const std::string path = detail::file_of(folder_, name, detail::replicated_file),
                    own_path = detail::file_of(folder_, name, ranks.rank());
  std::string reason = detail::first_problem(ranks, [&](const auto& on_piece) {
    if (ranks.rank() == 0) result.file = detail::read_whole_file(path, on_piece);
  });
  if (!reason.empty()) return reason;
  std::uint64_t size = result.file.size();
  broadcast(ranks, std::span(&size, 1), 0);
  result.file.resize(static_cast<std::size_t>(size));
  for (std::size_t at = 0; at < result.file.size(); at += detail::file_piece) {  // a deadline applies to a piece
    const auto remaining = std::span(result.file).subspan(at);
    broadcast(ranks, remaining.first(std::min(remaining.size(), detail::file_piece)), 0);
  }

  const auto& parts = std::as_const(expected_state).parts();
  const auto parse = [&](std::span<const std::byte> file_content, const std::string& file_name, int rank,
                         state_kind kind) {
    auto image = detail::parse_checkpoint(file_content, file_name);
    if (detail::checkpoint_name(image.head) != name || image.head.rank != rank) {
      throw data_error(
          {.file = file_name},
          "this file does not belong to its checkpoint (it was saved for another one); use another checkpoint");
    }
    detail::require_fit(image, parts, kind, file_name);
    return image;
  };
  return detail::first_problem(ranks, [&](const auto& on_piece) {
    result.image = parse(result.file, path, detail::replicated_file, state_kind::replicated);
    detail::require_classes(result.image, expected_state, path);
    const state_position before = expected_state.position();
    expected_state.move_to(result.place_in(expected_state));  // throws if the state's data does not fit
    expected_state.move_to(before);
    const int saved_by = result.image.head.ranks;
    if (saved_by != ranks.size() && detail::are_weights_of_ranks(parts)) {
      throw data_error({.file = path}, "this checkpoint needs another number of ranks (it has separate weights for " +
                                           std::to_string(saved_by) + " ranks, and this job has " +
                                           std::to_string(ranks.size()) + " ranks); start as many");
    }
    if (saved_by != ranks.size() || std::ranges::find(parts, state_kind::rank_local, &state_part::kind) == parts.end())
      return;
    result.own_file = detail::read_whole_file(own_path, on_piece);
    result.own = parse(result.own_file, own_path, ranks.rank(), state_kind::rank_local);
  });
}

MUSTER_INLINE seconds checkpoint_interval(seconds cost, seconds between_failures) {
  const double half = cost / (2 * between_failures);
  if (half >= 1) return between_failures;
  return std::sqrt(2 * cost.count() * between_failures.count()) * (1 + std::sqrt(half) / 3 + half / 9) * seconds(1) -
         cost;
}

}}  // namespace muster::v0
