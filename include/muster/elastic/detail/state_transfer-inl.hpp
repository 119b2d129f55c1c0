#pragma once

#include <muster/elastic/state_transfer.hpp>

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/group/words.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/elastic/rank_comparison.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr std::size_t chunk = std::size_t{4} << 20;
inline constexpr std::size_t at_once = 2;  // number of chunks under way

struct rank_status {
  state_position at;
  std::optional<state::run_start> run;
  bool may_hold;
  std::uint64_t digest;      // digest of the replicated parts, if this rank's state may count
  std::uint64_t properties;  // digest of the properties
};

class transfer {
 public:
  transfer(group& ranks, state& target)
      : ranks_(ranks), target_(target), rank_(static_cast<std::size_t>(ranks.rank())) {
    for (const auto& part : target.parts()) {
      if (part.kind == state_kind::replicated) parts_.push_back(part);
    }
    properties_ = packed(target.properties());
  }

  bool run(const transfer_role& role) {
    rank_status mine{target_.position(), target_.run(), role.has_state, role.has_state ? digest_of_replicated() : 0u,
                     digest().add(properties_).value()};
    std::vector<rank_status> statuses(static_cast<std::size_t>(ranks_.size()));
    allgather(ranks_, std::span(&mine, 1), statuses);
    find_state_sources(statuses);
    if (senders_.size() == statuses.size()) return false;
    const auto& source = statuses[static_cast<std::size_t>(senders_.front())];
    require_same_properties(statuses, source, role.is_start);
    const bool holds = std::ranges::count(senders_, static_cast<int>(rank_)) > 0;
    place_chunks(holds, role.may_overwrite);
    send_chunks();
    std::uint64_t sent = chunks_digest_.value();
    broadcast(ranks_, std::span(&sent, 1), senders_.front());
    if (sent != chunks_digest_.value()) {
      throw error(
          error_kind::other,
          "the received state differs from the sender's state (their digests differ, because of a fault of the memory "
          "or of the network); start this rank again");
    }
    if (!holds) adopt(source);
    return !holds;
  }

 private:
  void find_state_sources(const std::vector<rank_status>& statuses) {
    const rank_status* furthest = nullptr;
    for (const auto& status : statuses) {
      if (status.may_hold && (furthest == nullptr || status.at.is_beyond(furthest->at))) furthest = &status;
    }
    if (furthest == nullptr) {
      throw error(error_kind::other,
                  "no member of the group has the state of the training (every member that had it died); start from "
                  "the last checkpoint");
    }
    const auto is_furthest = [&](const rank_status& status) { return status.may_hold && status.at == furthest->at; };
    // Ranks at one position should have the same bytes. If they differ, the value of most ranks counts, or of equally
    // many ranks the value of the lowest rank. The other ranks copy it, so that no two replicas train on with different
    // parameters.
    const auto count = [&](std::uint64_t candidate) {
      return std::ranges::count_if(statuses,
                                   [&](auto& status) { return is_furthest(status) && status.digest == candidate; });
    };
    std::uint64_t chosen = furthest->digest;
    for (const auto& status : statuses) {
      if (is_furthest(status) && count(status.digest) > count(chosen)) chosen = status.digest;
    }
    for (std::size_t r = 0; r < statuses.size(); ++r) {
      if (!is_furthest(statuses[r])) continue;
      if (statuses[r].digest == chosen) {
        senders_.push_back(static_cast<int>(r));
      } else if (r == rank_) {
        log(log_level::error,
            "the replicated state of this rank differs from the state of most ranks at the same step (a part was "
            "changed by "
            "a step that did not commit, or ranks compute differently); this rank copies their state: check the parts "
            "that are "
            "declared keep_on_failure and that a step changes");
      }
    }
  }

