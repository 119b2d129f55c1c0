// A worker in a job: the protocol's state machine, its connections, and the values that are on their way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <muster/core/codec/codec.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/number.hpp>
#include <muster/elastic/departure.hpp>
#include <muster/ps/client.hpp>

#include "../../core/copy.hpp"
#include "../protocol/worker.hpp"
#include "process.hpp"
#include "push_codec.hpp"

namespace muster { inline namespace v0 { namespace ps::detail {

/// What one call has pulled.
struct open_pull {
  std::size_t left = 0;  // parts without an answer
  std::uint64_t version = ~std::uint64_t{0};
};

// Where the values of one answer go.
struct pull_target {
  float* out = nullptr;
  std::vector<std::uint32_t> rows{};  // sparse
  std::size_t width = 0;              // of them; 0: dense
  std::size_t bytes = 0;
  std::vector<std::byte>* saved = nullptr;  // of a checkpoint: any length
  open_pull* of = nullptr;
  bool placed = false;  // an answer comes straight to `out`
};

class worker_process final : process, public worker_outlet {
 public:
  /// `servers`: the places that can serve.
  explicit worker_process(const seat& at, std::vector<node_id> servers = {})
      : process(at),
        core_(at.self, at.protocol, *this, first_),
        now_(clock::now()),
        versions_(at.layout.ranges(), 0),
        codec_(at.options.compress),
        residuals_(at.layout.ranges()),
        servers_(std::move(servers)) {
    link_.place_by([this](const message& answer) { return place_of(answer); });
    joins_ = links_ != nullptr && !first_.has_worker(at.self);
    tell_gone();
  }

  // What it pushed and what it pulls are its callers': the link has them no longer than it does.
  ~worker_process() override { link_.close(); }

  // ---- for the client ----
  [[nodiscard]] const table_layout& layout() const noexcept { return layout_; }
  [[nodiscard]] const worker& core() const noexcept { return core_; }
  [[nodiscard]] static const worker& core_of(const client& of) noexcept { return of.of_->core_; }
  static void hear_of_map(client& of, std::uint64_t version) { of.of_->core_.hear_of_map(version); }
  /// Of `own` memory, or of the caller's.
  void push_part(pending& to, range_id range, message what, std::vector<std::byte> own = {}) {
    if (!own.empty()) what.payload = own;
    const auto has_room = [&] {
      const node_id server = core_.map().ranges[range].head();
      const bool fits = core_.unacknowledged_bytes() + what.payload.size() <= options_.window;
      return (fits || core_.unacknowledged() == 0) && (server == no_node || link_.under_way(server) < frames_at_once);
    };
    if (!has_room()) wait_until(has_room, "push");
    bytes_pushed_ += what.payload.size();
    what.version = versions_[range];
    add(to, {range, core_.push(range, what, now_, std::move(own))});
  }

  /// Whether so many values of a push are sent encoded.
  [[nodiscard]] bool encodes(std::size_t values) const { return encoding_pays(codec_, values); }
  /// Values of the next push to that range, from that element of it on, encoded behind their keys. What the codec
  /// leaves out waits for the next to the same elements.
  [[nodiscard]] std::vector<std::byte> encode(range_id range, std::span<const std::byte> keys,
                                              std::span<const float> values, std::size_t offset = 0) {
    std::vector<std::byte> made(keys.size() + codec_.encoded_bytes(values.size()));
    std::ranges::copy(keys, made.begin());
    const auto to = std::span(made).subspan(keys.size());
    const auto draw = draw_of_push(range, core_.self(), core_.pushed(range) + 1);
    if (!codec_.is_biased()) {
      codec_.encode(values, draw, to);
      return made;
    }
    auto& all = residuals_[range];
    all.resize(layout_.range(range).size, 0.0f);
    const auto residual = std::span(all).subspan(offset, values.size());
    encode_with_feedback(codec_, values, residual, draw, to, residual);
    return made;
  }

  /// Bytes of the values (and keys) that were pushed so far, as they are sent.
  [[nodiscard]] std::uint64_t bytes_pushed() const noexcept { return bytes_pushed_; }

  void pull_part(pending& to, range_id range, const message& what, pull_target where) {
    const auto has_room = [&] { return asked_bytes_ + where.bytes <= options_.window || asked_bytes_ == 0; };
    if (!has_room()) {
      ship();
      wait_until(has_room, "pull");
    }
    asked_bytes_ += where.bytes;
    if (!to.pull_) to.pull_ = std::make_unique<open_pull>();
    const auto number = core_.pull(range, what, true, now_);
    add(to, {range, number});
    ++asked_at_once_;
    ++to.pull_->left;
    where.of = to.pull_.get();
    targets_[number] = std::move(where);
  }

