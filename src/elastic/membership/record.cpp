#include "record.hpp"

#include <algorithm>

#include <muster/core/error.hpp>

#include "../../core/wire.hpp"

namespace muster { inline namespace v0 { namespace elastic {
namespace {

constexpr std::uint64_t record_magic = 0x6d7573746572'0105;
constexpr std::uint64_t word_magic = 0x6d7573746572'0210;

using detail::wire_reader;
using detail::wire_writer;

void add(wire_writer& writer, const std::vector<member>& members) {
  writer.add(std::uint64_t{members.size()});
  for (const auto& peer : members) {
    writer.add(peer.id, peer.host, peer.order, peer.progress, peer.process.process, peer.process.started);
    writer.add_text(peer.datagram_endpoints);
    writer.add_text(peer.endpoints);
  }
}

std::vector<member> read_members(wire_reader& reader) {
  std::vector<member> read(reader.count(7 * sizeof(std::uint64_t)));
  for (auto& peer : read) {
    reader.read(peer.id, peer.host, peer.order, peer.progress, peer.process.process, peer.process.started);
    peer.datagram_endpoints = reader.text();
    peer.endpoints = reader.text();
  }
  return read;
}

}  // namespace

std::optional<int> generation_record::rank_of(member_id id) const noexcept {
  const auto at = std::ranges::find_if(members, [&](const member& peer) { return peer.id == id; });
  if (at == members.end()) return std::nullopt;
  return static_cast<int>(at - members.begin());
}

bool generation_record::is_waiting(member_id id) const noexcept {
  return std::ranges::any_of(waiting, [&](const member& peer) { return peer.id == id; });
}

std::string generation_record::encode() const {
  wire_writer writer;
  writer.add(record_magic, generation, progress);
  add(writer, members);
  writer.add_all<member_id>(state_sources);
  add(writer, waiting);
  writer.add_text(reason);
  return writer.take();
}

generation_record generation_record::decode(std::string_view text) {
  wire_reader reader(text);
  generation_record read;
  const bool known = reader.number() == record_magic;
  reader.read(read.generation, read.progress);
  read.members = read_members(reader);
  read.state_sources = reader.all<member_id>();
  read.waiting = read_members(reader);
  read.reason = reader.text();
  if (known && reader.is_complete()) return read;
  throw error(error_kind::other,
              "the membership in the store cannot be read (another version of muster or another program wrote it); "
              "give each job its own store");
}

std::string heartbeat::encode() const {
  wire_writer writer;
  writer.add(word_magic, sender, number, generation, progress, steps, halt, own_step_microseconds, best_rate,
             member_to_remove, slowest);
  writer.add(std::uint8_t{stopped}, std::uint8_t{leaving}, std::uint8_t{needs_state});
  writer.add_all<member_id>(dead);
  writer.add_all<member_id>(suspects);
  writer.add_all<link_seen>(links);
  writer.add_text(endpoints);
  return writer.take();
}

std::optional<heartbeat> heartbeat::decode(std::string_view text) {
  wire_reader reader(text);
  heartbeat read;
  const bool known = reader.number() == word_magic;
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
