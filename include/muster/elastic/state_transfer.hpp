// Copies the state of the ranks at the furthest position to the other ranks.
#pragma once

#include <muster/comm/group.hpp>
#include <muster/elastic/state.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A rank's part in the transfer.
struct transfer_role {
  /// True if this rank's state counts; false for a joiner, and for all ranks but one when a job begins.
  bool has_state = true;
  bool may_overwrite = false;  ///< true if this rank's state is obsolete, and may be overwritten early
  bool is_start = false;       ///< true at all ranks when the job begins: no rank may then differ in its properties
};

/// Transfers the state; collective. The ranks with `has_state` at the furthest position send the replicated parts,
/// chunk by chunk in turns. If their states differ, only the ranks with the most frequent state send, and the others
/// copy it. The other ranks receive the chunks into separate memory first. They copy them into their state when all
/// chunks have arrived and have the digest of the first sender; until then their state is unchanged. With
/// `may_overwrite` the chunks are received directly into the state. Returns true if this rank was behind and has copied
/// the state. Throws the errors of collectives; error when a digest differs or no rank holds a state; and
/// configuration_error when the parts do not fit. If the properties of a rank differ, throws mismatch_error at all
/// ranks with `is_start`, and otherwise configuration_error at that rank alone.
bool transfer_state(group& ranks, state& target, const transfer_role& mine);

}}}  // namespace muster::v0::detail
