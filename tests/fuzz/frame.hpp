// What must hold for any bytes whatever that are taken for a frame; for the fuzzer and for test_comm alike.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "comm/transports/tcp/frame.hpp"

namespace fuzz {

/// Throws std::logic_error when something does not hold; returns whether the bytes begin with a frame.
inline bool check_frame(std::span<const std::uint8_t> data) {
  namespace tcp = muster::detail;
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  };
  if (data.size() < tcp::frame_bytes) return false;
  const auto bytes = std::as_bytes(data);
  tcp::frame read;
  if (tcp::decode(bytes.first<tcp::frame_bytes>(), read) != nullptr) return false;
  require(read.total <= tcp::largest_message, "a length is beyond its limit");
  require(read.lead < tcp::frame_bytes, "the lead is longer than a line");
  require(read.kind < tcp::frame_kind::beat || read.total <= tcp::largest_control_payload,
          "a frame of control is larger than there is room for");
  const auto again = tcp::encode(read);
  require(std::equal(again.begin(), again.end(), bytes.begin()), "it is not what it would be written as");
  muster::control_message message;
  const auto rest = bytes.subspan(tcp::frame_bytes);
  if (read.kind == tcp::frame_kind::control_message && tcp::decode_control_message(rest, message))
    require(message.text[sizeof message.text - 1] == '\0', "the text of a notice has no end");
  return true;
}

}  // namespace fuzz
