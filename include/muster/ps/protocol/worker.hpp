// A worker's side of the protocol: a state machine that receives and sends messages, without sockets, clocks or
// threads. `server_protocol.hpp` describes the protocol.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/core/clock.hpp>

#include <muster/ps/protocol/message.hpp>
#include <muster/ps/protocol/peers.hpp>
#include <muster/ps/protocol/protocol_settings.hpp>
#include <muster/ps/protocol/shard_map.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// The output of a worker: messages, and the results of pushes and pulls.
class worker_output {
 public:
  virtual ~worker_output() = default;

  /// Sends a message. The payload is copied before `send` returns, or stays the caller's, see `worker::push`.
  virtual void send(const member& node, const message& msg) = 0;
  /// All pushes to the range up to `sequence` are committed: their memory belongs to the caller again. The last push
  /// was `age` updates old.
  virtual void on_acknowledged(range_id range, std::uint64_t sequence, std::uint32_t age) = 0;
  /// The answer to a pull. The payload is valid during the call. Called once for each pull.
  virtual void on_values(std::uint64_t pull, const message& reply) = 0;
  /// No server can execute a push or pull, for the reason `reason`. Neither this push nor later pushes to the same
  /// range will ever be acknowledged.
  virtual void on_refused(std::string_view reason) = 0;
};

/// A worker's state machine. Not thread safe. A push or pull costs O(1), besides the messages that it sends.
///
/// Pushes to one range take effect in the order of the calls, each once, whichever servers die: the worker sends a push
/// again until the push is acknowledged.
class worker {
 public:
  worker(member self, const protocol_settings& settings, worker_output& outlet, const shard_map& map)
      : self_(self), settings_(settings), outlet_(outlet), channels_(map.ranges.size()), unacknowledged_of_clock_{0} {
    apply_map(map, {});
  }

  /// Starts a push. The payload is `own`, or the caller's memory, which must stay unchanged until `on_acknowledged`.
  /// `request.version` is the version of the pull from which the values were computed. Returns the push's sequence for
  /// the range, from 1.
  std::uint64_t push(range_id range, const message& request, clock::time_point now, std::vector<std::byte> own = {}) {
    range_channel& channel = channels_[range];
    message push = request;
    if (!own.empty()) push.payload = own;
    push.kind = message_kind::push;
    push.range = range;
    push.number = channel.next++;
    push.clock = clock_;
    ++unacknowledged_of_clock_.back();
    ++count_;
    bytes_ += push.payload.size();
    if (!std::exchange(channel.is_busy, true)) busy_.push_back(range);
    if (channel.unacknowledged.empty()) channel.since = now;
    channel.unacknowledged.push_back({push, std::move(own)});  // the payload bytes do not move
    send_unacknowledged(channel);
    return push.number;
  }

  /// Starts a pull and returns its number. If `own`, the values must include all of the worker's own pushes to the
  /// range.
  std::uint64_t pull(range_id range, const message& query, bool own, clock::time_point now) {
    const std::uint64_t number = next_pull_++;
    open_pull& open = pulls_[number];
    open.query = query;
    open.query.kind = message_kind::pull;
    open.query.range = range;
    open.query.number = number;
    open.query.clock = clock_;
    open.query.version = own ? channels_[range].next - 1 : 0;
    open.payload.assign(query.payload.begin(), query.payload.end());
    send_pull(number, open, now);
    return number;
  }

  /// Notes that no caller waits for that pull any more.
  void forget(std::uint64_t pull) { pulls_.erase(pull); }
  /// Ends a step: later pushes and pulls belong to the next clock.
  void next_clock() {
    ++clock_;
    unacknowledged_of_clock_.push_back(0);
    close_clocks();
    send_pulse();
  }

  /// Advances the clock. The other workers need not wait for the skipped clocks. Smaller clocks are ignored.
  void move_clock(std::uint64_t clock) {
    if (clock <= clock_) return;
    unacknowledged_of_clock_.resize(unacknowledged_of_clock_.size() + (clock - clock_), 0);
    clock_ = clock;
    close_clocks();
    send_pulse();
  }

  /// Announces that this worker has no further pushes or pulls. When all pushes are committed, the servers are notified
  /// that no worker needs to wait for this worker. The departure is complete when all servers have acknowledged it:
  /// then `has_left` returns true.
  void leave() noexcept { leaving_ = true; }

  [[nodiscard]] bool has_left() const noexcept {
    return leaving_ && count_ == 0 && std::ranges::all_of(map_.servers, [&](const server_entry& server) {
             return peers_.find(server.node)->has_left || lost_.contains(server.node.place);
           });
  }

  /// Sends all unanswered messages again, because they may be lost.
  void send_again(clock::time_point now) {
    for (const auto id : busy_) send_again(channels_[id], now);
    for (auto& [number, open] : pulls_) send_pull(number, open, now);
    send_pulse(wants_reply);
  }

