// Data that grow while they are trained on: all ranks go to the same version of them at the end of an epoch.
#pragma once

#include <cstdint>

#include <muster/data/loader.hpp>
#include <muster/elastic/state.hpp>

namespace muster::inline v0 {

/// A state_owner, to stand before loader.cursor() in a `state`; a training has one. In the last step of an epoch the
/// ranks agree on the newest version that all of them see of a source that is followed (`records:FOLDER?follow`), and
/// the next epoch has its records: which version that is belongs to the state, is saved with it and copied to a rank
/// that joins. Of other sources it is nothing. Refers to the loader.
class followed_data {
 public:
  /// `data` must outlive it.
  explicit followed_data(loader& data) noexcept : data_(&data) {}
  void describe(state_parts& parts);  ///< as a state_owner

 private:
  loader* data_;
  std::uint64_t next_ = 0;    // records, in the next epoch
  std::uint64_t agreed_ = 0;  // by the step under way; 0: it is not the last of an epoch
};

}  // namespace muster::inline v0
