#include "replica_message.hpp"

#include <algorithm>

#include "wire.hpp"

namespace muster::inline v0::detail {
namespace {

void put_ids(std::string& to, const std::vector<std::uint64_t>& ids) {
  put(to, std::uint64_t{ids.size()});
  for (const auto id : ids) put(to, id);
}

std::vector<std::uint64_t> read_ids(wire_reader& from) {
  std::vector<std::uint64_t> ids(from.count(sizeof(std::uint64_t)));
  for (auto& id : ids) id = from.number();
  return ids;
}

void put_ballot(std::string& to, const replica_ballot& ballot) {
  put(to, ballot.round);
  put(to, ballot.by);
}

replica_ballot read_ballot(wire_reader& from) {
  const auto round = from.number();
  return {round, from.number()};
}

void put_member(std::string& to, const replica_member& one) {
  put(to, one.id);
  put(to, one.host);
  put_text(to, one.card);
}

replica_member read_member(wire_reader& from) {
  replica_member one;
  one.id = from.number();
  one.host = from.number();
  one.card = from.text();
  return one;
}

void put_members(std::string& to, const std::vector<replica_member>& all) {
  put(to, std::uint64_t{all.size()});
  for (const auto& one : all) put_member(to, one);
}

std::vector<replica_member> read_members(wire_reader& from) {
  std::vector<replica_member> all(from.count(3 * sizeof(std::uint64_t)));
  for (auto& one : all) one = read_member(from);
  return all;
}

}  // namespace

bool replica_view::has(std::uint64_t id) const noexcept {
  return std::any_of(members.begin(), members.end(), [id](const replica_member& one) { return one.id == id; });
}

std::string replica_message::encode() const {
  std::string to;
  put(to, static_cast<std::uint8_t>(what));
  put_ballot(to, number);
  put(to, index);
  put(to, view.store);
  put_ballot(to, view.number);
  put_members(to, view.members);
  put(to, std::uint64_t{view.before.size()});
  for (const auto& members : view.before) put_members(to, members);
  put(to, static_cast<std::uint8_t>(view.in_force ? 1 : 0));
  put_member(to, member);
  put_ids(to, dead);
  put(to, static_cast<std::uint8_t>(text ? 1 : 0));
  if (text) put_text(to, *text);
  return to;
}

std::optional<replica_message> replica_message::decode(std::string_view bytes) {
  wire_reader from(bytes);
  replica_message read;
  const auto what = from.number<std::uint8_t>();
  if (what < static_cast<std::uint8_t>(kind::join) || what > static_cast<std::uint8_t>(kind::hello))
    return std::nullopt;
  read.what = static_cast<kind>(what);
  read.number = read_ballot(from);
  read.index = from.number();
  read.view.store = from.number();
  read.view.number = read_ballot(from);
  read.view.members = read_members(from);
  read.view.before.resize(from.count(sizeof(std::uint64_t)));
  for (auto& members : read.view.before) members = read_members(from);
  const auto in_force = from.number<std::uint8_t>();
  read.member = read_member(from);
  read.dead = read_ids(from);
  const auto has_text = from.number<std::uint8_t>();
  if (has_text == 1) read.text = from.text();
  if (in_force > 1 || has_text > 1 || !from.whole()) return std::nullopt;
  read.view.in_force = in_force == 1;
  return read;
}

}  // namespace muster::inline v0::detail