  /// Notes that the process at a place has ended, or the connection to it. A server that has ended may have finished,
  /// and then answers no farewell.
  void lose(node_id node, clock::time_point now) { lost_.emplace(node, now); }
  /// Notes that the process at a place has ended, by proof.
  void lose(node_id node) { lost_.insert_or_assign(node, clock::time_point::min()); }

  /// Returns the map without ended servers, if they were the last holders of some range: if no other server is left,
  /// only a worker can write this map. Returns nullopt while such a server may only have lost its connection to this
  /// worker: in that time the live server removes this worker from the map.
  [[nodiscard]] std::optional<shard_map> without_lost_holders(clock::time_point now) const {
    if (lost_.empty() || leaving_ || fenced_) return std::nullopt;
    // A server fences a worker with a broken connection after `retry`, plus `detection_silence` if the server misses
    // most other processes. The store and this worker's read need the same time again.
    const auto until_fenced = settings_.one_sided_break + settings_.retry + 2 * settings_.detection_silence;
    std::vector<member> dead;
    for (const auto& [at, since] : lost_) {
      const auto* const entry = map_.server(at);
      if (entry == nullptr) continue;
      if (since == clock::time_point::min() ||
          now - std::max(since, peers_.find(entry->node)->last_received) > until_fenced)
        dead.push_back(entry->node);
    }
    auto next = without_servers(map_, dead, {});
    return next && next->lost_range() ? next : std::nullopt;
  }

  /// Copies that push's payload into the worker's memory. Returns true if the push is not acknowledged and its payload
  /// was in the caller's memory.
  [[nodiscard]] bool copy_payload(range_id range, std::uint64_t sequence) {
    range_channel& channel = channels_[range];
    if (sequence <= channel.acknowledged || sequence >= channel.next) return false;
    auto& push = channel.unacknowledged[static_cast<std::size_t>(sequence - channel.acknowledged - 1)];
    if (!push.own.empty()) return false;
    push.own.assign(push.request.payload.begin(), push.request.payload.end());
    push.request.payload = push.own;
    return true;
  }

  void apply_map(const shard_map& map, clock::time_point now) {
    if (map.version <= map_.version || map.ranges.size() != channels_.size()) return;
    map_ = map;
    peers_.apply_map(map_, now);
    fenced_ = !map_.has_worker(self_);
    if (fenced_) return send_pulse();
    for (range_id id = 0; id < channels_.size(); ++id) {
      range_channel& channel = channels_[id];
      const auto* const head = map_.server(map_.ranges[id].head());
      const member head_node = head == nullptr ? member{} : head->node;
      const auto& chain = map_.ranges[id].chain;
      channel.tail = chain.empty() ? member{} : map_.server(chain.back())->node;
      if (channel.head == head_node) continue;
      channel.head = head_node;
      send_again(channel, channel.since);
    }
    for (auto& [number, open] : pulls_) send_pull(number, open, now);
    send_pulse();
  }

  void on_frame(std::span<const std::byte> frame, clock::time_point now, std::span<const std::byte> payload = {}) {
    if (fenced_ && !leaving_) return;
    const auto head = decode_head(frame);
    if (!head || (head->receiver_incarnation != 0 && head->receiver_incarnation != self_.incarnation)) return;
    auto* const server = peers_.find(head->sender);
    if (server == nullptr || server->is_worker) return;
    server->last_received = now;
    newest_map_ = std::max(newest_map_, head->map_version);
    message msg;
    message_reader in(frame.subspan(frame_head_bytes), payload);
    while (in.next(msg)) on_message(head->sender, msg, now);
  }

  /// Notes that time passes. Call about ten times in each `retry`.
  void tick(clock::time_point now) {
    if (fenced_ && !leaving_) return;
    peers_.tick(now, settings_.detection_silence);
    std::erase_if(busy_, [&](range_id range_number) {
      range_channel& channel = channels_[range_number];
      if (channel.unacknowledged.empty()) {
        channel.is_busy = false;
        return true;
      }
      if (is_due(channel.head, channel.since, channel.tries, now)) {
        const int tries = channel.tries + 1;
        send_again(channel, now);
        channel.tries = tries;
      }
      return false;
    });
    for (auto& [number, open] : pulls_) {
      if (!is_due(channels_[open.query.range].tail, open.sent_at, open.tries, now)) continue;
      ++open.tries;
      send_pull(number, open, now);
    }
    if (now - pulse_sent_at_ < peers_.heartbeat_interval(settings_.retry)) return;
    pulse_sent_at_ = now;
    send_pulse(wants_reply);
  }

