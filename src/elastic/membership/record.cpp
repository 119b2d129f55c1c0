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

void add(wire_writer& out, const std::vector<member>& members) {
  out.add(std::uint64_t{members.size()});
  for (const auto& peer : members) {
    out.add(peer.id, peer.host, peer.order, peer.progress, peer.process.process, peer.process.started);
    out.add_text(peer.datagram_endpoints);
    out.add_text(peer.endpoints);
  }
}

std::vector<member> read_members(wire_reader& in) {
  std::vector<member> read(in.count(7 * sizeof(std::uint64_t)));
  for (auto& peer : read) {
    in.read(peer.id, peer.host, peer.order, peer.progress, peer.process.process, peer.process.started);
    peer.datagram_endpoints = in.text();
    peer.endpoints = in.text();
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
  wire_writer out;
  out.add(record_magic, generation, progress);
  add(out, members);
  out.add_all<member_id>(state_sources);
  add(out, waiting);
  out.add_text(why);
  return out.take();
}

generation_record generation_record::decode(std::string_view text) {
  wire_reader in(text);
  generation_record read;
  const bool known = in.number() == record_magic;
  in.read(read.generation, read.progress);
  read.members = read_members(in);
  read.state_sources = in.all<member_id>();
  read.waiting = read_members(in);
  read.why = in.text();
  if (known && in.is_complete()) return read;
  throw error(error_kind::other,
              "the membership in the store cannot be read (another version of muster or another program wrote it); "
              "give each job its own store");
}

std::string heartbeat::encode() const {
  wire_writer out;
  out.add(word_magic, sender, number, generation, progress, steps, halt, work, best_rate, removes, slowest);
  out.add(std::uint8_t{stopped}, std::uint8_t{leaving}, std::uint8_t{needs_state});
  out.add_all<member_id>(dead);
  out.add_all<member_id>(suspects);
  out.add_all<link_seen>(links);
  out.add_text(endpoints);
  return out.take();
}

std::optional<heartbeat> heartbeat::decode(std::string_view text) {
  wire_reader in(text);
  heartbeat read;
  const bool known = in.number() == word_magic;
  in.read(read.sender, read.number, read.generation, read.progress, read.steps, read.halt, read.work, read.best_rate,
          read.removes, read.slowest);
  for (bool* flag : {&read.stopped, &read.leaving, &read.needs_state}) *flag = in.number<std::uint8_t>() != 0;
  read.dead = in.all<member_id>();
  read.suspects = in.all<member_id>();
  read.links = in.all<link_seen>();
  read.endpoints = in.text();
  if (!known || !in.is_complete()) return std::nullopt;
  return read;
}

}}}  // namespace muster::v0::elastic