  // What was begun leaves now, unless more of the kind can be expected while answers are due.
  void begun(bool pulls) {
    const bool alone = pulls ? core_.unanswered() <= asked_at_once_ : core_.unacknowledged() <= 1;
    if (pulls) asked_at_once_ = 0;
    if (auto* const sink = current_event_sink(); sink != nullptr && !pulls)
      sink->record(
          {activity::communication, "push", now_, now_, bytes_pushed_ - std::exchange(bytes_told_, bytes_pushed_)});
    if (alone) ship();
  }

  [[nodiscard]] bool is_done(const pending& one) const noexcept {
    if (one.pull_) return one.pull_->left == 0;
    const auto counts = [&](const auto& part) { return core_.counted(part.range) >= part.number; };
    return counts(one.first_) && std::ranges::all_of(one.more_, counts);
  }

  /// No caller waits for it any more, and its memory goes.
  void release(pending& one) noexcept {
    const auto release_part = [&](const auto& part) {
      if (!one.pull_) {
        if (core_.keep_payload(part.range, part.number)) link_.give_back(part.range, part.number);
        return;
      }
      core_.forget(part.number);
      const auto found = targets_.find(part.number);
      if (found == targets_.end()) return;
      asked_bytes_ -= found->second.bytes;
      if (found->second.placed) link_.leave(reinterpret_cast<const std::byte*>(found->second.out));
      targets_.erase(found);
    };
    release_part(one.first_);
    std::ranges::for_each(one.more_, release_part);
  }

  void next_clock() {
    core_.next_clock();
    progress();
  }

  void move_clock(std::uint64_t to) { core_.move_clock(to); }

  void progress() {
    now_ = clock::now();
    if (renew_link()) {
      for (auto& [number, to] : targets_) to.placed = false;
      tell_gone();
      core_.send_again(now_);
    }
    if (std::exchange(joins_, false)) join();
    link_.poll([&](auto frame, auto apart) { core_.hear(frame, now_, apart); });
    if (!refusal_.empty()) throw configuration_error(refusal_);
    if (const auto map = keeper_.take()) {
      core_.learn(*map, now_);
      if (const auto lost = map->lost_range(); lost && !core_.is_leaving()) throw tables_lost(layout_, *lost);
    }
    if (now_ >= next_tick_) {
      next_tick_ = now_ + protocol_.retry / ticks_a_retry;
      find_lost([&](node_id at, bool may_return) {
        if (may_return) return;
        core_.lose(at, now_);
        std::erase(servers_, at);
      });
      core_.tick(now_);
      if (const auto next = core_.without_the_last(now_)) keeper_.swap(core_.map().version, *next);
    }
    ship();
  }

  template <class Ready>
  void wait_until(const Ready& ready, std::string_view what) {
    const auto until = deadline_after(options_.timeout);
    // Servers that all answer may wait for a worker that hangs, which they are about to remove.
    const auto late = until + protocol_.worker_silence;
    for (int idle = 0;; ++idle) {
      progress();
      if (ready()) return;
      const bool is_late = now_ >= until && (now_ >= late || !core_.silent(now_, protocol_.silence).empty());
      if ((core_.is_fenced() && !core_.is_leaving()) || is_late) give_up(what);
      if (idle < spins_before_pause && !link_.should_yield()) continue;
      link_.pause(std::min(until, next_tick_));
    }
  }

  /// Behind `finish`, where the others need what this process has as long as they work.
  // Only servers that are heard see to it that no worker is waited for in vain.
  void see_off() {
    while (others_work() && core_.hears_a_server(now_, protocol_.worker_silence)) {
      progress();
      link_.pause(next_tick_);
    }
  }

  void finish() {
    wait_until([&] { return core_.unacknowledged() == 0; }, "flush");
    core_.leave();
    next_tick_ = {};
    wait_until([&] { return core_.has_left(); }, "finish");
    // A server that stands by hears it too: no other process tells it when all is over.
    for (const auto server : links_ == nullptr ? servers_ : link_.places()) {
      if (server != core_.self().at)
        link_.send({server, 0}, {.what = message_kind::pulse, .flags = says_goodbye | knows_end});
    }
    ship();
    // A server that has ended takes nothing any more.
    const auto until = clock::now() + std::min<clock::duration>(10 * protocol_.last_words, protocol_.worker_silence);
    while (!link_.is_idle() && clock::now() < until) progress();
  }

  void serve_by(std::size_t servers) {
    progress();
    keeper_.change([&](const shard_map& map) { return scaled_to(map, servers_, servers); },
                   deadline_after(options_.timeout));
  }

  client tables{*this};

 private:
  void tell_gone() {
    for (const auto at : gone_) core_.lose(at);
  }

