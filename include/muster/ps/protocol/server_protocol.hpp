// A server's side of the protocol: a state machine that receives and sends messages, without sockets, clocks or
// threads.
//
// The protocol is chain replication (van Renesse and Schneider, OSDI 2004), separately for each range of parameters.
//
// Roles. For each range the shard map names a chain of servers, at most one learner and at most one leaver. The first
// server of the chain is the head and the last is the tail. A server's role for a range is `holder` if the server is in
// the chain, `learner` if it receives a copy before it joins the chain, and `none` otherwise. Roles change only in
// `update_role`, when the server applies a newer map. `epoch` is the version of the map in which the range's entry
// changed last. Servers ignore each other's messages with a different epoch, so that messages of an earlier chain have
// no effect.
//
// Messages. `message.hpp` lists every message's fields.
//
//   worker -> head         push                one update; the worker keeps the push until it is acknowledged
//   server -> successor    entry               the next entry of the range's log
//   server -> predecessor  entry_ack           entries up to this index are committed
//   head -> worker         ack, resend         the push is committed; the next sequence that the head expects
//   worker -> tail         pull                answered by `values`
//   server -> successor    offer               asks for the successor's last applied index; answered by `copied`
//   tail -> learner        copy                the whole state at one index of the log; answered by `copied`
//
// Order of a push.
//   1. The worker numbers its pushes to a range from 1: the sequence.
//   2. The head accepts only a worker's next sequence, applies the push and appends it to the range's log.
//   3. Each server sends entries in the log's order. A successor applies only the entry `applied + 1` and forwards it.
//   4. The tail commits an entry when it applies the entry. `entry_ack` carries the index back along the chain.
//   5. The head sends `ack` to the worker when the entry is committed.
// A pull is answered by the tail while all its entries are committed, so that the values are at every server of the
// chain.
//
// Fields of a range (`held_range`), and the functions that write them.
//   applied        last entry that this server has applied: `apply`, and `on_copy` at a learner
//   committed      last entry that is known to be applied by every server of the chain: `commit`, `apply` at the tail,
//                  `on_copy` at a learner
//   successor_ack  last entry that the successor has reported: `on_server_message` (entry_ack), `on_copied`
//   sent           last entry that was sent to the successor: `send_entries`, reset by `on_copied`, `tick` and others
//   retained       entries that the successor may still need: `append`, removed by `commit`, and by `drop_retained` when
//                  a copy replaces them or no successor is left
//   waiting        the head's pushes that are applied and not committed: `append`, `update_role`, removed by `commit`
//   workers        the watermark of every worker's pushes: `append`, `apply`, `commit`, `on_copy` at a learner.
//                  `on_push` sets only the age and the early clock, and resets the watermark for a new incarnation
//
// Invariant. Along the chain `applied` never increases from the head to the tail, and at every server `committed` is at
// most the tail's `applied`. Hence every server of the chain has applied every committed entry. The watermarks belong
// to the state: a copy contains them, and equal logs give equal watermarks.
//
// Death of the head. The worker still has every push that is not acknowledged. Every server that
// notices the death proposes a map without the head. The store accepts one proposal by compare-and-swap. The second
// server of the chain becomes the head. It has applied all committed entries, and perhaps more. It offers to its
// successor, receives `copied`, and sends the entries that the successor lacks. A worker that reads the new map sends
// all unacknowledged pushes to the new head. The new head compares a push's sequence with the worker's watermark: a
// push that it has already applied is not applied again, only acknowledged when the chain has it, and the next sequence
// is applied. So each push takes effect once. If an inner server dies, its predecessor offers to the next server. If
// the tail dies, its predecessor becomes the tail and commits all that it has applied.
//
// A new server. The tail sends a copy to the learner and then the log's following entries. When the learner has reached
// the retained log, the tail commits only entries that the learner has reported (`learner_must_acknowledge`). When the
// learner has reported all committed entries, the tail changes the map so that the learner becomes the tail.
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

#include <muster/core/wire.hpp>
#include <muster/ps/protocol/message.hpp>
#include <muster/ps/protocol/peers.hpp>
#include <muster/ps/protocol/protocol_settings.hpp>
#include <muster/ps/protocol/shard_map.hpp>
#include <muster/ps/protocol/used_places.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// The values that a server keeps. The protocol does not know their format. All calls name ranges that the server
/// holds, and one thread makes all calls.
class range_storage {
 public:
  virtual ~range_storage() = default;

