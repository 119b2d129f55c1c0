// Agreement of all ranks about their data: the version of data that grows, and the assignment of samples to ranks for
// data in shards.
#pragma once

#include <cstdint>

#include <muster/data/loader.hpp>
#include <muster/elastic/state.hpp>
#include <muster/elastic/step.hpp>

namespace muster { inline namespace v0 {

/// A state_owner for data that all ranks have to agree about. List it before `loader.cursor()` in a `state`; a training
/// has at most one. Ranks that have opened different versions of a growing source (`records:FOLDER?follow`) begin with
/// the oldest version. In the last step of an epoch, or every N steps (`records:FOLDER?every=N`), they agree on the
/// newest version that all ranks see. The next epoch then uses that version's records, or with `every` the present
/// epoch does. The version is a part of the state: it is saved with the state and copied to a rank that joins.
///
/// For a source in shards (`shards:FOLDER?local`) the ranks exchange before a step which shards they have, whenever
/// ranks have joined or left or the source has grown. Each sample is then assigned to a rank that has it
/// (`loader::assign_samples_to`). A step throws data_error at every rank if manifests differ. For other sources it does
/// nothing. Refers to the loader.
class followed_data {
 public:
  /// Refers to `training_data`, which must outlive it.
  explicit followed_data(loader& training_data) noexcept : data_(&training_data) {}
  void describe(state_parts& parts);  ///< as a state_owner

 private:
  void agree_before(step& current);
  std::uint64_t open_oldest(group& ranks);

  loader* data_;
  /// The inputs of the last agreement. When no input has changed, at all ranks, the ranks need no new exchange.
  struct agreement_inputs {
    std::uint64_t generation = 0;
    int world = 0;              // number of ranks
    std::uint64_t records = 0;  // number of records of the opened version
    friend bool operator==(const agreement_inputs&, const agreement_inputs&) = default;
  };
  agreement_inputs agreed_inputs_;
  std::uint64_t next_ = 0;    // number of records that the ranks agreed on last
  std::uint64_t agreed_ = 0;  // the same number, if the step under way commits
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/elastic/detail/definitions.hpp>
#endif