  // Now that it pulls and pushes: others wait for the clocks of those that the map names.
  void join() {
    std::optional<shard_map> with;
    keeper_.change(
        [&](const shard_map& map) {
          const auto is_here = [&](const server_entry& one) { return link_.reaches(one.node.at); };
          if (std::ranges::none_of(map.servers, is_here)) {
            throw elastic::departure(elastic::exit_reason::never_started,
                                     "no member took this process in (the job is over: its servers have ended)");
          }
          with = with_worker(map, core_.self());
          return with;
        },
        deadline_after(options_.timeout));
    if (with) core_.learn(*with, now_);
  }

  void add(pending& to, const pending::part& part) {
    if (std::exchange(to.of_, this) == nullptr)
      to.first_ = part;
    else
      to.more_.push_back(part);
  }

  void send(const member& to, const message& what) override {
    link_.send(to, what, what.what == message_kind::push);
    if (link_.words(to.at) >= ship_at) link_.ship(to.at);
  }

  void acknowledged(range_id range, std::uint64_t sequence, std::uint32_t age) override {
    if (auto* const sink = current_event_sink(); sink != nullptr)
      sink->record({activity::push_age, "push", now_, now_, age});
    link_.give_back(range, sequence);
  }

  void answered(std::uint64_t pull, const message& values) override {
    const auto found = targets_.find(pull);
    if (found == targets_.end()) return;
    const auto& to = found->second;
    if (to.saved != nullptr) {
      to.saved->assign(values.payload.begin(), values.payload.end());
    } else if (values.payload.size() == to.bytes) {
      if (to.width == 0) {
        auto* const out = reinterpret_cast<std::byte*>(to.out);
        if (values.payload.data() != out) {
          if (to.placed) link_.leave(out);
          muster::detail::copy_bytes(out, values.payload.data(), to.bytes);
        }
      } else {
        const std::size_t row = to.width * sizeof(float);
        for (std::size_t i = 0; i < to.rows.size(); ++i)
          std::memcpy(to.out + to.rows[i] * to.width, values.payload.data() + i * row, row);
      }
    }
    versions_[values.range] = values.version;
    to.of->version = std::min(to.of->version, values.version);
    --to.of->left;
    asked_bytes_ -= to.bytes;
    targets_.erase(found);
  }

  void refused(std::string_view why) override { refusal_ = why; }

  // Large values of a dense table go straight to the caller's memory. Of two answers one does.
  [[nodiscard]] std::byte* place_of(const message& answer) {
    if (answer.what != message_kind::values) return nullptr;
    const auto found = targets_.find(answer.number);
    if (found == targets_.end()) return nullptr;
    auto& to = found->second;
    if (to.saved != nullptr || to.width != 0 || to.bytes != answer.bytes || to.placed) return nullptr;
    to.placed = true;
    return reinterpret_cast<std::byte*>(to.out);
  }

  // What was heard may have closed a clock, which the others wait for: frames say the newest.
  void ship() {
    link_.introduce({.from = core_.self(), .map_version = core_.newest_map(), .clock = core_.clock_said()});
    link_.ship();
  }

  [[noreturn]] void give_up(std::string_view what) {
    if (core_.is_fenced()) {
      throw peer_failure(
          {}, "this worker was fenced by the servers of its job (they received no messages of it for longer than " +
                  number_text(seconds(protocol_.worker_silence).count()) +
                  " s, or its connections broke); start it again");
    }
    std::vector<int> silent;
    for (const auto& one : core_.silent(now_, protocol_.silence)) silent.push_back(static_cast<int>(one.at));
    throw timeout_error(std::string(what), silent,
                        "a " + std::string(what) + " has not ended within " + number_text(options_.timeout.count()) +
                            " s (" +
                            (silent.empty() ? "all servers answer; they may wait for a slower worker"
                                            : "no answer from rank " + format_ranks(silent)) +
                            "); look at what they do, or raise the timeout");
  }

  [[nodiscard]] bool others_work() const {
    return std::ranges::any_of(core_.map().workers, [&](const member& node) { return node != core_.self(); });
  }

  // A frame with so many words in it leaves at once, as a full one does: a server that has some works while others are
  // written. Of large words a frame is full first: in frames of 16 KiB pushes of 4 KiB over tcp were half as fast.
  static constexpr std::uint32_t ship_at = 24;

  worker core_;
  clock::time_point now_;
  clock::time_point next_tick_{};
  std::unordered_map<std::uint64_t, pull_target> targets_;
  std::size_t asked_bytes_ = 0;    // of answers that have not come
  std::size_t asked_at_once_ = 0;  // pulls of one call
  std::vector<std::uint64_t> versions_;
  any_codec codec_;
  std::vector<std::vector<float>> residuals_;  // by range, of methods that need them
  std::uint64_t bytes_pushed_ = 0;
  std::uint64_t bytes_told_ = 0;  // of them, to the event sink
  std::vector<node_id> servers_;  // that can serve, and live
  bool joins_ = false;            // the map does not name it yet
  std::string refusal_;  // of a push or pull: what is behind it cannot count, so that every call ends with this
};

}}}  // namespace muster::v0::ps::detail
