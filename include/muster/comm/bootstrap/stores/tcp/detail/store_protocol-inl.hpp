#pragma once

#include <muster/comm/bootstrap/stores/tcp/store_protocol.hpp>

#include <utility>

#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr std::size_t request_bytes = 20;  // call and kind of value, key's length, id, number
// The kind of a request's value: none, or a value with its life.
enum class value_kind : std::uint8_t { none, of_store, of_client };
inline constexpr std::size_t reply_bytes = 17;  // status, id, number

MUSTER_INLINE void append_frame(std::string& bytes, const store_request& message) {
  const std::size_t value = message.value ? message.value->size() : 0;
  wire_writer writer(std::move(bytes));
  writer.add(static_cast<std::uint32_t>(request_bytes + message.key.size() + value));
  writer.add(message.call);
  writer.add(!message.value                          ? value_kind::none
             : message.life == store_life::of_client ? value_kind::of_client
                                                     : value_kind::of_store);
  writer.add(static_cast<std::uint16_t>(message.key.size()), message.id, message.version);
  bytes = writer.take();
  bytes += message.key;
  if (message.value) bytes += *message.value;
}

MUSTER_INLINE void append_frame(std::string& bytes, const store_reply& message) {
  wire_writer writer(std::move(bytes));
  writer.add(static_cast<std::uint32_t>(reply_bytes + message.value.size()), message.status, message.id,
             message.version);
  bytes = writer.take();
  bytes += message.value;
}

MUSTER_INLINE std::optional<store_frame> first_frame(std::string_view bytes) noexcept {
  wire_reader reader(bytes);
  const std::size_t length = reader.number<std::uint32_t>();
  if (reader.good() && length > store_frame_limit) return store_frame{store_frame_head, {}};
  const auto body = reader.chars(length);
  return reader.good() ? std::optional(store_frame{store_frame_head + length, body}) : std::nullopt;
}

MUSTER_INLINE std::optional<store_request> parse_request(std::string_view body) noexcept {
  wire_reader reader(body);
  store_request request;
  const auto call = reader.number<std::uint8_t>();
  const auto kind = reader.number<value_kind>();
  const std::size_t key_size = reader.number<std::uint16_t>();
  request.call = static_cast<store_call>(call);
  reader.read(request.id, request.version);
  request.key = reader.chars(key_size);
  const auto value = reader.chars(reader.rest().size());
  const bool has_key =
      request.call == store_call::get || request.call == store_call::swap || request.call == store_call::watch;
  const bool is_known = call >= 1 && call <= static_cast<std::uint8_t>(store_call::leave);
  const bool has_value = kind != value_kind::none;
  if (!reader.good() || !is_known || kind > value_kind::of_client || key_size > store_key_limit) return std::nullopt;
  if (has_key != (key_size > 0) || (has_value && request.call != store_call::swap && request.call != store_call::open))
    return std::nullopt;
  if (value.size() > store_value_limit || (!has_value && !value.empty())) return std::nullopt;
  if (has_value) request.value = value;
  if (kind == value_kind::of_client) request.life = store_life::of_client;
  return request;
}

MUSTER_INLINE std::optional<store_reply> parse_reply(std::string_view body) noexcept {
  wire_reader reader(body);
  store_reply reply;
  const auto status = reader.number<std::uint8_t>();
  reply.status = static_cast<store_status>(status);
  reader.read(reply.id, reply.version);
  reply.value = reader.chars(reader.rest().size());
  if (!reader.good() || reply.value.size() > store_value_limit ||
      status > static_cast<std::uint8_t>(store_status::full))
    return std::nullopt;
  return reply;
}

}}}  // namespace muster::v0::detail
