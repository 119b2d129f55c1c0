// The messages between a client and the server of a store: frames with a length, and nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/store.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The key of a table's identity, a text that no other table has. It is set when the table is first opened.
inline constexpr std::string_view store_identity_key = "store/identity";

enum class store_call : std::uint8_t {
  get = 1,
  swap = 2,    ///< `version` is the expected version
  watch = 3,   ///< `version` is the known version; answered when the version differs
  cancel = 4,  ///< cancels the watch of the same id; not answered
  /// Opens the store; answered with the identity of the table. `value`: the client's name (store_client_identity).
  /// `version`: milliseconds until the client's deadline, half of which the server may wait for the end of earlier
  /// clients; 0: the client connects again, so the server answers at once and keeps the table.
  open = 5,
  leave = 6  ///< sent by a client that has opened the store and closes it; not answered
};

/// A client's request. The texts refer to the bytes that were read, or that are to be written.
struct store_request {
  store_call call = store_call::get;
  std::uint64_t id = 0;  ///< chosen by the client; the reply contains it too
  std::uint64_t version = 0;
  std::string_view key{};
  std::optional<std::string_view> value{};
  store_life life = store_life::of_store;  ///< life of the value
};

enum class store_status : std::uint8_t {
  done = 0,
  refused = 1,  ///< a swap that found another version, which is in the reply
  full = 2      ///< the store has no room for the value, or this client has too many watches
};

/// The server's reply.
struct store_reply {
  std::uint64_t id = 0;
  store_status status = store_status::done;
  std::uint64_t version = 0;  ///< version of `value`; 0: the key does not exist
  std::string_view value{};
};

/// Number of bytes of a frame's head. The head holds the length of the body.
inline constexpr std::size_t store_frame_head = 4;
/// The longest frame; a greater length is invalid.
inline constexpr std::size_t store_frame_limit = 64 + store_key_limit + store_value_limit;

/// Appends a frame to the bytes.
void append_frame(std::string& bytes, const store_request& request);
void append_frame(std::string& bytes, const store_reply& reply);

struct store_frame {
  std::size_t bytes = 0;
  std::string_view body;
};
/// Returns the first frame of the received bytes; nothing while it is incomplete. A frame with an invalid length has an
/// empty body, which neither side sends.
[[nodiscard]] std::optional<store_frame> first_frame(std::string_view bytes) noexcept;

/// Parses the body of a frame; returns nothing when the other side may not send such a body.
[[nodiscard]] std::optional<store_request> parse_request(std::string_view body) noexcept;
[[nodiscard]] std::optional<store_reply> parse_reply(std::string_view body) noexcept;

}}}  // namespace muster::v0::detail
