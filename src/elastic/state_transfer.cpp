#include "state_transfer.hpp"

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>

#include "../comm/group/words.hpp"
#include "rank_comparison.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::size_t chunk = std::size_t{4} << 20;
constexpr std::size_t at_once = 2;  // chunks

struct standing {
  state_position at;
  std::optional<state::run_start> run;
  bool may_hold;
  std::uint64_t digest;      // of the replicated parts, where they may count
  std::uint64_t properties;  // their digest
};

class transfer {
 public:
  transfer(group& ranks, state& of) : ranks_(ranks), of_(of), rank_(static_cast<std::size_t>(ranks.rank())) {
    for (const auto& part : of.parts()) {
      if (part.kind == state_kind::replicated) wanted_.push_back(part);
    }
    properties_ = packed(of.properties());
  }

  bool run(const transfer_part& part) {
    standing mine{of_.position(), of_.run(), part.may_hold, part.may_hold ? digest_of_replicated() : 0u,
                  digest().add(properties_).value()};
    std::vector<standing> all(static_cast<std::size_t>(ranks_.size()));
    allgather(ranks_, std::span(&mine, 1), all);
    find_state_sources(all);
    if (holders_.size() == all.size()) return false;
    const auto& there = all[static_cast<std::size_t>(holders_.front())];
    require_same_properties(all, there);
    const bool holds = std::ranges::count(holders_, static_cast<int>(rank_)) > 0;
    measure(holds, part.in_place);
    move_all();
    std::uint64_t sent = bytes_.value();
    broadcast(ranks_, std::span(&sent, 1), holders_.front());
    if (sent != bytes_.value()) {
      throw error(error_kind::other,
                  "the received state differs from that of its sender (their digests differ, by a fault of the memory "
                  "or of the network); start this rank again");
    }
    if (!holds) adopt(there);
    return !holds;
  }

 private:
  void find_state_sources(const std::vector<standing>& all) {
    const standing* furthest = nullptr;
    for (const auto& one : all) {
      if (one.may_hold && (furthest == nullptr || one.at.is_beyond(furthest->at))) furthest = &one;
    }
    if (furthest == nullptr) {
      throw error(error_kind::other,
                  "no member of the group has the state of the training (every member that had it died); start from "
                  "the last checkpoint");
    }
    const auto is_furthest = [&](const standing& one) { return one.may_hold && one.at == furthest->at; };
    // Ranks at one position have the same bytes. Should they not, what most of them have counts, of equally many what
    // the lowest rank has, and the others copy it: no two replicas train on with different parameters.
    const auto count = [&](std::uint64_t of) {
      return std::ranges::count_if(all, [&](auto& one) { return is_furthest(one) && one.digest == of; });
    };
    std::uint64_t chosen = furthest->digest;
    for (const auto& one : all) {
      if (is_furthest(one) && count(one.digest) > count(chosen)) chosen = one.digest;
    }
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (!is_furthest(all[r])) continue;
      if (all[r].digest == chosen) {
        holders_.push_back(static_cast<int>(r));
      } else if (r == rank_) {
        log(log_level::error,
            "the replicated state of this rank differs from that of most ranks at the same step (a part was changed by "
            "a step that did not commit, or ranks compute differently); it copies theirs: check the parts that are "
            "declared keep_on_failure and that a step changes");
      }
    }
  }

  // A rank that differs is refused, and the others go on without it. At the start the values of one rank become those
  // of all, and rank 0 says so.
  void require_same_properties(const std::vector<standing>& all, const standing& there) {
    const auto differs = [&](const standing& one) { return one.properties != there.properties; };
    if (std::ranges::any_of(all, differs)) {
      const std::string theirs = word_of(ranks_, properties_, holders_.front());
      if (differs(all[rank_])) {
        throw configuration_error("this rank cannot train with the others (" +
                                  first_difference(theirs, "rank " + std::to_string(holders_.front()), properties_,
                                                   "rank " + std::to_string(rank_)) +
                                  "); start all ranks with the same program, options and data");
      }
      return;
    }
    if (std::ranges::any_of(all, [&](const standing& one) { return one.at != there.at || one.at.steps != 0; })) return;
    const auto others = differing_parts(ranks_, wanted_, holders_.front());
    if (others.empty() || rank_ != 0) return;
    log(log_level::warning, "'" + wanted_[others.front().part].name + "' of rank " +
                                std::to_string(others.front().rank) + " was not that of rank " +
                                std::to_string(holders_.front()) + " at the start; all ranks begin with its values");
  }

  std::uint64_t digest_of_replicated() const {
    digest all;
    for (const auto& part : wanted_) all.add(part.save ? digest_of_bytes(part.save()) : digest_of_bytes(part.bytes));
    return all.value();
  }

  // Where every chunk lies here, or goes first. Another holder's copy is the same, byte for byte: it does no harm that
  // it is received over this one.
  void measure(bool holds, bool in_place) {
    std::vector<std::uint64_t> sizes(wanted_.size());
    room_.resize(wanted_.size());
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (holds && wanted_[i].save) room_[i] = wanted_[i].save();
      sizes[i] = wanted_[i].save ? room_[i].size() : wanted_[i].bytes.size();
    }
    broadcast(ranks_, std::span(sizes), holders_.front());
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      const auto& part = wanted_[i];
      if (!part.save && sizes[i] != part.bytes.size()) {
        throw configuration_error("part '" + part.name + "' of the state has " + std::to_string(part.bytes.size()) +
                                  " bytes here (and " + std::to_string(sizes[i]) +
                                  " at the others); every rank makes the same model");
      }
      const bool directly = !part.save && (in_place || holds);
      if (!directly) room_[i].resize(sizes[i]);
      const auto whole = directly ? part.bytes : std::span(room_[i]);
      for (std::size_t at = 0; at < whole.size(); at += chunk)
        chunks_.push_back(whole.subspan(at, std::min(chunk, whole.size() - at)));
    }
  }

  // One after the other: the next of the holders sends each. While one travels, the one before is added to the
  // digest.
  void move_all() {
    std::deque<work> under_way;  // gone before the bytes are, whatever happens
    for (std::size_t next = 0; next < chunks_.size() || !under_way.empty();) {
      if (next < chunks_.size() && under_way.size() < at_once) {
        under_way.push_back(broadcast_async(ranks_, chunks_[next], holders_[next % holders_.size()]));
        ++next;
      } else {
        under_way.front().wait();
        bytes_.add(crc32c(chunks_[next - under_way.size()]));
        under_way.pop_front();
      }
    }
  }

  void adopt(const standing& there) {
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (wanted_[i].save)
        wanted_[i].load(room_[i]);
      else  // of none where it was received in place
        std::ranges::copy(room_[i], wanted_[i].bytes.begin());
    }
    of_.move_to(there.at);
    of_.follow_run(there.run);
  }

  group& ranks_;
  state& of_;
  std::size_t rank_;
  std::vector<int> holders_;
  std::string properties_;
  std::vector<state_part> wanted_;            // the replicated ones
  std::vector<std::vector<std::byte>> room_;  // by wanted part: for what has no place of its own yet
  std::vector<std::span<std::byte>> chunks_;
  digest bytes_;  // of all chunks
};

}  // namespace

bool transfer_state(group& ranks, state& of, const transfer_part& mine) {
  if (ranks.size() == 1 && mine.may_hold) return false;
  return transfer(ranks, of).run(mine);
}

}}}  // namespace muster::v0::detail
