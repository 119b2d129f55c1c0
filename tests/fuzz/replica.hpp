// What must hold for any bytes whatever that come to a process that carries an embedded store; for the fuzzer and for
// test_replica alike.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "comm/net/replica.hpp"

namespace fuzz {

inline void require_of_replica(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// A message that is one says the same when it is said again.
inline void check_message(std::string_view bytes) {
  using muster::detail::replica_message;
  const auto read = replica_message::decode(bytes);
  if (!read) return;
  const auto said = read->encode();
  require_of_replica(said.size() == bytes.size(), "a message that has something left over");
  const auto again = replica_message::decode(said);
  require_of_replica(again && again->encode() == said, "a message that is another when it is said again");
}

/// Contents that are some are the same when they are taken again, and changes of any kind leave contents.
inline void check_contents(std::string_view bytes) {
  const muster::clock::time_point now{};
  const auto ignore = [](std::uint64_t, const muster::detail::store_reply&) {};
  muster::detail::replica_table table(ignore);
  const bool is_some = table.load(bytes, now);
  muster::detail::replica_table other(ignore);
  if (is_some) {
    const auto saved = table.save();
    require_of_replica(other.load(saved, now) && other.save() == saved, "contents that are others when taken again");
  }
  if (const auto made = muster::detail::replica_table::change::decode(bytes)) other.apply(*made, now);
  const auto after = other.save();
  muster::detail::replica_table third(ignore);
  require_of_replica(third.load(after, now) && third.save() == after, "a change leaves no contents");
}

/// Whoever says what in which order: a replica takes it, and what it sends can be read. The first byte of each piece is
/// its sender, the next two its length.
inline void check_replica_hears(std::string_view bytes) {
  using namespace muster::detail;
  auto now = muster::clock::time_point{} + std::chrono::seconds(1000);
  store_replica replica({1, 1, "card"}, {}, now);
  if (!bytes.empty() && (bytes[0] & 0x80) != 0) replica.found(now, 1);
  replica.call(now, {.what = store_call::get, .id = 1, .key = "key"});
  while (bytes.size() >= 3) {
    const auto from = static_cast<std::uint8_t>(bytes[0]);
    const auto length =
        static_cast<std::size_t>(static_cast<std::uint8_t>(bytes[1]) | static_cast<std::uint8_t>(bytes[2]) << 8);
    const auto piece = bytes.substr(3, length);
    bytes.remove_prefix(3 + piece.size());
    now += std::chrono::milliseconds(40);
    replica.tick(now);
    if (from % 16 == 15) {
      replica.lost(now, from / 16);
    } else if (from % 16 == 14) {
      replica.prove_dead(now, from / 16);
    } else if (const auto said = replica_message::decode(piece)) {
      replica.hear(now, from % 16, *said);
    }
    for (const auto& one : replica.take()) {
      if (const auto* const sent = std::get_if<replica_act::send>(&one))
        require_of_replica(replica_message::decode(sent->what.encode()).has_value(), "it says what cannot be read");
    }
  }
  replica.leave();
}

inline int check_replica(std::string_view bytes) {
  if (bytes.empty()) return 0;
  const auto rest = bytes.substr(1);
  switch (bytes[0] % 3) {
    case 0:
      check_message(rest);
      break;
    case 1:
      check_contents(rest);
      break;
    default:
      check_replica_hears(rest);
  }
  return 0;
}

}  // namespace fuzz
