#include "record.hpp"

#include <algorithm>

#include <muster/core/error.hpp>

#include "../../core/wire.hpp"

namespace muster::inline v0::elastic {
namespace {

constexpr std::uint64_t record_magic = 0x6d7573746572'0104;
constexpr std::uint64_t word_magic = 0x6d7573746572'0209;

using detail::wire_reader;
using detail::wire_writer;

void add(wire_writer& out, const std::vector<member_id>& ids) {
  out.add(std::uint64_t{ids.size()});
  out.add_bytes(std::as_bytes(std::span(ids)));
}

void add(wire_writer& out, const std::vector<member>& members) {
  out.add(std::uint64_t{members.size()});
  for (const auto& one : members) {
    out.add(one.id, one.host, one.order, one.step, one.process.process, one.process.started);
    out.add_text(one.words);
    out.add_text(one.endpoints);
  }
}

void add(wire_writer& out, const link_seen& one) { out.add(one.to, one.rate, one.latency, one.takes); }

link_seen read_link(wire_reader& in) {
  link_seen read;
  in.read(read.to, read.rate, read.latency, read.takes);
  return read;
}

std::vector<member_id> read_ids(wire_reader& in) {
  std::vector<member_id> read(in.count(sizeof(member_id)));
  in.read_all(std::span(read));
  return read;
}

std::vector<member> read_members(wire_reader& in) {
  std::vector<member> read(in.count(7 * sizeof(std::uint64_t)));
  for (auto& one : read) {
    in.read(one.id, one.host, one.order, one.step, one.process.process, one.process.started);
    one.words = in.text();
    one.endpoints = in.text();
  }
  return read;
}

}  // namespace

std::optional<int> generation_record::rank_of(member_id id) const noexcept {
  const auto at = std::ranges::find_if(members, [&](const member& one) { return one.id == id; });
  if (at == members.end()) return std::nullopt;
  return static_cast<int>(at - members.begin());
}

bool generation_record::is_waiting(member_id id) const noexcept {
  return std::ranges::any_of(waiting, [&](const member& one) { return one.id == id; });
}

std::string generation_record::encode() const {
  wire_writer out;
  out.add(record_magic, generation, step, cursor);
  add(out, members);
  add(out, state_sources);
  add(out, waiting);
  out.add_text(why);
  return out.take();
}

generation_record generation_record::decode(std::string_view text) {
  wire_reader in(text);
  generation_record read;
  const bool known = in.number() == record_magic;
  in.read(read.generation, read.step, read.cursor);
  read.members = read_members(in);
  read.state_sources = read_ids(in);
  read.waiting = read_members(in);
  read.why = in.text();
  if (known && in.whole()) return read;
  throw error(error_kind::other,
              "the membership in the store cannot be read (another version of muster or another program wrote it); "
              "give each job its own store");
}

std::string heartbeat::encode() const {
  wire_writer out;
  out.add(word_magic, from, number, generation, step, cursor, halt, work, usual, removes);
  add(out, slowest);
  out.add(std::uint8_t{stopped}, std::uint8_t{leaving}, std::uint8_t{needs_state});
  add(out, dead);
  add(out, suspects);
  out.add(std::uint64_t{links.size()});
  for (const auto& one : links) add(out, one);
  out.add_text(endpoints);
  return out.take();
}

std::optional<heartbeat> heartbeat::decode(std::string_view text) {
  wire_reader in(text);
  heartbeat read;
  const bool known = in.number() == word_magic;
  in.read(read.from, read.number, read.generation, read.step, read.cursor, read.halt, read.work, read.usual,
          read.removes);
  read.slowest = read_link(in);
  for (bool* flag : {&read.stopped, &read.leaving, &read.needs_state}) *flag = in.number<std::uint8_t>() != 0;
  read.dead = read_ids(in);
  read.suspects = read_ids(in);
  read.links.resize(in.count(4 * sizeof(std::uint64_t)));
  for (auto& one : read.links) one = read_link(in);
  read.endpoints = in.text();
  if (!known || !in.whole()) return std::nullopt;
  return read;
}

}  // namespace muster::inline v0::elastic
