#pragma once

#include <muster/elastic/followed_data.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {

// Opens the oldest version at all ranks, and returns its number of records. Each rank has opened the newest version
// that it found, and these versions differ if files were added in the meantime.
MUSTER_INLINE std::uint64_t followed_data::open_oldest(group& ranks) {
  const cursor mine = data_->cursor().current();
  std::vector<cursor> of_all(static_cast<std::size_t>(ranks.size()));
  allgather(ranks, std::span(&mine, 1), of_all);
  const cursor oldest = std::ranges::min(of_all, {}, &cursor::size);
  if (oldest.size != mine.size) data_->open(oldest);
  return oldest.size;
}

MUSTER_INLINE void followed_data::agree_before(step& current) {
  group& ranks = current.group();
  agreement_inputs inputs{current.generation(), ranks.size(), data_->cursor().size};
  if (agreed_inputs_ == inputs) return;
  if (data_->follows()) inputs.records = open_oldest(ranks);
  const held_shards mine = data_->available_shards();
  if (mine.names.empty()) {
    agreed_inputs_ = inputs;
    return;
  }
  const auto world = static_cast<std::size_t>(ranks.size());
  const std::size_t shards = mine.available.size();
  const std::array<std::uint64_t, 3> facts{data_->cursor().dataset, shards, mine.weight};
  std::vector<std::uint64_t> of_all(facts.size() * world);
  allgather(ranks, facts, of_all);
  for (std::size_t rank = 1; rank < world; ++rank) {
    const auto* const theirs = &of_all[rank * facts.size()];
    if (theirs[0] == of_all[0] && theirs[1] == of_all[1]) continue;
    throw data_error({std::string(data_->name())}, "has other shards at rank " + std::to_string(rank) +
                                                       " than at rank 0 (" + std::to_string(theirs[1]) + " and " +
                                                       std::to_string(of_all[1]) +
                                                       " files, by their manifests); copy one manifest to all");
  }
  std::vector<std::uint8_t> here_of_all(shards * world);
  allgather(ranks, mine.available, here_of_all);
  std::vector<held_shards> shards_of_all(world, {.names = mine.names});
  for (std::size_t rank = 0; rank < world; ++rank) {
    const auto begin = here_of_all.begin() + static_cast<std::ptrdiff_t>(rank * shards);
    shards_of_all[rank].available.assign(begin, begin + static_cast<std::ptrdiff_t>(shards));
    shards_of_all[rank].weight = of_all[rank * facts.size() + 2];
  }
  data_->assign_samples_to(std::move(shards_of_all));
  agreed_inputs_ = inputs;
}

MUSTER_INLINE void followed_data::describe(state_parts& parts) {
  if (data_->follows() || !data_->available_shards().names.empty())
    parts.before_step([this](step& current) { agree_before(current); });
  if (!data_->follows()) return;
  parts.add(
      "followed data", state_kind::replicated,
      [this] {
        std::vector<std::byte> bytes(sizeof next_);
        std::memcpy(bytes.data(), &next_, sizeof next_);
        return bytes;
      },
      [this](std::span<const std::byte> bytes) {
        if (bytes.size() != sizeof next_) {
          throw configuration_error("the part 'followed data' cannot be read (it has " + std::to_string(bytes.size()) +
                                    " bytes, and not " + std::to_string(sizeof next_) +
                                    "); read it with the version of muster that wrote it");
        }
        std::memcpy(&next_, bytes.data(), sizeof next_);
        data_->grow_to(next_);
      });
  // The loader grows to the new version before the commit. If the step fails, the loader returns to the version that
  // was agreed on before.
  parts.exchange([this](group& ranks) {
    agreed_ = data_->may_grow() ? allreduce(ranks, data_->newest(), muster::min) : next_;
    data_->grow_to(agreed_);
  });
  parts.hook([this] { next_ = agreed_; }, [this] { data_->grow_to(next_); });
}

}}  // namespace muster::v0
