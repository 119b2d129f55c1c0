// What a store holds, and what a request does to it; no sockets, no threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store_protocol.hpp"

namespace muster::inline v0::detail {

/// The keys and watches of all clients. One thread at a time.
class store_table {
 public:
  /// A client, for as long as it is connected; the number is the caller's, above 0, and is not used again.
  using client = std::uint64_t;
  /// Gets each answer, during `handle` or `leave`; its text is valid during the call.
  using answer = std::function<void(client to, const store_reply& said)>;
  /// Gets each change before any client is told of it: what is under the key for as long as the table lives, with the
  /// version of the last write. That is nothing for a value of a client.
  using change =
      std::function<void(std::string_view key, std::uint64_t version, std::optional<std::string_view> value)>;

  static constexpr std::size_t most_bytes = std::size_t{256} << 20;  // keys and values, of all
  static constexpr std::size_t most_of_a_client = 4096;              // watches

  /// Whether no client but this one has a part in the table: what it opens then begins anew.
  using alone = std::function<bool(client opens)>;
  /// Draws a text that no other table has.
  using identity = std::function<std::string()>;

  explicit store_table(
      answer tell, change keep = {}, alone is_alone = [](client) { return false; },
      identity draw = [] { return std::string("the only one"); })
      : tell_(std::move(tell)), keep_(std::move(keep)), is_alone_(std::move(is_alone)), draw_(std::move(draw)) {}

  /// A change that an earlier table kept, in the order in which it did.
  void restore(std::string_view key, std::uint64_t version, std::optional<std::string_view> value);
  /// The changes that make a table of what is there, without what is of clients; the last one is of no key.
  void for_each_kept(const change& keep) const;
  /// Whether anything was restored, or written since.
  [[nodiscard]] bool is_used() const noexcept { return version_ > 0; }

  /// Does what is asked; false when no client of muster asks that.
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
    client who = 0;
    std::uint64_t id = 0;
  };
  void open(client from, const store_request& asked);
  void swap(client from, const store_request& asked);
  bool watch(client from, const store_request& asked);
  void remove(std::map<std::string, item, std::less<>>::iterator where);
  void wake(const std::string& key, std::uint64_t version, std::string_view value);
  void forget_watch(client who, std::uint64_t id);

  answer tell_;
  change keep_;
  alone is_alone_;
  identity draw_;
  std::map<std::string, item, std::less<>> items_;
  std::map<std::string, std::vector<waiting>, std::less<>> watches_;
  std::map<client, std::map<std::uint64_t, std::string>> watched_;  // by id: the key
  std::uint64_t version_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace muster::inline v0::detail
