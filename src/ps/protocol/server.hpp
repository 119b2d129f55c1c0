// A server's side of the protocol: messages in, messages out, without sockets, clocks or threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <muster/core/clock.hpp>

#include "../../core/wire.hpp"
#include "message.hpp"
#include "peers.hpp"
#include "settings.hpp"
#include "shard_map.hpp"
#include "used_places.hpp"

namespace muster { inline namespace v0 { namespace ps {

/// The values that a server keeps; what they are is nothing that the protocol knows. All calls name ranges that the
/// server holds, and are made by one thread.
class range_storage {
 public:
  virtual ~range_storage() = default;

  /// Why `apply` or `read` cannot carry out that push or pull, which may be of any origin; empty where they can.
  [[nodiscard]] virtual std::string problem_with(range_id range, const message& asked) const = 0;
  /// Carries out an entry of the log, the same at every server that has what came before it. Of pushes whose weight is
  /// 0 it is not told.
  virtual void apply(range_id range, const log_entry& entry) = 0;
  /// The workers that hold leases of that range.
  [[nodiscard]] virtual std::vector<member> holders(range_id) const { return {}; }
  /// What a pull asks for; valid until the next call.
  [[nodiscard]] virtual std::span<const std::byte> read(range_id range, const message& pull) = 0;
  /// All that there is of a range.
  virtual void save(range_id range, muster::detail::wire_writer& to) const = 0;
  /// What `save` wrote, there or elsewhere; false for what it cannot have written.
  [[nodiscard]] virtual bool load(range_id range, std::span<const std::byte> saved) = 0;
  /// The range as it is in the beginning, and where it is not held any more.
  virtual void reset(range_id range) = 0;
};

/// Where a server's words go.
class server_outlet {
 public:
  virtual ~server_outlet() = default;

  /// The payload is taken before it returns. No other process than that one may hear it: what is meant for one that
  /// died is not for the one that has its place now.
  virtual void send(const member& to, const message& what) = 0;
  /// Whether values may be sent there now: else pulls wait, so that one slow worker costs no memory.
  [[nodiscard]] virtual bool has_room(const member&) const { return true; }
  /// The store's map becomes `next` if it still is of version `expected`. Whatever comes of it is told by `learn`, or
  /// `swap_failed`.
  virtual void swap(std::uint64_t expected, const shard_map& next) = 0;
};

/// One server. Not thread safe. A push costs O(1), a change of the map O(ranges).
///
/// A push counts from when the last of its range's chain has it, and is acknowledged then: it is lost only if all of
/// the chain die. Every server of the chain keeps, beside the values, the sequence of the last push of each worker: a
/// push is applied when it is the next of its worker, and what was applied before is only acknowledged again. That
/// table goes wherever the values go, in the same message.
///
/// A fenced server can do no harm: it is in no chain, so no process takes its word, and what it applies alone is
/// acknowledged to none. With one copy alone (no replicas) a fenced server might acknowledge what no server will have;
/// therefore the last holder of a range is fenced only when it is known to be dead.
class server {
 public:
  server(member self, const protocol_settings& settings, range_storage& values, server_outlet& out,
         const shard_map& map);

  /// The store's map; older ones than the one it knows are ignored.
  void learn(const shard_map& map, clock::time_point now);
  /// A swap came to nothing that is known: it is tried again.
  void swap_failed() { swapping_ = false; }
  /// A frame of any origin; what is no frame is ignored. Answers wait for `flush`.
  void hear(std::span<const std::byte> frame, clock::time_point now, std::span<const std::byte> apart = {});
  /// Sends the acknowledgements of what was heard: one a range and worker, however many pushes.
  void flush();
  /// Time passes; about ten times in `retry`.
  void tick(clock::time_point now);

  /// What was sent and not answered may be lost: servers of chains are told again with the next tick, and workers ask.
  void send_again() noexcept {
    for (auto& range : ranges_) {
      range.said = range.copy_until = {};
      range.copy_wait = {};
    }
  }