  /// Returns the reason why `apply` or `read` cannot execute this push or pull, or an empty string. The request may
  /// come from any process.
  [[nodiscard]] virtual std::string problem_with(range_id range, const message& request) const = 0;
  /// Applies an entry of the log, with the same result at every server that has applied the earlier entries. Not called
  /// for pushes with weight 0.
  virtual void apply(range_id range, const log_entry& entry) = 0;
  /// Returns the workers that hold leases of the range, or to which parts of the range are assigned.
  [[nodiscard]] virtual std::vector<member> workers_with_parts(range_id) const { return {}; }
  /// Returns the values that a pull requests, valid until the next call.
  [[nodiscard]] virtual std::span<const std::byte> read(range_id range, const message& pull) = 0;
  /// Writes the complete state of a range.
  virtual void save(range_id range, muster::detail::wire_writer& writer) const = 0;
  /// Reads the output of `save`, also of another server. Returns false for bytes that `save` cannot have written.
  [[nodiscard]] virtual bool load(range_id range, std::span<const std::byte> saved) = 0;
  /// Resets the range to its initial state. Also called when the server stops holding the range.
  virtual void reset(range_id range) = 0;
};

/// The output of a server.
class server_output {
 public:
  virtual ~server_output() = default;

  /// Sends a message and copies the payload before returning. Only the process with this incarnation may receive the
  /// message: a message for a dead process is not for its replacement.
  virtual void send(const member& node, const message& msg) = 0;
  /// Returns true if values may be sent to the worker now. Otherwise pulls wait, so that a slow worker costs no memory.
  [[nodiscard]] virtual bool has_room(const member&) const { return true; }
  /// Replaces the store's map by `next` if the store's map still has the version `expected`. The result arrives as a
  /// call of `apply_map` or `swap_failed`.
  virtual void swap(std::uint64_t expected, const shard_map& next) = 0;
};

/// A server's state machine. Not thread safe. A push costs O(1), a change of the map O(ranges).
///
/// A push is committed when the range's tail has applied it, and is acknowledged then. A committed push is lost only if
/// all servers of the chain die.
///
/// A fenced server can do no harm. It is in no chain, so no process accepts its messages, and no worker receives an
/// acknowledgement for pushes that it alone applied. With a single copy (no replicas) a fenced server could acknowledge
/// a push that no server has. Therefore the last holder of a range is fenced only when its death is proven.
class server {
 public:
  server(member self, const protocol_settings& settings, range_storage& storage, server_output& outlet,
         const shard_map& map);

  /// Applies the store's map. Maps that are not newer than the present map are ignored.
  void apply_map(const shard_map& map, clock::time_point now);
  /// Notes that the result of a swap is unknown. The server tries again.
  void swap_failed() { swapping_ = false; }
  /// Processes a frame from any process. Invalid frames are ignored. `payload` is the payload of the last message if it
  /// was sent separately. Acknowledgements are sent by `send_due_replies`.
  void on_frame(std::span<const std::byte> frame, clock::time_point now, std::span<const std::byte> payload = {});
  /// Answers the waiting pulls that are ready. Sends a single acknowledgement for each range and worker, however many
  /// pushes were received.
  void send_due_replies();
  /// Notes that time passes. Call about ten times in each `retry`.
  void tick(clock::time_point now);

  /// Notes that unanswered messages may be lost. The next tick sends to the servers of chains again. Workers send their
  /// own messages again.
  void send_again() noexcept {
    for (auto& range : ranges_) {
      range.last_sent = range.copy_until = {};
      range.copy_wait = {};
    }
  }

  /// Notes that a server or worker has ended, certainly (`proven`) or probably. Probable ends are suspects, which are
  /// fenced when no further suspect was added for `retry`. If most other processes are suspects, or this server was
  /// itself not running before, this server may be cut off. Then it waits `detection_silence` longer for their
  /// messages.
  void suspect(const member& node, bool proven);
  /// Notes that the connection with a server or worker broke and is being re-established. Until the next message from
  /// the process it counts as possibly cut off. The broken connection alone does not make it a suspect; silence does.
  void on_disconnect(const member& node, clock::time_point now);

