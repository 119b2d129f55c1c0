// The state of those that are furthest, given to those that are behind.
#pragma once

#include <muster/comm/group.hpp>
#include <muster/elastic/state.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// One rank's part in it.
struct transfer_part {
  bool may_hold = true;   ///< whether its state counts: a joiner's does not, nor that of any but one when a job begins
  bool in_place = false;  ///< no rank could go on from its state
};

/// Collective. Those that are at the furthest position and may hold send the replicated parts, chunk by chunk in
/// turns; the others take them into memory of their own first and into their state when all of it is there and has the
/// digest of the first of the holders: until then their state is what it was. With `in_place` they go into the state at
/// once. Returns whether this rank was behind and copied the state. Throws what collectives throw; error when a digest
/// is another, or no rank holds a state, and configuration_error when the parts do not fit.
bool transfer_state(group& ranks, state& of, const transfer_part& mine);

}}}  // namespace muster::v0::detail
