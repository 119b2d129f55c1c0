// The interface of stores: linearizable key-value tables by which ranks find each other and agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>

namespace muster { inline namespace v0 {

/// The longest key and value, in bytes. A longer key or value, and an empty key, is a configuration_error. Keys and
/// values are any bytes.
inline constexpr std::size_t store_key_limit = 1024;
inline constexpr std::size_t store_value_limit = std::size_t{1} << 20;

/// The value of a key and its version. A write sets a version greater than the version of every earlier write to any
/// key. The version is 0 if there is no value.
struct store_entry {
  std::uint64_t version = 0;
  std::string value;

  explicit operator bool() const noexcept { return version != 0; }
  bool operator==(const store_entry&) const = default;
};

/// The result of a compare_and_swap, and the entry after it; after success without the value.
struct store_swap {
  bool swapped = false;
  store_entry now;
};

/// The store was restarted empty, or with an older table, while this process was not connected. This process no longer
/// knows the state that the other processes agree on. Every later call throws this error too.
class store_left_behind : public peer_failure {
 public:
  /// Makes an error without ranks; `text` names the store.
  explicit store_left_behind(const std::string& text) : peer_failure({}, text) {}
};

/// The lifetime of a key that is not removed.
enum class store_life : std::uint8_t {
  of_store,  ///< as long as the store
  of_client  ///< until the client that wrote it closes the store, dies or is cut off from it
};

/// The role of a process at a store.
enum class store_role : std::uint8_t {
  member,   ///< the store exists as long as a member has it open, and the first member finds it empty
  onlooker  ///< reads the store and never writes; members do not notice an onlooker
};

/// A small table of keys and values that all processes of a job share. The table exists as long as a process has it
/// open; destroying this object closes it.
///
/// Every call is linearizable: it takes effect at one moment between its start and its return, for all processes. Many
/// threads may make calls at once. Each call has a deadline: it throws `timeout_error` when the deadline passes (a swap
/// may have happened or not: `get` shows it; `watch` returns nothing instead), and `peer_failure` as soon as the store
/// is lost. Every later call throws `peer_failure` too, unless the store connects again (etcd_store, and tcp_store if
/// requested).
class any_store {
 public:
  virtual ~any_store() = default;

  /// Returns the present entry of a key; version 0 if there is none. Does not wait until the key exists (see watch).
  [[nodiscard]] virtual store_entry get(std::string_view key, clock::time_point until) = 0;
  /// Writes `value`, or removes the key when `value` is nothing, if the key's version is still `expected` (0: if the
  /// key does not exist).
  virtual store_swap compare_and_swap(std::string_view key, std::uint64_t expected,
                                      std::optional<std::string_view> value, clock::time_point until,
                                      store_life life = store_life::of_store) = 0;
  /// Waits until the version is not `known`, because the key was written, was removed or expired with its client.
  /// Returns nothing when the deadline passes or a stop is requested first. If there were several changes, the call may
  /// report only the last.
  [[nodiscard]] virtual std::optional<store_entry> watch(std::string_view key, std::uint64_t known,
                                                         clock::time_point until, const std::stop_token& stop = {}) = 0;
  /// Returns the store's name in errors: "tcp://10.0.0.1:29500".
  [[nodiscard]] virtual std::string where() const = 0;
  /// Returns true if this process serves the store to the others, and the server ends with this object: then this
  /// process closes the store last.
  [[nodiscard]] virtual bool is_served_here() const { return false; }

 protected:
  any_store() = default;
  any_store(const any_store&) = default;
  any_store& operator=(const any_store&) = default;
};

namespace detail {

/// Throws configuration_error when the store named `where` does not accept the key or the value. `limit`: bytes of the
/// longest key.
void check_store_key(std::string_view key, const std::string& where, std::size_t limit = store_key_limit);
void check_store_value(std::optional<std::string_view> value, const std::string& where);
/// Throws the timeout_error of a call ("get") that reached its deadline at the store named `where`.
[[noreturn]] void store_timed_out(const char* function, std::string_view key, const std::string& where);

}  // namespace detail
}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
