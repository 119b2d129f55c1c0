// A worker's side of the protocol: messages in, messages out, without sockets, clocks or threads.
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

#include "message.hpp"
#include "peers.hpp"
#include "settings.hpp"
#include "shard_map.hpp"

namespace muster { inline namespace v0 { namespace ps {

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
  worker(member self, const protocol_settings& settings, worker_outlet& out, const shard_map& map)
      : self_(self), settings_(settings), out_(out), lines_(map.ranges.size()), open_of_clock_{0} {
    learn(map, {});
  }

  /// Starts a push; the payload is `own`, or stays where it is until it is `acknowledged`.
  /// `version` is that of the pull that the values were computed from. Returns its sequence for that range, from 1.
  std::uint64_t push(range_id range, const message& what, clock::time_point now, std::vector<std::byte> own = {}) {
    line& to = lines_[range];
    message kept = what;
    if (!own.empty()) kept.payload = own;
    kept.what = message_kind::push;
    kept.range = range;
    kept.number = to.next++;
    kept.clock = clock_;
    ++open_of_clock_.back();
    ++count_;
    bytes_ += kept.payload.size();
    if (!std::exchange(to.listed, true)) busy_.push_back(range);
    if (to.kept.empty()) to.since = now;
    to.kept.push_back({kept, std::move(own)});  // its bytes stay where they are
    send_kept(to);
    return kept.number;
  }

  /// Starts a pull of values that include all pushes of this worker to that range, if `own`; returns its number.
  std::uint64_t pull(range_id range, const message& what, bool own, clock::time_point now) {
    const std::uint64_t number = next_pull_++;
    open_pull& one = pulls_[number];
    one.what = what;
    one.what.what = message_kind::pull;
    one.what.range = range;
    one.what.number = number;
    one.what.clock = clock_;
    one.what.version = own ? lines_[range].next - 1 : 0;
    one.payload.assign(what.payload.begin(), what.payload.end());
    send_pull(number, one, now);
    return number;
  }

  /// No caller waits for that pull any more.
  void forget(std::uint64_t pull) { pulls_.erase(pull); }
  /// One step is done: what is pushed and pulled from now on is of the next.
  void next_clock() {
    ++clock_;
    open_of_clock_.push_back(0);
    close_clocks();
    say_pulse();
  }

  /// The next steps are of that clock and later ones: for what is between, the others need not wait. Never back.
  void move_clock(std::uint64_t to) {
    if (to <= clock_) return;
    open_of_clock_.resize(open_of_clock_.size() + (to - clock_), 0);
    clock_ = to;
    close_clocks();
    say_pulse();
  }

  /// Nothing is to be pushed or pulled any more: when all pushes count, servers are told that
  /// no other worker needs to wait for this one. It is over when all of them know: when it `has_left`.
  void leave() noexcept { leaving_ = true; }

  [[nodiscard]] bool has_left() const noexcept {
    return leaving_ && count_ == 0 && std::ranges::all_of(map_.servers, [&](const server_entry& one) {
             return peers_.find(one.node)->said_goodbye || gone_.contains(one.node.at);
           });
  }

  /// What was sent and not answered may be lost: it is sent again.
  void send_again(clock::time_point now) {
    for (const auto id : busy_) send_again(lines_[id], now);
    for (auto& [number, one] : pulls_) send_pull(number, one, now);
    say_pulse(wants_word);
  }

  /// The process at that place is gone for ever, or its connection: a server that ended may be done, and then it
  /// answers no farewell.
  void lose(node_id gone, clock::time_point now) { gone_.emplace(gone, now); }
  /// There is proof of it.
  void lose(node_id gone) { gone_.insert_or_assign(gone, clock::time_point::min()); }

  /// The map without servers that have ended and were the last to hold some range: which only a worker can write
  /// where no other server is left. Nothing as long as one of them may only have lost its connection to this worker: it
  /// lives then, and takes this worker out of the map.
  [[nodiscard]] std::optional<shard_map> without_the_last(clock::time_point now) const {
    if (gone_.empty() || leaving_ || fenced_) return std::nullopt;
    // A server gives this worker up for a broken connection after `retry`, and `silence` if it misses most others too;
    // as long again for the store and this worker's look at it.
    const auto until_fenced = settings_.one_sided + settings_.retry + 2 * settings_.silence;
    std::vector<member> dead;
    for (const auto& [at, seen] : gone_) {
      const auto* const entry = map_.server(at);
      if (entry == nullptr) continue;
      if (seen == clock::time_point::min() || now - std::max(seen, peers_.find(entry->node)->heard) > until_fenced)
        dead.push_back(entry->node);
    }
    auto next = without_servers(map_, dead, {});
    return next && next->lost_range() ? next : std::nullopt;
  }