  [[nodiscard]] const member& self() const noexcept { return self_; }
  [[nodiscard]] const shard_map& map() const noexcept { return map_; }
  /// Returns the newest map version that this server knows from frames. The server's frames carry the version, so that
  /// no process reads by an older map.
  [[nodiscard]] std::uint64_t newest_map() const noexcept { return std::max(newest_map_, map_.version); }
  /// Returns the clock that all workers have reached.
  [[nodiscard]] std::uint64_t slowest() const noexcept { return slowest_; }
  /// Returns true if other servers have fenced this server, or if it is a hot spare. Then it only notes which workers
  /// have left.
  [[nodiscard]] bool is_fenced() const noexcept { return fenced_; }
  /// Returns true if no worker in the map has more to do.
  [[nodiscard]] bool is_done() const noexcept;
  /// Returns true if this worker, in the map, has sent its farewell.
  [[nodiscard]] bool has_left(const member& worker) const noexcept;
  /// Returns true if any worker has sent its farewell, including workers that are not in the map any more.
  [[nodiscard]] bool received_farewell() const noexcept { return received_farewell_; }
  /// Returns true if the worker at the place has received the acknowledgements of all servers for its farewell.
  [[nodiscard]] bool has_all_acknowledgements(node_id worker) const { return acknowledged_workers_.contains(worker); }
  /// Returns true if this server is the head of the range.
  [[nodiscard]] bool serves(range_id range) const noexcept { return ranges_[range].serves(); }
  /// Returns the number of entries of the range's log that this server has applied.
  [[nodiscard]] std::uint64_t version(range_id range) const noexcept { return ranges_[range].applied; }
  /// Returns the batch places whose pushes the range has applied.
  [[nodiscard]] const used_places& used(range_id range) const noexcept { return ranges_[range].used; }
  /// Applies the sum of the open clock, which no worker will end. Call before values are saved without workers.
  void end_open_sums(clock::time_point now);

 private:
  enum class role : std::uint8_t { none, holder, learner };
  // A worker's pushes to a range.
  struct push_watermark {
    std::uint32_t incarnation = 0;
    bool to_acknowledge = false;
    std::uint32_t age = 0;        // age of the last push: number of updates since its values were pulled
    std::uint64_t applied = 0;    // the last applied sequence
    std::uint64_t committed = 0;  // the last sequence that every server of the chain has applied
    // Bulk: the worker's next push belongs to this later clock, and is requested when the clock opens; 0: none.
    std::uint64_t early_clock = 0;
  };
  // The received pieces of a copy that arrives in several messages.
  struct copy_pieces {
    std::uint64_t number = 0;
    std::map<std::uint32_t, std::vector<std::byte>> received{};
  };
  struct retained_entry {
    std::uint64_t index;
    std::vector<std::byte> body;
  };
  // A push that is acknowledged to its worker when the chain has it.
  struct pending {
    std::uint64_t index;
    member sender;
    std::uint64_t sequence;
  };
  struct held_range {
    role own_role = role::none;
    bool has_state = false;
    std::uint64_t epoch = 0;
    node_id predecessor = no_node;
    node_id successor = no_node;  // in the chain, or the learner
    bool successor_is_learner = false;
    bool learner_must_acknowledge = false;  // the learner must have an entry before it is committed
    bool successor_known = false;           // the successor has reported its last applied index
    bool to_acknowledge = false;            // a message to the predecessor is due
    std::uint64_t successor_ack = 0;
    std::uint64_t sent = 0;
    std::uint64_t applied = 0;
    std::uint64_t committed = 0;
    // Bulk: clocks below this number are applied as sums; the pushes in this clock are being summed.
    std::uint64_t folded = 0;
    std::optional<float> scale;  // scale of the open clock's pushes, if there are any
    used_places used;
    std::size_t retained_bytes = 0;
    std::uint64_t copied_up_to = 0;       // index of the last copy that was sent to the successor
    std::size_t copy_bytes = 0;           // size of the last copy
    clock::time_point copy_until{};       // until then no further copy is sent, because the last copy may be in transit
    clock::duration copy_wait{};          // the present waiting time, doubled for each copy
    copy_pieces pieces;                   // at a learner
    clock::time_point last_sent{};        // time of the last message to the successor
    std::deque<retained_entry> retained;  // entries that the successor may still need
    std::deque<pending> waiting;          // at the head
    std::vector<push_watermark> workers;  // indexed by place

