// The record of an elastic job's membership, on which all members agree, and the heartbeat that members exchange.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../../comm/bootstrap/processes.hpp"

namespace muster { inline namespace v0 { namespace elastic {

/// The identity of a process start, drawn at random: a process that is started again is another member.
using member_id = std::uint64_t;

/// The identity of a process in an elastic job, as its announcement in the store contains it.
struct member {
  member_id id = 0;
  std::uint64_t host = 0;      ///< equal for two members of one host, and only for these
  std::uint64_t order = 0;     ///< sorts the ranks of the first generation: the launcher's rank, or another number
  std::uint64_t progress = 0;  ///< of its state when it announced itself: a process may have loaded a checkpoint
  // Data by which the process is reached and observed. The protocol does not read these fields.
  detail::process_identity process;  ///< process id and start time on its host
  std::string datagram_endpoints;    ///< the addresses of the datagram_socket
  std::string endpoints;             ///< where it waits for the members of the next generation

  bool operator==(const member&) const = default;
};

/// A generation of the group. The store holds one record, and only a compare-and-swap changes it: a generation
/// therefore has at most one successor.
struct generation_record {
  std::uint64_t generation = 0;          ///< 0 until the first group is formed
  std::vector<member> members;           ///< by rank: survivors keep their order, joiners come after them
  std::uint64_t progress = 0;            ///< progress of the furthest member when the generation was formed
  std::vector<member_id> state_sources;  ///< members with the state of `progress`; the others copy it from these
  std::vector<member> waiting;           ///< processes that have announced themselves and are not admitted yet
  std::string reason;                    ///< the reason for the change, for people: "rank 2 died"

  bool operator==(const generation_record&) const = default;

  /// Returns the member's rank; nothing when it is not a member.
  [[nodiscard]] std::optional<int> rank_of(member_id id) const noexcept;
  [[nodiscard]] bool is_waiting(member_id id) const noexcept;

  /// Returns the bytes that the store holds. Machines of one byte order share the format.
  [[nodiscard]] std::string encode() const;
  /// Throws error when the text is not a record in the present format.
  [[nodiscard]] static generation_record decode(std::string_view text);
};

/// The measured quality of a member's connection to another.
struct link_seen {
  member_id peer = 0;
  std::uint64_t rate = 0;               ///< bytes per second
  std::uint64_t latency = 0;            ///< microseconds of a round trip
  std::uint64_t step_microseconds = 0;  ///< microseconds that a step spends on this connection, at that rate

  bool operator==(const link_seen&) const = default;
};

/// The state of a member in the present generation, which it sends to the others repeatedly. The protocol does not
/// depend on the arrival or the order of single heartbeats: the highest number of a sender counts.
struct heartbeat {
  /// The sender; 0: a request for a heartbeat by a process that is no member, such as `muster-info top`.
  member_id sender = 0;
  std::uint64_t number = 0;      ///< counts the sender's heartbeats
  std::uint64_t generation = 0;  ///< 0 if the sender is no member
  bool stopped = false;          ///< the sender takes no further part in this generation, whatever happens
  bool leaving = false;          ///< the sender requests to leave at the next boundary between steps
  bool needs_state = false;      ///< the sender joined, and has not copied the state of the others yet
  /// The sender's committed steps, finished evaluations and finished runs together.
  std::uint64_t progress = 0;
  std::uint64_t steps = 0;  ///< the sender's committed steps, for people
  std::uint64_t halt = 0;   ///< the progress after which the group is to stop and change; 0: no such step
  /// Microseconds of the sender's own part of a step, without waiting for others, by `least_work` over the last steps;
  /// 0: unknown.
  std::uint64_t own_step_microseconds = 0;
  link_seen slowest;                ///< the slowest connection with much traffic; `peer` is 0 if unknown
  std::uint64_t best_rate = 0;      ///< bytes per second that its best connection carries at any time; 0: unknown
  member_id member_to_remove = 0;   ///< set by rank 0: the member that is to leave because it is slow; 0: none
  std::vector<member_id> dead;      ///< members whose end is proven to the sender
  std::vector<member_id> suspects;  ///< members that the sender suspects
  std::vector<link_seen> links;  ///< connections with any traffic; sent only in reply to a request, not among members
  std::string endpoints;         ///< where the sender waits for the members of the next generation

  [[nodiscard]] std::string encode() const;
  /// Returns nothing when the bytes are not a heartbeat.
  [[nodiscard]] static std::optional<heartbeat> decode(std::string_view text);
};

}}}  // namespace muster::v0::elastic
