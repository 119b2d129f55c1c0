// Which processes are in the group: the one record that all members agree on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../../comm/bootstrap/processes.hpp"

namespace muster { inline namespace v0 { namespace elastic {

/// One start of one process, drawn at random: a process that is started again is another member.
using member_id = std::uint64_t;

/// The identity of a process in an elastic job: what the others know of it from the day it announced itself.
struct member {
  member_id id = 0;
  std::uint64_t host = 0;   ///< equal for two members of one host, and for no others
  std::uint64_t order = 0;  ///< how the first generation is numbered: the launcher's rank
  std::uint64_t step = 0;   ///< steps that its state had seen when it announced itself (a checkpoint, or 0)
  // How it is reached and watched; the protocol reads none of it.
  detail::process_identity process;  ///< on its host
  std::string words;                 ///< the place of its datagram_socket
  std::string endpoints;             ///< where it waits for the members of the next generation

  bool operator==(const member&) const = default;
};

/// A generation of the group. The store has one such record, and it is changed by compare-and-swap alone: so there is
/// at most one next generation of each.
struct generation_record {
  std::uint64_t generation = 0;          ///< 0 until the first group is formed
  std::vector<member> members;           ///< by rank: survivors keep their order, joiners come after them
  std::uint64_t step = 0;                ///< committed steps of the furthest member at formation
  std::uint64_t cursor = 0;              ///< global samples that these steps used
  std::vector<member_id> state_sources;  ///< members with the state of `step`; the others copy it from them
  std::vector<member> waiting;           ///< announced, and not taken in yet
  std::string why;                       ///< what changed, for people: "rank 2 died"

  bool operator==(const generation_record&) const = default;

  /// The rank of that member; nothing when it is not in.
  [[nodiscard]] std::optional<int> rank_of(member_id id) const noexcept;
  [[nodiscard]] bool is_waiting(member_id id) const noexcept;

  /// As the store keeps it. Any bytes; the same on machines of one byte order.
  [[nodiscard]] std::string encode() const;
  /// Throws error when the text is no record of this version.
  [[nodiscard]] static generation_record decode(std::string_view text);
};

/// What traffic has shown of a member's connection to another.
struct link_seen {
  member_id to = 0;
  std::uint64_t rate = 0;     ///< bytes a second
  std::uint64_t latency = 0;  ///< microseconds of a round trip
  std::uint64_t takes = 0;    ///< microseconds of a step, at that rate

  bool operator==(const link_seen&) const = default;
};

/// What a member says of itself, again and again, to all others: its whole state in the present generation. Nothing
/// depends on one of them arriving, nor on their order: the highest number of a sender counts.
struct heartbeat {
  member_id from = 0;  ///< 0: a process that is no member asks for one, as `muster-info top` does
  std::uint64_t number = 0;
  std::uint64_t generation = 0;
  bool stopped = false;      ///< it takes no more part in this generation, whatever comes
  bool leaving = false;      ///< it wants to leave at the next boundary
  bool needs_state = false;  ///< it joined, and has not copied the state of the others yet
  std::uint64_t step = 0;
  std::uint64_t cursor = 0;
  std::uint64_t halt = 0;   ///< after this step the group is to stop and change; 0: no wish
  std::uint64_t work = 0;   ///< microseconds of its own in a step, without waiting for others, by `least_work` of
                            ///< its last ones; 0: not known yet
  link_seen slowest;        ///< of its connections with much traffic; to 0: not known
  std::uint64_t usual = 0;  ///< bytes a second that the best of them carries at any time; 0: not known
  member_id removes = 0;    ///< of rank 0: the member that is to leave, as it is slow; 0: none
  std::vector<member_id> dead;
  std::vector<member_id> suspects;
  std::vector<link_seen> links;  ///< that carried anything; said to a process that asked, and not among members
  std::string endpoints;

  [[nodiscard]] std::string encode() const;
  /// Nothing when the bytes are no heartbeat.
  [[nodiscard]] static std::optional<heartbeat> decode(std::string_view text);
};

}}}  // namespace muster::v0::elastic
