// What a store holds, in memory and on disk, and what a request does to it; no sockets, no threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../../../net/socket.hpp"
#include "store_protocol.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// The keys and watches of all clients. One thread at a time.
class store_table {
 public:
  /// A client, for as long as it is connected; the number is the caller's, above 0, and is not used again.
  using client = std::uint64_t;
  /// Gets each answer, during `handle` or `leave`; its text is valid during the call.
  using answer = std::function<void(client to, const store_reply& said)>;
  static constexpr std::size_t most_bytes = std::size_t{256} << 20;  // keys and values, of all
  static constexpr std::ptrdiff_t most_of_a_client = 4096;           // watches

  /// Whether no client but this one has a part in the table: what it opens then begins anew.
  using alone = std::function<bool(client opens)>;
  /// Draws a text that no other table has.
  using identity = std::function<std::string()>;

  /// With a folder, which is made where there is none, all changes stand one behind the other in its file "store", and
  /// the table goes on with what is there, but for what was of clients. What was answered survives this process, and
  /// the host as far as its disk does; a record that was not written to its end is as if it had not begun. Throws
  /// configuration_error when that cannot be, or when another process has the folder open, and data_error when the
  /// file cannot be read or is damaged elsewhere.
  explicit store_table(
      answer tell, const std::string& folder = "", alone is_alone = [](client) { return false; },
      identity draw = [] { return std::string("the only one"); });

  /// Whether anything was restored, or written since.
  [[nodiscard]] bool is_used() const noexcept { return version_ > 0; }

  /// Does what is asked; false when no client of muster asks that. A change is on the disk before any client is told of
  /// it: O(its bytes), and a flush. Throws error when that fails.
  [[nodiscard]] bool handle(client from, const store_request& asked);
  /// The client has gone: its watches are forgotten and its keys vanish.
  void leave(client gone);
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  struct item {
    std::string value;
    std::uint64_t version = 0;
    client owner = 0;  // that it goes with; none: 0
  };
  struct waiting {
    client watcher = 0;
    std::uint64_t id = 0;
    std::string key;
  };

  void open_journal(const std::string& folder);
  [[nodiscard]] std::optional<std::size_t> replay(std::string_view text);
  // What is under the key for as long as the table lives: nothing for a value of a client.
  void record(std::string_view key, std::optional<std::string_view> value);
  void put(std::string_view key, std::uint64_t version, std::optional<std::string_view> value);
  void tell_entry(client to, std::uint64_t id, std::string_view key, store_status status = store_status::done);
  void open(client from, std::uint64_t id);
  void swap(client from, const store_request& asked);
  bool watch(client from, const store_request& asked);
  void remove(std::map<std::string, item, std::less<>>::iterator where);
  void wake(std::string_view key);

  answer tell_;
  alone is_alone_;
  identity draw_;
  std::map<std::string, item, std::less<>> items_;
  std::vector<waiting> watches_;  // in the order in which they came
  std::uint64_t version_ = 0;
  std::size_t bytes_ = 0;
  std::string path_;
  descriptor lock_;  // the folder
  descriptor file_;
};

}}}  // namespace muster::v0::detail
