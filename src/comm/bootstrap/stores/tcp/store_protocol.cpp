#include "store_protocol.hpp"

#include <utility>

#include "../../../../core/wire.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::size_t request_bytes = 20;  // what and value, key's length, id, number
// Whether there is a value, and how long it stays.
enum class value_kind : std::uint8_t { none, of_store, of_client };
constexpr std::size_t reply_bytes = 17;  // status, id, number

}  // namespace

void append_frame(std::string& bytes, const store_request& said) {
  const std::size_t value = said.value ? said.value->size() : 0;
  wire_writer to(std::move(bytes));
  to.add(static_cast<std::uint32_t>(request_bytes + said.key.size() + value));
  to.add(said.what);
  to.add(!said.value                          ? value_kind::none
         : said.life == store_life::of_client ? value_kind::of_client
                                              : value_kind::of_store);
  to.add(static_cast<std::uint16_t>(said.key.size()), said.id, said.number);
  bytes = to.take();
  bytes += said.key;
  if (said.value) bytes += *said.value;
}

void append_frame(std::string& bytes, const store_reply& said) {
  wire_writer to(std::move(bytes));
  to.add(static_cast<std::uint32_t>(reply_bytes + said.value.size()), said.status, said.id, said.number);
  bytes = to.take();
  bytes += said.value;
}

std::optional<store_frame> first_frame(std::string_view bytes) noexcept {
  wire_reader in(bytes);
  const std::size_t length = in.number<std::uint32_t>();
  if (in.good() && length > store_frame_limit) return store_frame{store_frame_head, {}};
  const auto body = in.chars(length);
  return in.good() ? std::optional(store_frame{store_frame_head + length, body}) : std::nullopt;
}

std::optional<store_request> parse_request(std::string_view body) noexcept {
  wire_reader in(body);
  store_request said;
  const auto what = in.number<std::uint8_t>();
  const auto kind = in.number<value_kind>();
  const std::size_t key_size = in.number<std::uint16_t>();
  said.what = static_cast<store_call>(what);
  in.read(said.id, said.number);
  said.key = in.chars(key_size);
  const auto value = in.chars(in.rest().size());
  const bool has_key = said.what == store_call::get || said.what == store_call::swap || said.what == store_call::watch;
  const bool is_known = what >= 1 && what <= static_cast<std::uint8_t>(store_call::leave);
  const bool has_value = kind != value_kind::none;
  if (!in.good() || !is_known || kind > value_kind::of_client || key_size > store_key_limit) return std::nullopt;
  if (has_key != (key_size > 0) || (has_value && said.what != store_call::swap && said.what != store_call::open))
    return std::nullopt;
  if (value.size() > store_value_limit || (!has_value && !value.empty())) return std::nullopt;
  if (has_value) said.value = value;
  if (kind == value_kind::of_client) said.life = store_life::of_client;
  return said;
}

std::optional<store_reply> parse_reply(std::string_view body) noexcept {
  wire_reader in(body);
  store_reply said;
  const auto status = in.number<std::uint8_t>();
  said.status = static_cast<store_status>(status);
  in.read(said.id, said.number);
  said.value = in.chars(in.rest().size());
  if (!in.good() || said.value.size() > store_value_limit || status > static_cast<std::uint8_t>(store_status::full))
    return std::nullopt;
  return said;
}

}}}  // namespace muster::v0::detail
