#include "record.hpp"

#include <algorithm>

#include <muster/core/error.hpp>

#include "../../core/wire.hpp"

namespace muster::inline v0::elastic {
namespace {

constexpr std::uint64_t record_magic = 0x6d7573746572'0103;
constexpr std::uint64_t word_magic = 0x6d7573746572'0205;

using detail::wire_reader;
using detail::wire_writer;

void add(wire_writer& out, const std::vector<member_id>& ids) {
  out.add(std::uint64_t{ids.size()});
  for (const auto id : ids) out.add(id);
}

void add(wire_writer& out, const std::vector<member>& members) {
  out.add(std::uint64_t{members.size()});
  for (const auto& one : members) {
    const auto process = static_cast<std::uint64_t>(one.process.process);
    for (const auto number : {one.id, one.host, one.order, one.step, process, one.process.started}) out.add(number);
    out.add_text(one.words);
    out.add_text(one.endpoints);
  }
}

std::vector<member_id> read_ids(wire_reader& in) {
  std::vector<member_id> read(in.count(sizeof(member_id)));
  for (auto& id : read) id = in.number();
  return read;
}

std::vector<member> read_members(wire_reader& in) {
  std::vector<member> read(in.count(8 * sizeof(std::uint64_t)));
  for (auto& one : read) {
    for (auto* field : {&one.id, &one.host, &one.order, &one.step}) *field = in.number();
    one.process.process = static_cast<pid_t>(in.number());
    one.process.started = in.number();
    one.words = in.text();
    one.endpoints = in.text();
  }
  return read;
}

}  // namespace

std::optional<int> generation_record::rank_of(member_id id) const noexcept {
  const auto at = std::find_if(members.begin(), members.end(), [&](const member& one) { return one.id == id; });
  if (at == members.end()) return std::nullopt;
  return static_cast<int>(at - members.begin());
}

bool generation_record::is_waiting(member_id id) const noexcept {
  return std::any_of(waiting.begin(), waiting.end(), [&](const member& one) { return one.id == id; });
}

std::string generation_record::encode() const {
  wire_writer out;
  for (const auto number : {record_magic, generation, step, cursor}) out.add(number);
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
  read.generation = in.number();
  read.step = in.number();
  read.cursor = in.number();
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
  for (const auto field : {word_magic, from, number, generation}) out.add(field);
  for (const bool flag : {stopped, leaving, needs_state}) out.add(std::uint64_t{flag});
  for (const auto field : {step, cursor, halt, usual_work, least_work}) out.add(field);
  add(out, dead);
  add(out, suspects);
  out.add_text(endpoints);
  return out.take();
}

std::optional<heartbeat> heartbeat::decode(std::string_view text) {
  wire_reader in(text);
  heartbeat read;
  const bool known = in.number() == word_magic;
  for (auto* field : {&read.from, &read.number, &read.generation}) *field = in.number();
  read.stopped = in.number() != 0;
  read.leaving = in.number() != 0;
  read.needs_state = in.number() != 0;
  for (auto* field : {&read.step, &read.cursor, &read.halt, &read.usual_work, &read.least_work}) *field = in.number();
  read.dead = read_ids(in);
  read.suspects = read_ids(in);
  read.endpoints = in.text();
  if (!known || !in.whole()) return std::nullopt;
  return read;
}

}  // namespace muster::inline v0::elastic