  /// A server or worker is gone: certainly, or as far as can be told. Those of which that is not certain are given up
  /// when for `retry` no more came to them; and where that is more than half of all others, it may be this server that
  /// is cut off, as it may where it was itself stopped before, and they ended their connections with it: it gives them
  /// `silence` more to say so.
  void suspect(const member& node, bool proven);
  /// The connection with a server or worker broke, and another is tried. Until it is heard again it counts among those
  /// that may be on the other side of a cut, and is not given up.
  void doubt(const member& node, clock::time_point now);

  [[nodiscard]] const member& self() const noexcept { return self_; }
  [[nodiscard]] const shard_map& map() const noexcept { return map_; }
  /// The newest map that it has heard of: what its frames say, so that no process reads by an older one.
  [[nodiscard]] std::uint64_t newest_map() const noexcept { return std::max(newest_, map_.version); }
  /// The clock that all workers have reached.
  [[nodiscard]] std::uint64_t slowest() const noexcept { return slowest_; }
  /// The others went on without it, or it stands by. It does nothing but hear which workers have left.
  [[nodiscard]] bool is_fenced() const noexcept { return fenced_; }
  /// No worker of the map has more to do.
  [[nodiscard]] bool is_done() const noexcept;
  /// Whether that worker of the map said that it has no more to do.
  [[nodiscard]] bool has_left(const member& worker) const noexcept;
  /// Whether any worker said so, also one that others have taken out of the map since.
  [[nodiscard]] bool heard_farewell() const noexcept { return heard_farewell_; }
  /// Whether the worker at that place has heard that all servers know of its farewell.
  [[nodiscard]] bool is_informed(node_id worker) const { return informed_.contains(worker); }
  /// Whether it serves that range, and how many entries its log has here.
  [[nodiscard]] bool serves(range_id range) const noexcept { return ranges_[range].serves(); }
  [[nodiscard]] std::uint64_t version(range_id range) const noexcept { return ranges_[range].applied; }
  /// The places of the pushes that a range has had.
  [[nodiscard]] const used_places& used(range_id range) const noexcept { return ranges_[range].used; }
  /// Bulk, without workers: applies the sum of the clock that no worker has ended, before values are saved.
  void end_open_sums(clock::time_point now);

 private:
  enum class role : std::uint8_t { none, holder, learner };
  // The pushes of one worker that a range has had.
  struct push_watermark {
    std::uint32_t incarnation = 0;
    bool to_acknowledge = false;
    std::uint32_t age = 0;        // of the last push, in updates since it was pulled
    std::uint64_t applied = 0;    // the last sequence
    std::uint64_t committed = 0;  // of those, the last that all of the chain have
    std::uint64_t early = 0;      // bulk: its next push came, and is asked for when this clock is open; 0: none did
  };
  // Of a copy that comes in several messages.
  struct copy_pieces {
    std::uint64_t number = 0;
    std::map<std::uint32_t, std::vector<std::byte>> come{};
  };
  struct kept_entry {
    std::uint64_t index;
    std::vector<std::byte> body;
  };
  // An entry that is to be acknowledged to its worker when the chain has it.
  struct pending {
    std::uint64_t index;
    member from;
    std::uint64_t sequence;
  };
  struct held_range {
    role as = role::none;
    bool has_state = false;
    std::uint64_t epoch = 0;
    node_id predecessor = no_node;
    node_id successor = no_node;  // in the chain, or the learner
    bool successor_is_learner = false;
    bool successor_counts = false;  // a learner without which nothing is acknowledged
    bool behind_known = false;      // how far it is
    bool to_acknowledge = false;    // to the one before
    std::uint64_t behind_has = 0;
    std::uint64_t sent = 0;
    std::uint64_t applied = 0;
    std::uint64_t committed = 0;
    std::uint64_t folded = 0;    // bulk: clocks with an applied sum; pushes of the next are summed
    std::optional<float> scale;  // of these, if there were any
    used_places used;
    std::size_t kept_bytes = 0;
    std::uint64_t copied = 0;             // the last copy for the one behind has the entries up to it
    std::size_t copy_bytes = 0;           // of it
    clock::time_point copy_until{};       // so long no other is sent: it may be under way
    clock::duration copy_wait{};          // as long
    copy_pieces pieces;                   // at a learner
    clock::time_point said{};             // to the one behind, last
    std::deque<kept_entry> kept;          // what the one behind may have to be told
    std::deque<pending> waiting;          // at the head
    std::vector<push_watermark> workers;  // by place