  [[nodiscard]] const member& self() const noexcept { return self_; }
  [[nodiscard]] const shard_map& map() const noexcept { return map_; }
  /// Returns the newest map version that this worker knows. Its frames carry the version, because its pushes may have
  /// been committed by that map.
  [[nodiscard]] std::uint64_t newest_map() const noexcept { return std::max(newest_map_, map_.version); }
  /// Notes that a map with this version exists. Afterwards no server answers this worker's pulls by an older map.
  void note_map_version(std::uint64_t version) noexcept { newest_map_ = std::max(newest_map_, version); }
  /// Returns the number of steps that this worker has ended.
  [[nodiscard]] std::uint64_t clock_now() const noexcept { return clock_; }
  /// Returns the number of steps, from the first, without unacknowledged pushes. The worker reports this clock to
  /// servers.
  [[nodiscard]] std::uint64_t reported_clock() const noexcept { return reported_clock_; }

  /// Returns true if the servers have fenced this worker. Then it does nothing any more.
  [[nodiscard]] bool is_fenced() const noexcept { return fenced_; }
  /// Returns the size in bytes of the unacknowledged pushes.
  [[nodiscard]] std::size_t unacknowledged_bytes() const noexcept { return bytes_; }
  /// Returns the number of unacknowledged pushes.
  [[nodiscard]] std::size_t unacknowledged() const noexcept { return count_; }
  /// Returns the number of unanswered pulls.
  [[nodiscard]] std::size_t unanswered() const noexcept { return pulls_.size(); }
  /// Returns the sequence of the last push to the range; 0 before the first push.
  [[nodiscard]] std::uint64_t pushed(range_id range) const noexcept { return channels_[range].next - 1; }
  /// Returns the sequence up to which the range's pushes are acknowledged.
  [[nodiscard]] std::uint64_t acknowledged_up_to(range_id range) const noexcept {
    return channels_[range].acknowledged;
  }
  /// Returns the servers from which no message arrived for this long.
  [[nodiscard]] std::vector<member> silent(clock::time_point now, clock::duration longer_than) const {
    std::vector<member> found;
    for (const auto& server : map_.servers) {
      if (now - peers_.find(server.node)->last_received > longer_than) found.push_back(server.node);
    }
    return found;
  }

  /// Returns true if some server in the map is neither lost nor silent for this long.
  [[nodiscard]] bool has_responsive_server(clock::time_point now, clock::duration longer_than) const {
    return std::ranges::any_of(map_.servers, [&](const server_entry& server) {
      return !lost_.contains(server.node.place) && now - peers_.find(server.node)->last_received <= longer_than;
    });
  }

  [[nodiscard]] bool is_leaving() const noexcept { return leaving_; }
  /// Returns the thousandths of its time (`server_load`) that each server has sent last: busy, and waiting for links.
  [[nodiscard]] const std::map<member, std::pair<std::uint32_t, std::uint32_t>>& loads() const noexcept {
    return loads_;
  }

 private:
  struct unacknowledged_push {
    message request;
    std::vector<std::byte> own;  // the payload, unless it is in the caller's memory
  };
  // The pushes and pulls to a range. Pushes are sent in order: acknowledged <= sent < next.
  struct range_channel {
    member head;                     // the head of the chain, which receives pushes
    member tail;                     // the tail of the chain, which answers pulls
    std::uint64_t next = 1;          // sequence of the next push
    std::uint64_t acknowledged = 0;  // last acknowledged sequence
    std::uint64_t sent = 0;
    std::uint64_t resent_from = 0;  // the last requested sequence, so that a repeated request causes one repetition
    clock::time_point since{};      // when the worker last sent everything again, or last received an acknowledgement
    int tries = 0;                  // number of repetitions since the last acknowledgement
    std::deque<unacknowledged_push> unacknowledged;  // pushes from `acknowledged` + 1 on
    bool is_busy = false;                            // the range is in `busy_`
  };
  struct open_pull {
    message query;
    std::vector<std::byte> payload;
    clock::time_point sent_at{};
    int tries = 0;
  };

  // Returns true if a message that was sent at `since` should be sent again. A server that answers other requests may
  // only be busy: its messages are seldom lost, and repetitions would add load. So each repetition waits longer, and
  // four times as long while messages from the server arrive.
  [[nodiscard]] bool is_due(const member& node, clock::time_point since, int tries, clock::time_point now) const {
    constexpr int most = 8;
    const auto* const server = peers_.find(node);
    const int times = (1 << std::min(tries, 3)) * (server != nullptr && server->last_received > since ? 4 : 1);
    const auto wait = settings_.retry * std::min(times, most);
    return now - since >= wait;
  }

  void on_pulse(const member& sender, const message& msg) {
    const bool is_alive = msg.kind == message_kind::alive;
    const bool knows_the_end = is_alive ? (msg.flags & is_farewell) != 0 : fenced_;
    if (leaving_ && knows_the_end) peers_.find(sender)->has_left = true;
    if (is_alive) loads_[sender] = {msg.count, msg.offset};
  }

