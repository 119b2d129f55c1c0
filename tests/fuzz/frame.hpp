// Properties of the frame parser for any input bytes; used by the fuzzer and by test_comm.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include <muster/comm/transports/tcp/frame.hpp>

namespace fuzz {

/// Throws std::logic_error when a property does not hold; returns true if the bytes begin with a frame.
inline bool check_frame(std::span<const std::uint8_t> data) {
  namespace tcp = muster::detail;
  const auto require = [](bool holds, const char* property) {
    if (!holds) throw std::logic_error(property);
  };
  if (data.size() < tcp::frame_bytes) return false;
  const auto bytes = std::as_bytes(data);
  tcp::frame read;
  if (tcp::decode(bytes.first<tcp::frame_bytes>(), read) != nullptr) return false;
  require(read.total <= tcp::largest_message, "a length exceeds its limit");
  require(read.lead < tcp::frame_bytes, "the lead is longer than a line");
  require(read.kind < tcp::frame_kind::beat || read.total <= tcp::largest_control_payload,
          "a control frame is larger than its buffer");
  const auto again = tcp::encode(read);
  require(std::equal(again.begin(), again.end(), bytes.begin()), "encoding the frame again gives other bytes");
  muster::control_message message;
  const auto rest = bytes.subspan(tcp::frame_bytes);
  if (read.kind == tcp::frame_kind::control_message && tcp::decode_control_message(rest, message))
    require(message.text[sizeof message.text - 1] == '\0', "the text of a notice has no end");
  return true;
}

}  // namespace fuzz
