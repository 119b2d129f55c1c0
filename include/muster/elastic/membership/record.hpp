// The record of an elastic job's membership, on which all members agree, and the heartbeat that members exchange.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/bootstrap/processes.hpp>
#include <muster/core/error.hpp>
#include <muster/core/wire.hpp>

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
  muster::detail::process_identity process;  ///< process id and start time on its host
  std::string datagram_endpoints;            ///< the addresses of the datagram_socket
  std::string endpoints;                     ///< where it waits for the members of the next generation

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

namespace detail {

inline constexpr std::uint64_t record_magic = 0x6d7573746572'0105;
inline constexpr std::uint64_t word_magic = 0x6d7573746572'0210;

inline void add(muster::detail::wire_writer& writer, const std::vector<member>& members) {
  writer.add(std::uint64_t{members.size()});
  for (const auto& peer : members) {
    writer.add(peer.id, peer.host, peer.order, peer.progress, peer.process.process, peer.process.started);
    writer.add_text(peer.datagram_endpoints);
    writer.add_text(peer.endpoints);
  }
}

inline std::vector<member> read_members(muster::detail::wire_reader& reader) {
  std::vector<member> read(reader.count(7 * sizeof(std::uint64_t)));
  for (auto& peer : read) {
    reader.read(peer.id, peer.host, peer.order, peer.progress, peer.process.process, peer.process.started);
    peer.datagram_endpoints = reader.text();
    peer.endpoints = reader.text();
  }
  return read;
}

}  // namespace detail

inline std::optional<int> generation_record::rank_of(member_id id) const noexcept {
  const auto at = std::ranges::find_if(members, [&](const member& peer) { return peer.id == id; });
  if (at == members.end()) return std::nullopt;
  return static_cast<int>(at - members.begin());
}

inline bool generation_record::is_waiting(member_id id) const noexcept {
  return std::ranges::any_of(waiting, [&](const member& peer) { return peer.id == id; });
}

inline std::string generation_record::encode() const {
  muster::detail::wire_writer writer;
  writer.add(detail::record_magic, generation, progress);
  detail::add(writer, members);
  writer.add_all<member_id>(state_sources);
  detail::add(writer, waiting);
  writer.add_text(reason);
  return writer.take();
}

inline generation_record generation_record::decode(std::string_view text) {
  muster::detail::wire_reader reader(text);
  generation_record read;
  const bool known = reader.number() == detail::record_magic;
  reader.read(read.generation, read.progress);
  read.members = detail::read_members(reader);
  read.state_sources = reader.all<member_id>();
  read.waiting = detail::read_members(reader);
  read.reason = reader.text();
  if (known && reader.is_complete()) return read;
  throw error(error_kind::other,
              "the membership in the store cannot be read (another version of muster or another program wrote it); "
              "give each job its own store");
}

inline std::string heartbeat::encode() const {
  muster::detail::wire_writer writer;
  writer.add(detail::word_magic, sender, number, generation, progress, steps, halt, own_step_microseconds, best_rate,
             member_to_remove, slowest);
  writer.add(std::uint8_t{stopped}, std::uint8_t{leaving}, std::uint8_t{needs_state});
  writer.add_all<member_id>(dead);
  writer.add_all<member_id>(suspects);
  writer.add_all<link_seen>(links);
  writer.add_text(endpoints);
  return writer.take();
}

inline std::optional<heartbeat> heartbeat::decode(std::string_view text) {
  muster::detail::wire_reader reader(text);
  heartbeat read;
  const bool known = reader.number() == detail::word_magic;
  reader.read(read.sender, read.number, read.generation, read.progress, read.steps, read.halt,
              read.own_step_microseconds, read.best_rate, read.member_to_remove, read.slowest);
  for (bool* flag : {&read.stopped, &read.leaving, &read.needs_state}) *flag = reader.number<std::uint8_t>() != 0;
  read.dead = reader.all<member_id>();
  read.suspects = reader.all<member_id>();
  read.links = reader.all<link_seen>();
  read.endpoints = reader.text();
  if (!known || !reader.is_complete()) return std::nullopt;
  return read;
}

}}}  // namespace muster::v0::elastic
