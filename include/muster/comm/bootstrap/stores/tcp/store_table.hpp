// The contents of a store, in memory and on disk, and the effect of requests on them; no sockets, no threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/bootstrap/stores/tcp/store_protocol.hpp>
#include <muster/comm/net/socket.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The keys of a store and the clients' watches. Used by one thread at a time.
class store_table {
 public:
  /// The number of a client while it is connected. The caller chooses it, above 0, and never uses it again.
  using client = std::uint64_t;
  /// Receives each reply, during `handle` or `leave`. The reply's text is valid during the call.
  using reply_handler = std::function<void(client receiver, const store_reply& reply)>;
  static constexpr std::size_t most_bytes = std::size_t{256} << 20;  // limit of all keys and values together
  static constexpr std::ptrdiff_t most_of_a_client = 4096;           // limit of the watches of a client

  /// Returns true if the client is the only client with a part in the table: when it opens the store, the table
  /// restarts empty.
  using is_only_client = std::function<bool(client opener)>;
  /// Returns a new identity for a table: a text that no other table has.
  using identity = std::function<std::string()>;

  /// Opens a table. With a `journal_folder`, which is created if necessary, all changes are appended to its file
  /// "store". The table continues with the contents of that file, except the values of clients. Every change whose
  /// request was answered survives a crash of this process, and survives a crash of the host as far as its disk does. A
  /// last record that was not written completely is ignored. Throws configuration_error when the folder cannot be used,
  /// or when another process has it open, and data_error when the file cannot be read or another part is damaged.
  explicit store_table(
      reply_handler reply, const std::string& journal_folder = "",
      is_only_client is_alone = [](client) { return false; },
      identity draw = [] { return std::string("the only one"); });

  /// Returns true if contents were restored, or written since.
  [[nodiscard]] bool is_used() const noexcept { return version_ > 0; }

  /// Executes a request and passes the replies to the reply handler. Returns false for a request that no client of
  /// muster sends. A change is on the disk before any client is notified: O(its bytes), and a flush. Throws error when
  /// that fails.
  [[nodiscard]] bool handle(client sender, const store_request& request);
  /// Ends a client: its watches end and its keys are removed.
  void leave(client former);
  /// Returns the size in bytes of all keys and values.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  struct stored_value {
    std::string value;
    std::uint64_t version = 0;
    client owner = 0;  // the client whose end removes the value; 0: none
  };
  struct waiting {
    client watcher = 0;
    std::uint64_t id = 0;
    std::string key;
  };

  // Reads the journal in the folder, and replaces it by a journal of the present values.
  void open_journal(const std::string& folder);
  [[nodiscard]] std::optional<std::size_t> replay(std::string_view text);
  // Appends to the journal the value that the key has after the end of all clients: nothing if the key is removed or
  // its value belongs to a client.
  void record(std::string_view key, std::optional<std::string_view> value);
  // Sets or removes a value in memory, without a record in the journal.
  void put(std::string_view key, std::uint64_t version, std::optional<std::string_view> value);
  // Replies to a request with the entry of the key; version 0 if there is none.
  void reply_entry(client receiver, std::uint64_t request_id, std::string_view key,
                   store_status status = store_status::done);
  // Answers request `request_id`, by which a client opens the store, with the table's identity. Empties the table first
  // if `is_only_client_` returns true.
  void open(client sender, std::uint64_t request_id);
  void swap(client sender, const store_request& request);
  // Replies at once if the key's version differs from the request's; otherwise keeps the request in `watches_`. Returns
  // false if the client uses the number of a request that it already waits for.
  bool watch(client sender, const store_request& request);
  // Removes a value in memory, and wakes the watches of its key.
  void remove(std::map<std::string, stored_value, std::less<>>::iterator item);
  // Replies to all watches of the key, and ends them.
  void wake(std::string_view key);

  reply_handler reply_;
  is_only_client is_only_client_;
  identity draw_;
  std::map<std::string, stored_value, std::less<>> items_;
  std::vector<waiting> watches_;  // in the order of arrival
  std::uint64_t version_ = 0;
  std::size_t bytes_ = 0;
  std::string path_;
  descriptor lock_;  // locks the folder
  descriptor file_;
};

}}}  // namespace muster::v0::detail
