// Data that all ranks have to agree about: which version, where they grow, and which rank reads what, where they lie in
// shards.
#pragma once

#include <cstdint>

#include <muster/data/loader.hpp>
#include <muster/elastic/state.hpp>
#include <muster/elastic/step.hpp>

namespace muster { inline namespace v0 {

/// A state_owner, to stand before loader.cursor() in a `state`; a training has one. Ranks that have opened different
/// versions of a source that is followed (`records:FOLDER?follow`) begin with the oldest of them. In the last step of
/// an epoch, or every N steps (`records:FOLDER?every=N`), they agree on the newest version that all of them see, and
/// the next epoch has its records, or the one that they are in: which version that is belongs to the state, is saved
/// with it and copied to a rank that joins. Of a source in shards
/// (`shards:FOLDER?local`) the ranks tell one another before a step which of them they have, whenever ranks have come
/// or gone or the source has grown, and each sample goes to a rank that has it
/// (`loader::deal_by`); a step throws data_error at every rank where manifests differ. Of other sources it is nothing.
/// Refers to the loader.
class followed_data {
 public:
  /// `data` must outlive it.
  explicit followed_data(loader& data) noexcept : data_(&data) {}
  void describe(state_parts& parts);  ///< as a state_owner

 private:
  void meet(step& with);
  std::uint64_t go_to_oldest(group& ranks);

  loader* data_;
  /// What has to change, at all ranks, before they have to tell one another anew.
  struct meeting {
    std::uint64_t generation = 0;
    int world = 0;
    std::uint64_t records = 0;
    friend bool operator==(const meeting&, const meeting&) = default;
  };
  meeting met_;
  std::uint64_t next_ = 0;    // records, that were agreed on last
  std::uint64_t agreed_ = 0;  // the same, if the step under way commits
};

}}  // namespace muster::v0
