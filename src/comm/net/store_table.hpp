// What a store holds, and what a request does to it; no sockets, no threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/clock.hpp>

#include "store_protocol.hpp"

namespace muster::inline v0::detail {

/// The keys, leases and watches of all clients. One thread at a time.
class store_table {
 public:
  /// A client, for as long as it is connected; the number is the caller's and is not used again.
  using client = std::uint64_t;
  /// Gets each answer, during `handle`, `leave` or `expire`; its text is valid during the call.
  using answer = std::function<void(client to, const store_reply& said)>;
  /// Gets each change before anybody is told of it: what is under the key for as long as the table lives, with the
  /// version of the last write. That is nothing for a value that hangs on a lease.
  using change =
      std::function<void(std::string_view key, std::uint64_t version, std::optional<std::string_view> value)>;

  static constexpr std::size_t most_bytes = std::size_t{256} << 20;  // keys and values, of all
  static constexpr std::size_t most_of_a_client = 4096;              // watches, and leases

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
  /// The changes that make a table of what is there, without what hangs on leases; the last one is of no key.
  void for_each_kept(const change& keep) const;
  /// Whether anything was restored, or written since.
  [[nodiscard]] bool is_used() const noexcept { return version_ > 0; }

  /// Does what is asked; false when no client of muster asks that.
  [[nodiscard]] bool handle(client from, const store_request& asked, clock::time_point now);
  /// The client has gone: its watches are forgotten and its leases end.
  void leave(client gone);
  /// Ends the leases whose time is over.
  void expire(clock::time_point now);
  /// Nobody was heard for so long, which was this process' own fault: no lease ends for it.
  void forgive(clock::duration deafness);
  [[nodiscard]] bool has_leases() const noexcept { return !leases_.empty(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  struct item {
    std::string value;
    std::uint64_t version = 0;
    std::uint64_t lease = 0;
  };
  struct held {
    client holder = 0;
    clock::duration ttl{};
    clock::time_point ends;
    std::set<std::string> keys;
  };
  struct waiting {
    client who = 0;
    std::uint64_t id = 0;
  };
  struct client_state {
    std::map<std::uint64_t, std::string> watches;  // id -> key
    std::set<std::uint64_t> leases;
  };

  void open(client from, const store_request& asked);
  void swap(client from, const store_request& asked);
  bool watch(client from, const store_request& asked);
  void begin_lease(client from, const store_request& asked, clock::time_point now);
  void end_lease(std::uint64_t id);
  void remove(std::map<std::string, item, std::less<>>::iterator where);
  void detach(const std::string& key, const item& from);
  void wake(const std::string& key, std::uint64_t version, std::string_view value);
  void forget_watch(client who, std::uint64_t id);

  answer tell_;
  change keep_;
  alone is_alone_;
  identity draw_;
  std::map<std::string, item, std::less<>> items_;
  std::map<std::uint64_t, held> leases_;
  std::map<std::string, std::vector<waiting>, std::less<>> watches_;
  std::map<client, client_state> clients_;
  std::uint64_t version_ = 0;
  std::uint64_t last_lease_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace muster::inline v0::detail