    void drop_kept() {
      kept.clear();
      kept_bytes = 0;
    }
    [[nodiscard]] bool is_head() const noexcept { return as == role::holder && predecessor == no_node; }
    [[nodiscard]] bool serves() const noexcept { return is_head() && has_state; }
    // The last of the chain answers pulls, while all that it has is for good: what was read is at every server of it.
    [[nodiscard]] bool is_last() const noexcept {
      return as == role::holder && has_state && (successor == no_node || successor_is_learner);
    }
    [[nodiscard]] bool answers() const noexcept { return is_last() && committed == applied; }
  };
  struct parked_pull {
    member from;
    message what;
    std::vector<std::byte> payload;
  };

  void hear_worker(const member& from, const message& said, clock::time_point now);
  void hear_server(const member& from, const message& said, clock::time_point now);
  void hear_push(const member& from, const message& said, held_range& range, clock::time_point now);
  void hear_claim(const member& from, const message& said, held_range& range, clock::time_point now);
  void hear_pull(const member& from, const message& said);
  void hear_pulse(const member& from, const message& said);
  void hear_entry(node_id from, const message& said, held_range& range, clock::time_point now);
  void hear_copied(const message& said, held_range& range, clock::time_point now);
  void hear_copy(node_id from, const message& said, held_range& range);

  void take_place(range_id id, held_range& range, clock::time_point now);
  void append(range_id id, held_range& range, const log_entry& entry, clock::time_point now);
  void apply(range_id id, held_range& range, const log_entry& entry);
  void commit(range_id id, held_range& range, std::uint64_t up_to);
  void settle(range_id id, held_range& range);
  void acknowledge_to(range_id id, held_range& range, node_id worker);
  void send_entries(range_id id, held_range& range, clock::time_point now);
  void send_copy(range_id id, held_range& range, clock::time_point now);
  void offer(range_id id, held_range& range, clock::time_point now);
  void send_values(const member& to, const message& pull);
  void ask_again(range_id id, const held_range& range, const member& worker, std::uint64_t from);
  void refuse(const member& to, const message& asked, const std::string& why,
              const char* suggestion = "start all ranks with the same tables and the same build");
  [[nodiscard]] bool is_ready(const member& from, const message& pull) const;
  [[nodiscard]] bool is_summed(const message& push) const noexcept {
    return settings_.how.what == consistency::kind::bulk && (push.flags & (assigns | restores | leases)) == 0;
  }
  void clocks_moved(clock::time_point now);
  void return_leases(clock::time_point now);
  void tell_server(node_id to, const message& what);
  void govern(clock::time_point now);
  [[nodiscard]] bool gives_up_suspects(clock::time_point now);
  void look_for_the_silent(clock::time_point now);
  push_watermark& watermark_of(held_range& range, node_id worker);

  member self_;
  protocol_settings settings_;
  range_storage& values_;
  server_outlet& out_;
  shard_map map_;
  peer_table peers_;
  std::uint64_t slowest_ = 0;  // clock of all workers
  std::uint64_t fastest_ = 0;  // of some worker, perhaps one that is gone
  std::vector<held_range> ranges_;
  std::vector<parked_pull> parked_;
  std::vector<std::pair<range_id, node_id>> acknowledge_;  // workers; `no_node`: the predecessor in the chain
  clock::time_point suspected_at_{};                       // when one more was missed
  clock::time_point back_at_{};                            // from when it was itself stopped, or cut off
  clock::time_point pulsed_{};
  std::uint64_t newest_ = 0;  // version of the map that any other knows
  bool missed_most_ = false;  // of the others
  bool swapping_ = false;
  bool fenced_ = false;
  bool heard_farewell_ = false;
  std::set<node_id> informed_;  // workers that wait for no server any more
};

}}}  // namespace muster::v0::ps