  /// The payload of that push lies in memory of the worker's from now on: true if it did not, and is not acknowledged.
  [[nodiscard]] bool keep_payload(range_id range, std::uint64_t sequence) {
    line& one = lines_[range];
    if (sequence <= one.counted || sequence >= one.next) return false;
    auto& kept = one.kept[static_cast<std::size_t>(sequence - one.counted - 1)];
    if (!kept.own.empty()) return false;
    kept.own.assign(kept.what.payload.begin(), kept.what.payload.end());
    kept.what.payload = kept.own;
    return true;
  }

  void learn(const shard_map& map, clock::time_point now) {
    if (map.version <= map_.version || map.ranges.size() != lines_.size()) return;
    map_ = map;
    peers_.learn(map_, now);
    fenced_ = !map_.has_worker(self_);
    if (fenced_) return say_pulse();
    for (range_id id = 0; id < lines_.size(); ++id) {
      line& one = lines_[id];
      const auto* const head = map_.server(map_.ranges[id].head());
      const member to = head == nullptr ? member{} : head->node;
      const auto& chain = map_.ranges[id].chain;
      one.from = chain.empty() ? member{} : map_.server(chain.back())->node;
      if (one.to == to) continue;
      one.to = to;
      send_again(one, one.since);
    }
    for (auto& [number, one] : pulls_) send_pull(number, one, now);
    say_pulse();
  }

  void hear(std::span<const std::byte> frame, clock::time_point now, std::span<const std::byte> apart = {}) {
    if (fenced_ && !leaving_) return;
    const auto head = decode_head(frame);
    if (!head || (head->to != 0 && head->to != self_.incarnation)) return;
    auto* const its = peers_.find(head->from);
    if (its == nullptr || its->is_worker) return;
    its->heard = now;
    newest_ = std::max(newest_, head->map_version);
    message said;
    message_reader in(frame.subspan(frame_head_bytes), apart);
    while (in.next(said)) hear_one(head->from, said, now);
  }

  /// Time passes; about ten times in `retry`.
  void tick(clock::time_point now) {
    if (fenced_ && !leaving_) return;
    peers_.tick(now, settings_.silence);
    std::erase_if(busy_, [&](range_id id) {
      line& one = lines_[id];
      if (one.kept.empty()) {
        one.listed = false;
        return true;
      }
      if (is_due(one.to, one.since, one.tries, now)) {
        const int tries = one.tries + 1;
        send_again(one, now);
        one.tries = tries;
      }
      return false;
    });
    for (auto& [number, one] : pulls_) {
      if (!is_due(lines_[one.what.range].from, one.asked, one.tries, now)) continue;
      ++one.tries;
      send_pull(number, one, now);
    }
    if (now - pulsed_ < settings_.retry) return;
    pulsed_ = now;
    say_pulse(wants_word);
  }

  [[nodiscard]] const member& self() const noexcept { return self_; }
  [[nodiscard]] const shard_map& map() const noexcept { return map_; }
  /// The newest map that it has heard of: what its frames say, for by that its pushes may have come to count.
  [[nodiscard]] std::uint64_t newest_map() const noexcept { return std::max(newest_, map_.version); }
  /// There is such a map: no server answers a pull by an older one from now on.
  void hear_of_map(std::uint64_t version) noexcept { newest_ = std::max(newest_, version); }
  /// Steps that this worker has done.
  [[nodiscard]] std::uint64_t clock_now() const noexcept { return clock_; }
  /// Of them, those that have no unacknowledged push: what servers are told.
  [[nodiscard]] std::uint64_t clock_said() const noexcept { return first_open_; }

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
  [[nodiscard]] std::vector<member> silent(clock::time_point now, clock::duration longer_than) const {
    std::vector<member> found;
    for (const auto& one : map_.servers) {
      if (now - peers_.find(one.node)->heard > longer_than) found.push_back(one.node);
    }
    return found;
  }

