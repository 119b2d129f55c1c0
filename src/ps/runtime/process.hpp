// What a process of a job has, whether it works or serves.
#pragma once

#include <memory>
#include <string>

#include <muster/comm/bootstrap/store.hpp>
#include <muster/ps/job.hpp>

#include "../map_keeper.hpp"
#include "../protocol/settings.hpp"
#include "link.hpp"

namespace muster::inline v0::ps::detail {

/// With what it begins.
struct seat {
  member self;
  const job_options& options;
  const protocol_settings& protocol;
  const table_layout& layout;
  transport& over;
  std::shared_ptr<any_store> store;
  std::string name;  ///< of the map in the store
  const shard_map& first;
};

/// How often both sides of the protocol are told the time.
inline constexpr int ticks_a_retry = 10;
/// Looks in vain for something to hear before the processor is given away.
inline constexpr int spins_before_pause = 2000;

class process {
 protected:
  explicit process(const seat& at)
      : options_(at.options),
        protocol_(at.protocol),
        layout_(at.layout),
        keeper_(at.store, at.name, at.first, deadline_after(at.options.timeout)),
        link_(at.over) {
    link_.introduce({.from = at.self, .map_version = at.first.version});
  }
  ~process() = default;

  const job_options& options_;
  protocol_settings protocol_;
  const table_layout& layout_;
  map_keeper keeper_;
  frame_link link_;
};

}  // namespace muster::inline v0::ps::detail
