#include "store_protocol.hpp"

#include <utility>

#include "../../../../core/wire.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::size_t request_bytes = 20;  // call and kind of value, key's length, id, number
// The kind of a request's value: none, or a value with its life.
enum class value_kind : std::uint8_t { none, of_store, of_client };
constexpr std::size_t reply_bytes = 17;  // status, id, number

}  // namespace

void append_frame(std::string& bytes, const store_request& message) {
  const std::size_t value = message.value ? message.value->size() : 0;
  wire_writer writer(std::move(bytes));
  writer.add(static_cast<std::uint32_t>(request_bytes + message.key.size() + value));
  writer.add(message.call);
  writer.add(!message.value                          ? value_kind::none
             : message.life == store_life::of_client ? value_kind::of_client
                                                     : value_kind::of_store);
  writer.add(static_cast<std::uint16_t>(message.key.size()), message.id, message.number);
  bytes = writer.take();
  bytes += message.key;
  if (message.value) bytes += *message.value;
}

void append_frame(std::string& bytes, const store_reply& message) {
  wire_writer writer(std::move(bytes));
  writer.add(static_cast<std::uint32_t>(reply_bytes + message.value.size()), message.status, message.id,
             message.number);
  bytes = writer.take();
  bytes += message.value;
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
  store_request request;
  const auto call = in.number<std::uint8_t>();
  const auto kind = in.number<value_kind>();
  const std::size_t key_size = in.number<std::uint16_t>();
  request.call = static_cast<store_call>(call);
  in.read(request.id, request.number);
  request.key = in.chars(key_size);
  const auto value = in.chars(in.rest().size());
  const bool has_key =
      request.call == store_call::get || request.call == store_call::swap || request.call == store_call::watch;
  const bool is_known = call >= 1 && call <= static_cast<std::uint8_t>(store_call::leave);
  const bool has_value = kind != value_kind::none;
  if (!in.good() || !is_known || kind > value_kind::of_client || key_size > store_key_limit) return std::nullopt;
  if (has_key != (key_size > 0) || (has_value && request.call != store_call::swap && request.call != store_call::open))
    return std::nullopt;
  if (value.size() > store_value_limit || (!has_value && !value.empty())) return std::nullopt;
  if (has_value) request.value = value;
  if (kind == value_kind::of_client) request.life = store_life::of_client;
  return request;
}

std::optional<store_reply> parse_reply(std::string_view body) noexcept {
  wire_reader in(body);
  store_reply reply;
  const auto status = in.number<std::uint8_t>();
  reply.status = static_cast<store_status>(status);
  in.read(reply.id, reply.number);
  reply.value = in.chars(in.rest().size());
  if (!in.good() || reply.value.size() > store_value_limit || status > static_cast<std::uint8_t>(store_status::full))
    return std::nullopt;
  return reply;
}

}}}  // namespace muster::v0::detail