  /// Whether some server of the map is neither gone nor silent for longer than that.
  [[nodiscard]] bool hears_a_server(clock::time_point now, clock::duration longer_than) const {
    return std::ranges::any_of(map_.servers, [&](const server_entry& one) {
      return !gone_.contains(one.node.at) && now - peers_.find(one.node)->heard <= longer_than;
    });
  }

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

  // Whether what was sent then is to be sent once more. A server that answers others meanwhile may only have much to
  // do: what it was told is seldom lost, and a repetition would be more to do. So each try waits longer, and all the
  // longer while it is heard.
  [[nodiscard]] bool is_due(const member& node, clock::time_point since, int tries, clock::time_point now) const {
    constexpr int most = 8;
    const auto* const its = peers_.find(node);
    const int times = (1 << std::min(tries, 3)) * (its != nullptr && its->heard > since ? 4 : 1);
    const auto wait = settings_.retry * std::min(times, most);
    return now - since >= wait;
  }

  void hear_one(const member& node, const message& said, clock::time_point now) {
    const bool knows_the_end = said.what == message_kind::alive ? (said.flags & says_goodbye) != 0
                                                                : said.what == message_kind::fenced && fenced_;
    if (leaving_ && knows_the_end) peers_.find(node)->said_goodbye = true;
    if (fenced_ || said.what == message_kind::alive || said.what == message_kind::fenced) return;
    if (said.range >= lines_.size()) return;
    line& one = lines_[said.range];
    const bool answers = said.what == message_kind::values || said.what == message_kind::refused;
    if (node != one.to && !(answers && node == one.from)) return;  // it was the head once
    switch (said.what) {
      case message_kind::ack: {
        if (said.number >= one.next) return;
        if (one.counted < said.number) out_.acknowledged(said.range, said.number, said.count);
        while (one.counted < said.number) {
          const auto& done = one.kept.front().what;
          bytes_ -= done.payload.size();
          --count_;
          --open_of_clock_[done.clock - first_open_];
          one.kept.pop_front();
          ++one.counted;
        }
        one.sent = std::max(one.sent, one.counted);
        one.since = now;
        one.tries = 0;
        const auto before = first_open_;
        close_clocks();
        if (first_open_ != before) say_pulse();
        return;
      }
      case message_kind::resend:
        if (said.number <= one.counted || said.number > one.sent || one.resent_from == said.number) return;
        one.resent_from = said.number;
        one.sent = said.number - 1;
        return send_kept(one);
      case message_kind::values: {
        const auto found = pulls_.find(said.number);
        if (found == pulls_.end() || found->second.what.range != said.range) return;
        pulls_.erase(found);
        return out_.answered(said.number, said);
      }
      case message_kind::refused: {
        const bool waits = (said.flags & refuses_pull) != 0 ? pulls_.contains(said.number)
                                                            : said.number > one.counted && said.number < one.next;
        if (waits) out_.refused({reinterpret_cast<const char*>(said.payload.data()), said.payload.size()});
        return;
      }
      default:
        return;
    }
  }

  void send_again(line& one, clock::time_point since) {
    one.since = since;
    one.tries = 0;
    one.sent = one.counted;
    one.resent_from = 0;
    send_kept(one);
  }

  void send_kept(line& one) {
    if (one.to.at == no_node || fenced_) return;
    while (one.sent < one.next - 1) {
      const auto& next = one.kept[static_cast<std::size_t>(one.sent - one.counted)].what;
      ++one.sent;
      out_.send(one.to, next);
    }
  }

  void send_pull(std::uint64_t number, open_pull& one, clock::time_point now) {
    const member to = lines_[one.what.range].from;
    one.what.number = number;
    one.asked = now;
    if (to.at == no_node || fenced_) return;
    message asked = one.what;
    asked.payload = one.payload;
    out_.send(to, asked);
  }

  void say_pulse(std::uint8_t flags = 0) {
    if (fenced_ && !leaving_) return;
    if (leaving_ && count_ == 0) flags |= says_goodbye;
    for (const auto& one : map_.servers)
      out_.send(one.node, {.what = message_kind::pulse, .flags = flags, .number = clock_said()});
  }

  // Steps are done for all servers when all their pushes are acknowledged.
  void close_clocks() {
    while (open_of_clock_.size() > 1 && open_of_clock_.front() == 0) {
      open_of_clock_.pop_front();
      ++first_open_;
    }
  }

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

}}}  // namespace muster::v0::ps
