// What a client and the server of a store say to each other: frames with a length, and nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/store.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Under this key a table has a text that no other one has, from when it is first opened.
inline constexpr std::string_view store_identity_key = "store/identity";

enum class store_call : std::uint8_t {
  get = 1,
  swap = 2,    ///< `number` is the version expected
  watch = 3,   ///< `number` is the version known; answered when it is another
  cancel = 4,  ///< of the watch of the same id; not answered
  /// Answered with the identity of the table. `value` names the client, as long as it has the store open. `number`: how
  /// many milliseconds a client waits that has no part yet in what is there; 0: it comes again.
  open = 5,
  leave = 6  ///< of one that has opened the store and closes it; not answered
};

/// What a client asks. The texts are those of the bytes that were read, or that are to be written.
struct store_request {
  store_call what = store_call::get;
  std::uint64_t id = 0;  ///< the client's choice; the answer has it too
  std::uint64_t number = 0;
  std::string_view key{};
  std::optional<std::string_view> value{};
  store_life life = store_life::of_store;  ///< of a value
};

enum class store_status : std::uint8_t {
  done = 0,
  refused = 1,  ///< a swap that found another version, which is in the answer
  full = 2      ///< the store or this client has as much as it may have
};

/// What the server answers.
struct store_reply {
  std::uint64_t id = 0;
  store_status status = store_status::done;
  std::uint64_t number = 0;  ///< a version
  std::string_view value{};
};

/// A frame begins with the length of its body.
inline constexpr std::size_t store_frame_head = 4;
/// The longest frame: no length beyond it is believed.
inline constexpr std::size_t store_frame_limit = 64 + store_key_limit + store_value_limit;

/// Puts it behind what is there.
void append_frame(std::string& bytes, const store_request& said);
void append_frame(std::string& bytes, const store_reply& said);

struct store_frame {
  std::size_t bytes = 0;
  std::string_view body;
};
/// The first frame of what was read; nothing while that is a part of one. One with a length that is not believed has an
/// empty body, which neither side says.
[[nodiscard]] std::optional<store_frame> first_frame(std::string_view bytes) noexcept;

/// The body of a frame; nothing when it is not what the other side may say.
[[nodiscard]] std::optional<store_request> parse_request(std::string_view body) noexcept;
[[nodiscard]] std::optional<store_reply> parse_reply(std::string_view body) noexcept;

}}}  // namespace muster::v0::detail