  // Refuses a rank whose properties differ; the others continue without it, but not from the start of a job. At the
  // start all ranks adopt the values of one rank, and rank 0 logs a warning.
  void require_same_properties(const std::vector<rank_status>& statuses, const rank_status& holder, bool is_start) {
    const auto differs = [&](const rank_status& status) { return status.properties != holder.properties; };
    if (is_start) require_equal_properties(ranks_, target_.properties());
    if (std::ranges::any_of(statuses, differs)) {
      const std::string theirs = broadcast_string(ranks_, properties_, senders_.front());
      if (differs(statuses[rank_])) {
        throw configuration_error("this rank cannot train with the others (" +
                                  first_difference(theirs, "rank " + std::to_string(senders_.front()), properties_,
                                                   "rank " + std::to_string(rank_)) +
                                  "); start all ranks with the same program, options and data");
      }
      return;
    }
    if (std::ranges::any_of(statuses,
                            [&](const rank_status& status) { return status.at != holder.at || status.at.steps != 0; }))
      return;
    const auto differing = differing_parts(ranks_, parts_, senders_.front());
    if (differing.empty() || rank_ != 0) return;
    log(log_level::warning, "'" + parts_[differing.front().part].name + "' of rank " +
                                std::to_string(differing.front().rank) + " differed from rank " +
                                std::to_string(senders_.front()) + "'s at the start; all ranks begin with its values");
  }

  std::uint64_t digest_of_replicated() const {
    digest all;
    for (const auto& part : parts_) all.add(part.save ? digest_of_bytes(part.save()) : digest_of_bytes(part.bytes));
    return all.value();
  }

  // Sets the memory of every chunk: in the state itself or in a separate buffer. A copy from another holder is the
  // same, byte for byte, so it may be received over this holder's bytes.
  void place_chunks(bool holds, bool in_place) {
    std::vector<std::uint64_t> sizes(parts_.size());
    buffers_.resize(parts_.size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (holds && parts_[i].save) buffers_[i] = parts_[i].save();
      sizes[i] = parts_[i].save ? buffers_[i].size() : parts_[i].bytes.size();
    }
    broadcast(ranks_, std::span(sizes), senders_.front());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto& part = parts_[i];
      if (!part.save && sizes[i] != part.bytes.size()) {
        throw configuration_error("part '" + part.name + "' of the state has " + std::to_string(part.bytes.size()) +
                                  " bytes here (and " + std::to_string(sizes[i]) +
                                  " at the others); construct the same model at every rank");
      }
      const bool directly = !part.save && (in_place || holds);
      if (!directly) buffers_[i].resize(sizes[i]);
      const auto memory = directly ? part.bytes : std::span(buffers_[i]);
      for (std::size_t at = 0; at < memory.size(); at += chunk)
        chunks_.push_back(memory.subspan(at, std::min(chunk, memory.size() - at)));
    }
  }

  // Moves the chunks in order; the holders send them in turn. While one chunk travels, the previous one is added to the
  // digest.
  void send_chunks() {
    std::deque<work> under_way;  // waits for its broadcasts before the bytes are freed, even after an exception
    for (std::size_t next = 0; next < chunks_.size() || !under_way.empty();) {
      if (next < chunks_.size() && under_way.size() < at_once) {
        under_way.push_back(broadcast_async(ranks_, chunks_[next], senders_[next % senders_.size()]));
        ++next;
      } else {
        under_way.front().wait();
        chunks_digest_.add(crc32c(chunks_[next - under_way.size()]));
        under_way.pop_front();
      }
    }
  }

  void adopt(const rank_status& holder) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].save)
        parts_[i].load(buffers_[i]);
      else  // empty if the part was received in place
        std::ranges::copy(buffers_[i], parts_[i].bytes.begin());
    }
    target_.move_to(holder.at);
    target_.follow_run(holder.run);
  }

  group& ranks_;
  state& target_;
  std::size_t rank_;
  std::vector<int> senders_;  // the ranks that send
  std::string properties_;
  std::vector<state_part> parts_;                // the replicated parts
  std::vector<std::vector<std::byte>> buffers_;  // by part: memory for a part without its own memory
  std::vector<std::span<std::byte>> chunks_;
  digest chunks_digest_;  // digest over all chunks
};

MUSTER_INLINE bool transfer_state(group& ranks, state& target, const transfer_role& mine) {
  if (ranks.size() == 1 && mine.has_state) return false;
  return transfer(ranks, target).run(mine);
}

}}}  // namespace muster::v0::detail
