// A worker's side of the protocol: messages in, messages out, without sockets, clocks or threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/clock.hpp>

#include "message.hpp"
#include "peers.hpp"
#include "settings.hpp"
#include "shard_map.hpp"

namespace muster::inline v0::ps {

/// Where a worker's words go, and what comes back.
class worker_outlet {
 public:
  virtual ~worker_outlet() = default;

  /// The payload is taken before it returns, or stays the caller's as `worker::push` says.
  virtual void send(const member& to, const message& what) = 0;
  /// All pushes to that range up to this sequence count: their memory is the caller's again. The last one was that many
  /// updates old.
  virtual void acknowledged(range_id range, std::uint64_t sequence, std::uint32_t age) = 0;
  /// What a pull asked for; the payload is valid during the call. Each pull is answered once.
  virtual void answered(std::uint64_t pull, const message& values) = 0;
  /// A push or pull that no server can carry out, and why: neither it nor what was pushed to its range behind it will
  /// ever be acknowledged.
  virtual void refused(std::string_view why) = 0;
};

/// One worker. Not thread safe. A push or pull costs O(1) beside what it sends.
///
/// Pushes to one range take effect in the order in which they are made, each once, whatever servers die: they are sent
/// again until they are acknowledged.
class worker {
 public:
  worker(member self, const protocol_settings& settings, worker_outlet& out, const shard_map& map);

  /// Starts a push; the payload is `own`, or stays where it is until it is `acknowledged`.
  /// `version` is that of the pull that the values were computed from. Returns its sequence for that range, from 1.
  std::uint64_t push(range_id range, const message& what, clock::time_point now, std::vector<std::byte> own = {});
  /// Starts a pull of values that include all pushes of this worker to that range, if `own`; returns its number.
  std::uint64_t pull(range_id range, const message& what, bool own, clock::time_point now);
  /// No caller waits for that pull any more.
  void forget(std::uint64_t pull) { pulls_.erase(pull); }
  /// One step is done: what is pushed and pulled from now on is of the next.
  void next_clock();
  /// Nothing is to be pushed or pulled any more: when all pushes count, servers are told that
  /// no other worker needs to wait for this one. It is over when all of them know: when it `has_left`.
  void leave() noexcept { leaving_ = true; }
  [[nodiscard]] bool has_left() const noexcept;
  /// The process at that place is gone for ever: a server that ended may be done, and then it answers no farewell.
  void lose(node_id gone, clock::time_point now);
  /// The map without servers that have ended and were the last to hold some range: which only a worker can write
  /// where no other server is left. Nothing as long as one of them may only have lost its connection to this worker: it
  /// lives then, and takes this worker out of the map.
  [[nodiscard]] std::optional<shard_map> without_the_last(clock::time_point now) const;
  /// The payload of that push lies in memory of the worker's from now on: true if it did not, and is not acknowledged.
  [[nodiscard]] bool keep_payload(range_id range, std::uint64_t sequence);

  void learn(const shard_map& map, clock::time_point now);
  void hear(std::span<const std::byte> frame, clock::time_point now, std::span<const std::byte> apart = {});
  /// Time passes; about ten times in `retry`.
  void tick(clock::time_point now);

  [[nodiscard]] const member& self() const noexcept { return self_; }
  [[nodiscard]] const shard_map& map() const noexcept { return map_; }
  /// The newest map that it has heard of: what its frames say, for by that its pushes may have come to count.
  [[nodiscard]] std::uint64_t newest_map() const noexcept { return std::max(newest_, map_.version); }
  /// Steps that this worker has done.
  [[nodiscard]] std::uint64_t clock_now() const noexcept { return clock_; }
  /// Of them, those that have no unacknowledged push: what servers are told.
  [[nodiscard]] std::uint64_t clock_said() const noexcept;
  /// The others went on without it. It does nothing any more.
  [[nodiscard]] bool is_fenced() const noexcept { return fenced_; }
  /// Bytes of pushes that are not acknowledged, and their number.
  [[nodiscard]] std::size_t unacknowledged_bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t unacknowledged() const noexcept { return count_; }
  [[nodiscard]] std::size_t unanswered() const noexcept { return pulls_.size(); }
  /// The last sequence that was pushed to a range, and of those that count.
  [[nodiscard]] std::uint64_t pushed(range_id range) const noexcept { return lines_[range].next - 1; }
  [[nodiscard]] std::uint64_t counted(range_id range) const noexcept { return lines_[range].counted; }
  /// Servers that were not heard for so long.
  [[nodiscard]] std::vector<member> silent(clock::time_point now, clock::duration longer_than) const;
  /// Whether some server of the map is neither gone nor silent for longer than that.
  [[nodiscard]] bool hears_a_server(clock::time_point now, clock::duration longer_than) const;
  [[nodiscard]] bool is_leaving() const noexcept { return leaving_; }

 private:
  struct kept_push {
    message what;
    std::vector<std::byte> own;  // the payload, if it is not the caller's
  };
  // What goes to one range, in its order: counted <= sent < next.
  struct line {
    member to;                  // pushes: the head of its chain
    member from;                // pulls: the last
    std::uint64_t next = 1;     // sequence
    std::uint64_t counted = 0;  // acknowledged
    std::uint64_t sent = 0;
    std::uint64_t resent_from = 0;  // what it was asked to repeat, so that it repeats it once
    clock::time_point since{};      // when it was told last, or heard of
    int tries = 0;                  // since it was heard of
    std::deque<kept_push> kept;     // from counted + 1 on
    bool listed = false;            // among the busy ones
  };
  struct open_pull {
    message what;
    std::vector<std::byte> payload;
    clock::time_point asked{};
    int tries = 0;
  };

  [[nodiscard]] bool is_due(const member& who, clock::time_point since, int tries, clock::time_point now) const;
  void hear_one(const member& who, const message& said, clock::time_point now);
  void send_kept(line& one);
  void send_pull(std::uint64_t number, open_pull& one, clock::time_point now);
  void say_pulse(std::uint8_t flags = 0);
  void close_clocks();

  member self_;
  protocol_settings settings_;
  worker_outlet& out_;
  shard_map map_;
  std::uint64_t newest_ = 0;  // version of the map that any server knows
  std::vector<line> lines_;
  std::vector<range_id> busy_;  // lines with something kept
  std::map<std::uint64_t, open_pull> pulls_;
  std::uint64_t next_pull_ = 1;
  std::uint64_t clock_ = 0;
  std::deque<std::uint64_t> open_of_clock_;  // pushes not acknowledged of clocks from `first_open_` on
  std::uint64_t first_open_ = 0;
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
  clock::time_point pulsed_{};
  peer_table peers_;
  std::map<node_id, clock::time_point>
      gone_;  // that have ended, or to which the connection has, and when that was seen
  bool leaving_ = false;
  bool fenced_ = false;
};

}  // namespace muster::inline v0::ps