    void drop_retained() {
      retained.clear();
      retained_bytes = 0;
    }
    [[nodiscard]] bool is_head() const noexcept { return own_role == role::holder && predecessor == no_node; }
    [[nodiscard]] bool serves() const noexcept { return is_head() && has_state; }
    // Returns true if this server is the tail. The tail answers pulls while all its entries are committed: then every
    // server of the chain has the values.
    [[nodiscard]] bool is_tail() const noexcept {
      return own_role == role::holder && has_state && (successor == no_node || successor_is_learner);
    }
    [[nodiscard]] bool may_answer() const noexcept { return is_tail() && committed == applied; }
  };
  struct waiting_pull {
    member sender;
    message pull;
    std::vector<std::byte> payload;
  };

  void on_worker_message(const member& worker, const message& msg, clock::time_point now);
  void on_server_message(const member& sender, const message& msg, clock::time_point now);
  void on_push(const member& worker, const message& msg, held_range& range, clock::time_point now);
  void on_lease_claim(const member& worker, const message& msg, held_range& range, clock::time_point now);
  void on_pull(const member& worker, const message& msg);
  void on_pulse(const member& worker, const message& msg);
  void on_entry(node_id sender, const message& msg, held_range& range, clock::time_point now);
  void on_copied(const message& msg, held_range& range, clock::time_point now);
  void on_copy(node_id sender, const message& msg, held_range& range);

  void update_role(range_id range_number, held_range& range, clock::time_point now);
  void append(range_id range_number, held_range& range, const log_entry& entry, clock::time_point now);
  void apply(range_id range_number, held_range& range, const log_entry& entry);
  void commit(range_id range_number, held_range& range, std::uint64_t up_to);
  void commit_as_tail(range_id range_number, held_range& range);
  void acknowledge_to(range_id range_number, held_range& range, node_id worker);
  void send_entries(range_id range_number, held_range& range, clock::time_point now);
  void send_copy(range_id range_number, held_range& range, clock::time_point now);
  void offer(range_id range_number, held_range& range, clock::time_point now);
  void send_values(const member& worker, const message& pull);
  void request_resend(range_id range_number, const held_range& range, const member& worker, std::uint64_t expected);
  void refuse(const member& worker, const message& request, const std::string& reason,
              const char* suggestion = "start all ranks with the same tables and the same build");
  [[nodiscard]] bool is_ready(const member& worker, const message& pull) const;
  [[nodiscard]] bool is_summed(const message& push) const noexcept {
    return settings_.model.type == consistency::kind::bulk && (push.flags & (assigns | restores | leases)) == 0;
  }
  void on_clocks_changed(clock::time_point now);
  void return_leases(clock::time_point now);
  void send_to_server(node_id node, const message& msg);
  void propose_map(clock::time_point now);
  [[nodiscard]] bool may_fence_suspects(clock::time_point now);
  void suspect_silent_peers(clock::time_point now);
  push_watermark& watermark_of(held_range& range, node_id worker);

  member self_;
  protocol_settings settings_;
  range_storage& values_;
  server_output& outlet_;
  shard_map map_;
  peer_table peers_;
  std::uint64_t slowest_ = 0;  // the slowest worker's clock
  std::uint64_t fastest_ = 0;  // largest clock of any worker, also of removed workers
  std::vector<held_range> ranges_;
  std::vector<waiting_pull> waiting_pulls_;
  // Pairs of range and worker; `no_node` means the predecessor in the chain.
  std::vector<std::pair<range_id, node_id>> due_acks_;
  clock::time_point suspected_at_{};  // when the last suspect was added
  clock::time_point resumed_at_{};    // when this server last resumed after it was stopped or cut off
  clock::time_point heartbeat_at_{};
  std::uint64_t newest_map_ = 0;  // newest map version that any other process knows
  bool missed_most_ = false;      // more than half of the other processes were missing at the last check
  bool swapping_ = false;
  bool fenced_ = false;
  bool received_farewell_ = false;
  std::set<node_id> acknowledged_workers_;  // workers that wait for no server any more
};

}}}  // namespace muster::v0::ps

#include <muster/ps/protocol/detail/server_protocol-inl.hpp>
#include <muster/ps/protocol/server_chain.hpp>
#include <muster/ps/protocol/server_clock.hpp>
#include <muster/ps/protocol/server_map.hpp>