  void on_message(const member& sender, const message& msg, clock::time_point now) {
    if (msg.kind == message_kind::alive || msg.kind == message_kind::fenced) return on_pulse(sender, msg);
    if (fenced_ || msg.range >= channels_.size()) return;
    range_channel& channel = channels_[msg.range];
    const bool answers = msg.kind == message_kind::values || msg.kind == message_kind::refused;
    if (sender != channel.head && !(answers && sender == channel.tail)) return;  // the sender was the head before
    switch (msg.kind) {
      case message_kind::ack: {
        if (msg.number >= channel.next) return;
        if (channel.acknowledged < msg.number) outlet_.on_acknowledged(msg.range, msg.number, msg.count);
        while (channel.acknowledged < msg.number) {
          const auto& done = channel.unacknowledged.front().request;
          bytes_ -= done.payload.size();
          --count_;
          --unacknowledged_of_clock_[done.clock - reported_clock_];
          channel.unacknowledged.pop_front();
          ++channel.acknowledged;
        }
        channel.sent = std::max(channel.sent, channel.acknowledged);
        channel.since = now;
        channel.tries = 0;
        const auto before = reported_clock_;
        close_clocks();
        if (reported_clock_ != before) send_pulse();
        return;
      }
      case message_kind::resend:
        if (msg.number <= channel.acknowledged || msg.number > channel.sent || channel.resent_from == msg.number)
          return;
        channel.resent_from = msg.number;
        channel.sent = msg.number - 1;
        return send_unacknowledged(channel);
      case message_kind::values: {
        const auto found = pulls_.find(msg.number);
        if (found == pulls_.end() || found->second.query.range != msg.range) return;
        pulls_.erase(found);
        return outlet_.on_values(msg.number, msg);
      }
      case message_kind::refused: {
        const bool waits = (msg.flags & refuses_pull) != 0
                               ? pulls_.contains(msg.number)
                               : msg.number > channel.acknowledged && msg.number < channel.next;
        if (waits) outlet_.on_refused({reinterpret_cast<const char*>(msg.payload.data()), msg.payload.size()});
        return;
      }
      default:
        return;
    }
  }

  void send_again(range_channel& channel, clock::time_point since) {
    channel.since = since;
    channel.tries = 0;
    channel.sent = channel.acknowledged;
    channel.resent_from = 0;
    send_unacknowledged(channel);
  }

  void send_unacknowledged(range_channel& channel) {
    if (channel.head.place == no_node || fenced_) return;
    while (channel.sent < channel.next - 1) {
      const auto& next = channel.unacknowledged[static_cast<std::size_t>(channel.sent - channel.acknowledged)].request;
      ++channel.sent;
      outlet_.send(channel.head, next);
    }
  }

  void send_pull(std::uint64_t number, open_pull& open, clock::time_point now) {
    const member tail = channels_[open.query.range].tail;
    open.query.number = number;
    open.sent_at = now;
    if (tail.place == no_node || fenced_) return;
    message msg = open.query;
    msg.payload = open.payload;
    outlet_.send(tail, msg);
  }

  void send_pulse(std::uint8_t flags = 0) {
    if (fenced_ && !leaving_) return;
    if (leaving_ && count_ == 0) flags |= is_farewell;
    for (const auto& server : map_.servers)
      outlet_.send(server.node, {.kind = message_kind::pulse, .flags = flags, .number = reported_clock()});
  }

  // A step is done for all servers when all its pushes are acknowledged.
  void close_clocks() {
    while (unacknowledged_of_clock_.size() > 1 && unacknowledged_of_clock_.front() == 0) {
      unacknowledged_of_clock_.pop_front();
      ++reported_clock_;
    }
  }

  member self_;
  protocol_settings settings_;
  worker_output& outlet_;
  shard_map map_;
  std::uint64_t newest_map_ = 0;  // newest map version that any server knows
  std::vector<range_channel> channels_;
  std::vector<range_id> busy_;  // ranges with unacknowledged pushes
  std::map<std::uint64_t, open_pull> pulls_;
  std::uint64_t next_pull_ = 1;
  std::uint64_t clock_ = 0;
  std::deque<std::uint64_t>
      unacknowledged_of_clock_;  // number of unacknowledged pushes for each clock from `reported_clock_` on
  std::uint64_t reported_clock_ = 0;
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
  clock::time_point pulse_sent_at_{};
  peer_table peers_;
  // Processes that have ended, or to which the connection has, and when this worker noticed.
  std::map<node_id, clock::time_point> lost_;
  std::map<member, std::pair<std::uint32_t, std::uint32_t>> loads_;
  bool leaving_ = false;
  bool fenced_ = false;
};

}}}  // namespace muster::v0::ps
