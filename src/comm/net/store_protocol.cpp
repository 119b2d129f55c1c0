#include "store_protocol.hpp"

#include "wire.hpp"

namespace muster::inline v0::detail {
namespace {

constexpr std::size_t request_bytes = 28;  // what and has_value, key's length, id, number, lease
constexpr std::size_t reply_bytes = 17;    // status, id, number

}  // namespace

void append_frame(std::string& bytes, const store_request& said) {
  const std::size_t value = said.value ? said.value->size() : 0;
  put(bytes, static_cast<std::uint32_t>(request_bytes + said.key.size() + value));
  put(bytes, static_cast<std::uint8_t>(said.what));
  put(bytes, static_cast<std::uint8_t>(said.value ? 1 : 0));
  put(bytes, static_cast<std::uint16_t>(said.key.size()));
  put(bytes, said.id);
  put(bytes, said.number);
  put(bytes, said.lease);
  bytes += said.key;
  if (said.value) bytes += *said.value;
}

void append_frame(std::string& bytes, const store_reply& said) {
  put(bytes, static_cast<std::uint32_t>(reply_bytes + said.value.size()));
  put(bytes, static_cast<std::uint8_t>(said.status));
  put(bytes, said.id);
  put(bytes, said.number);
  bytes += said.value;
}

store_frame first_frame(std::string_view bytes) noexcept {
  if (bytes.size() < store_frame_head) return {store_frame::state::part, store_frame_head, {}};
  std::string_view rest = bytes;
  const std::size_t length = take<std::uint32_t>(rest);
  if (length > store_frame_limit) return {store_frame::state::garbage, 0, {}};
  if (rest.size() < length) return {store_frame::state::part, store_frame_head + length, {}};
  return {store_frame::state::whole, store_frame_head + length, rest.substr(0, length)};
}

std::optional<store_request> parse_request(std::string_view body) noexcept {
  if (body.size() < request_bytes) return std::nullopt;
  store_request said;
  const auto what = take<std::uint8_t>(body);
  const auto has_value = take<std::uint8_t>(body);
  const std::size_t key_size = take<std::uint16_t>(body);
  said.what = static_cast<store_call>(what);
  said.id = take<std::uint64_t>(body);
  said.number = take<std::uint64_t>(body);
  said.lease = take<std::uint64_t>(body);
  const bool has_key = said.what == store_call::get || said.what == store_call::swap || said.what == store_call::watch;
  const bool is_known = what >= 1 && what <= static_cast<std::uint8_t>(store_call::open);
  if (!is_known || has_value > 1 || key_size > body.size() || key_size > store_key_limit) return std::nullopt;
  if (has_key != (key_size > 0) || (has_value == 1 && said.what != store_call::swap)) return std::nullopt;
  said.key = body.substr(0, key_size);
  body.remove_prefix(key_size);
  if (body.size() > store_value_limit || (has_value == 0 && !body.empty())) return std::nullopt;
  if (has_value == 1) said.value = body;
  return said;
}

std::optional<store_reply> parse_reply(std::string_view body) noexcept {
  if (body.size() < reply_bytes || body.size() > reply_bytes + store_value_limit) return std::nullopt;
  store_reply said;
  const auto status = take<std::uint8_t>(body);
  if (status > static_cast<std::uint8_t>(store_status::full)) return std::nullopt;
  said.status = static_cast<store_status>(status);
  said.id = take<std::uint64_t>(body);
  said.number = take<std::uint64_t>(body);
  said.value = body;
  return said;
}

}  // namespace muster::inline v0::detail
