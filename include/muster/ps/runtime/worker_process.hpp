// A worker process of a job: the protocol's state machine, the connections, and the values in transit.
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

#include <muster/core/copy.hpp>
#include <muster/ps/protocol/worker.hpp>
#include <muster/ps/runtime/process.hpp>
#include <muster/ps/runtime/push_codec.hpp>
#include <muster/ps/table_files.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

/// The progress of the pulls from one call.
struct open_pull {
  std::size_t unanswered_parts = 0;  // number of parts without an answer
  std::uint64_t version = ~std::uint64_t{0};
};

// The destination of the values in one answer.
struct pull_target {
  float* out = nullptr;
  std::vector<std::uint32_t> rows{};  // sparse
  std::size_t width = 0;              // floats in a row; 0: dense
  std::size_t bytes = 0;
  std::vector<std::byte>* saved = nullptr;  // destination of a checkpoint, of any length
  open_pull* pull = nullptr;
  bool receives_in_place = false;  // an answer is being received directly into `out`
};

class worker_process final : process, public worker_output {
 public:
  /// `servers` lists the places that can serve.
  explicit worker_process(const process_setup& setup, std::vector<node_id> servers = {})
      : process(setup),
        core_(setup.self, setup.protocol, *this, first_),
        now_(clock::now()),
        versions_(setup.layout.ranges(), 0),
        codec_(setup.options.compress),
        residuals_(setup.layout.ranges()),
        servers_(std::move(servers)),
        folders_(setup.job) {
    link_.set_target_lookup([this](const message& answer) { return target_of(answer); });
    joins_ = links_ != nullptr && !first_.has_worker(setup.self);
    report_lost();
  }

  // The link must not use the memory of pushes and pulls, which belongs to the callers, after the destructor.
  ~worker_process() override { link_.close(); }

  // ---- for the client ----
  [[nodiscard]] const table_layout& layout() const noexcept { return layout_; }
  [[nodiscard]] const worker& core() const noexcept { return core_; }
  [[nodiscard]] static const worker& core_of(const client& tables) noexcept { return tables.process_->core_; }
  [[nodiscard]] static saved_folders& folders_of(client& tables) noexcept { return tables.process_->folders_; }
  static void note_map_version(client& tables, std::uint64_t version) {
    tables.process_->core_.note_map_version(version);
  }
  /// Pushes from `own` memory, or from the caller's memory. Waits while the window has no room.
  void push_part(pending& operation, range_id range, message request, std::vector<std::byte> own = {}) {
    if (!own.empty()) request.payload = own;
    const auto has_room = [&] {
      const node_id server = core_.map().ranges[range].head();
      const bool fits = core_.unacknowledged_bytes() + request.payload.size() <= options_.window;
      return (fits || core_.unacknowledged() == 0) &&
             (server == no_node || link_.frames_in_flight(server) < frames_at_once);
    };
    if (!has_room()) wait_until(has_room, "push");
    bytes_pushed_ += request.payload.size();
    request.version = versions_[range];
    add(operation, {range, core_.push(range, request, now_, std::move(own))});
  }

  /// Returns true if a push of so many values is sent encoded.
  [[nodiscard]] bool encodes(std::size_t value_count) const { return encoding_pays(codec_, value_count); }
  /// Returns the encoded values of the next push to that range from the element `offset` on, after their keys. The
  /// codec's error is added to the next push of the same elements.
  [[nodiscard]] std::vector<std::byte> encode(range_id range, std::span<const std::byte> keys,
                                              std::span<const float> values, std::size_t offset = 0) {
    std::vector<std::byte> bytes(keys.size() + codec_.encoded_bytes(values.size()));
    std::ranges::copy(keys, bytes.begin());
    const auto out = std::span(bytes).subspan(keys.size());
    const auto draw = draw_of_push(range, core_.self(), core_.pushed(range) + 1);
    if (!codec_.is_biased()) {
      codec_.encode(values, draw, out);
      return bytes;
    }
    auto& all = residuals_[range];
    all.resize(layout_.range(range).size, 0.0f);
    const auto residual = std::span(all).subspan(offset, values.size());
    encode_with_feedback(codec_, values, residual, draw, out, residual);
    return bytes;
  }

  /// Returns the bytes of values and keys that were pushed so far, as sent.
  [[nodiscard]] std::uint64_t bytes_pushed() const noexcept { return bytes_pushed_; }

  /// Starts a pull whose answer is written to `target`. Waits while the window has no room.
  void pull_part(pending& operation, range_id range, const message& query, pull_target target) {
    const auto has_room = [&] { return requested_bytes_ + target.bytes <= options_.window || requested_bytes_ == 0; };
    if (!has_room()) {
      flush_link();
      wait_until(has_room, "pull");
    }
    requested_bytes_ += target.bytes;
    if (!operation.pull_) operation.pull_ = std::make_unique<open_pull>();
    const auto number = core_.pull(range, query, true, now_);
    add(operation, {range, number});
    ++pulls_of_call_;
    ++operation.pull_->unanswered_parts;
    target.pull = operation.pull_.get();
    targets_[number] = std::move(target);
  }

  // Sends the started messages now, unless answers are due and further messages of the same kind are likely.
  void on_started(bool pulls) {
    const bool alone = pulls ? core_.unanswered() <= pulls_of_call_ : core_.unacknowledged() <= 1;
    if (pulls) pulls_of_call_ = 0;
    if (auto* const sink = current_event_sink(); sink != nullptr && !pulls)
      sink->record(
          {activity::communication, "push", now_, now_, bytes_pushed_ - std::exchange(bytes_recorded_, bytes_pushed_)});
    if (alone) flush_link();
  }

  [[nodiscard]] bool is_done(const pending& operation) const noexcept {
    if (operation.pull_) return operation.pull_->unanswered_parts == 0;
    const auto is_acknowledged = [&](const auto& part) { return core_.acknowledged_up_to(part.range) >= part.number; };
    return is_acknowledged(operation.first_) && std::ranges::all_of(operation.more_, is_acknowledged);
  }

  /// Notes that no caller waits for the operation any more, and that its memory will be freed.
  void release(pending& operation) noexcept {
    const auto release_part = [&](const auto& part) {
      if (!operation.pull_) {
        if (core_.copy_payload(part.range, part.number)) link_.release(part.range, part.number);
        return;
      }
      core_.forget(part.number);
      const auto found = targets_.find(part.number);
      if (found == targets_.end()) return;
      requested_bytes_ -= found->second.bytes;
      if (found->second.receives_in_place) link_.abandon_target(reinterpret_cast<const std::byte*>(found->second.out));
      targets_.erase(found);
    };
    release_part(operation.first_);
    std::ranges::for_each(operation.more_, release_part);
  }

  void next_clock() {
    core_.next_clock();
    progress();
  }

  void move_clock(std::uint64_t clock) { core_.move_clock(clock); }

  void progress() {
    now_ = clock::now();
    if (renew_link()) {
      for (auto& [number, target] : targets_) target.receives_in_place = false;
      report_lost();
      core_.send_again(now_);
    }
    if (std::exchange(joins_, false)) join();
    link_.poll([&](auto frame, auto payload) { core_.on_frame(frame, now_, payload); });
    if (!refusal_.empty()) throw configuration_error(refusal_);
    if (const auto map = keeper_.take()) {
      core_.apply_map(*map, now_);
      if (const auto lost = map->lost_range(); lost && !core_.is_leaving()) throw tables_lost(layout_, *lost);
    }
    const bool ticks = now_ >= next_tick_;
    if (ticks) {
      find_lost([&](node_id node, bool may_return) {
        if (may_return) return;
        core_.lose(node, now_);
        std::erase(servers_, node);
      });
      core_.tick(now_);
      if (const auto next = core_.without_lost_holders(now_)) keeper_.swap(core_.map().version, *next);
    }
    flush_link();
    if (ticks) next_tick_ = next_tick_after(now_);
  }

  [[nodiscard]] seconds timeout() const noexcept { return options_.timeout; }

  template <class Ready>
  void wait_until(const Ready& ready, std::string_view operation) {
    (void)wait_until(ready, operation, deadline_after(options_.timeout), clock::time_point::max());
  }

  /// Makes progress until `ready`. Returns false at `end`. Throws when `operation` is late at `deadline`.
  template <class Ready>
  bool wait_until(const Ready& ready, std::string_view operation, clock::time_point deadline, clock::time_point end) {
    // If all servers answer, they may be waiting for a stopped worker, which they will soon remove.
    const auto late = deadline + protocol_.worker_silence;
    for (int idle = 0;; ++idle) {
      progress();
      if (ready()) return true;
      const bool is_late =
          now_ >= deadline && (now_ >= late || !core_.silent(now_, protocol_.detection_silence).empty());
      if ((core_.is_fenced() && !core_.is_leaving()) || is_late) throw_failure(operation);
      if (now_ >= end) return false;
      if (idle < spins_before_pause && !link_.should_yield()) continue;
      link_.pause(std::min({deadline, next_tick_, end}));
    }
  }

  /// Keeps the process alive after `finish` while other workers need its store or server. Ends early if no server
  /// responds, because only servers remove workers that have died.
  void serve_until_others_finish() {
    while (has_other_workers() && core_.has_responsive_server(now_, protocol_.worker_silence)) {
      progress();
      link_.pause(next_tick_);
    }
  }

  void finish() {
    wait_until([&] { return core_.unacknowledged() == 0; }, "flush");
    core_.leave();
    next_tick_ = {};
    wait_until([&] { return core_.has_left(); }, "finish");
    // Servers learn that this worker has received all acknowledgements. A hot spare needs the farewell too, because no
    // other process notifies it of the end of the job.
    for (const auto server : links_ == nullptr ? servers_ : link_.places()) {
      if (server != core_.self().place)
        link_.send({server, 0}, {.kind = message_kind::pulse, .flags = is_farewell | is_acknowledged});
    }
    flush_link();
    // A server that has ended receives nothing any more.
    const auto deadline =
        clock::now() + std::min<clock::duration>(10 * protocol_.farewell_time, protocol_.worker_silence);
    while (!link_.is_idle() && clock::now() < deadline) progress();
  }

  void request_servers(std::size_t servers) {
    progress();
    keeper_.change([&](const shard_map& map) { return scaled_to(map, servers_, servers); },
                   deadline_after(options_.timeout));
  }

  client tables{*this};

 private:
  void report_lost() {
    for (const auto at : lost_places_) core_.lose(at);
  }

  // Joins at the first push or pull, because other workers wait for the clock of every worker in the map.
  void join() {
    std::optional<shard_map> joined;
    keeper_.change(
        [&](const shard_map& map) {
          const auto is_here = [&](const server_entry& server) { return link_.reaches(server.node.place); };
          if (std::ranges::none_of(map.servers, is_here)) {
            throw elastic::departure(elastic::exit_reason::never_started,
                                     "no member took this process in (the job is over: its servers have ended)");
          }
          joined = with_worker(map, core_.self());
          return joined;
        },
        deadline_after(options_.timeout));
    if (joined) core_.apply_map(*joined, now_);
  }

  void add(pending& operation, const pending::part& part) {
    if (std::exchange(operation.process_, this) == nullptr)
      operation.first_ = part;
    else
      operation.more_.push_back(part);
  }

  void send(const member& node, const message& msg) override {
    link_.send(node, msg, msg.kind == message_kind::push);
    if (link_.queued_messages(node.place) >= flush_at) link_.flush_to(node.place);
  }

  void on_acknowledged(range_id range, std::uint64_t sequence, std::uint32_t age) override {
    if (auto* const sink = current_event_sink(); sink != nullptr)
      sink->record({activity::push_age, "push", now_, now_, age});
    link_.release(range, sequence);
  }

  void on_values(std::uint64_t pull, const message& reply) override {
    const auto found = targets_.find(pull);
    if (found == targets_.end()) return;
    const auto& target = found->second;
    if (target.saved != nullptr) {
      target.saved->assign(reply.payload.begin(), reply.payload.end());
    } else if (reply.payload.size() == target.bytes) {
      if (target.width == 0) {
        auto* const out = reinterpret_cast<std::byte*>(target.out);
        if (reply.payload.data() != out) {
          if (target.receives_in_place) link_.abandon_target(out);
          muster::detail::copy_bytes(out, reply.payload.data(), target.bytes);
        }
      } else {
        const std::size_t row = target.width * sizeof(float);
        for (std::size_t i = 0; i < target.rows.size(); ++i)
          std::memcpy(target.out + target.rows[i] * target.width, reply.payload.data() + i * row, row);
      }
    } else {
      refusal_ = "a pull of " + std::to_string(target.bytes) + " bytes cannot take the answer of a server (" +
                 std::to_string(reply.payload.size()) + " bytes); run the same muster and tables at every process";
    }
    versions_[reply.range] = reply.version;
    target.pull->version = std::min(target.pull->version, reply.version);
    --target.pull->unanswered_parts;
    requested_bytes_ -= target.bytes;
    targets_.erase(found);
  }

  void on_refused(std::string_view reason) override { refusal_ = reason; }

  // Large values of a dense table are received directly into the caller's memory. A second answer is not.
  [[nodiscard]] std::byte* target_of(const message& answer) {
    if (answer.kind != message_kind::values) return nullptr;
    const auto found = targets_.find(answer.number);
    if (found == targets_.end()) return nullptr;
    auto& target = found->second;
    if (target.saved != nullptr || target.width != 0 || target.bytes != answer.bytes || target.receives_in_place)
      return nullptr;
    target.receives_in_place = true;
    return reinterpret_cast<std::byte*>(target.out);
  }

  // A received message may have closed a clock, for which other workers wait: frames carry the newest clock.
  void flush_link() {
    link_.set_identity({.sender = core_.self(), .map_version = core_.newest_map(), .clock = core_.reported_clock()});
    link_.flush();
  }

  [[noreturn]] void throw_failure(std::string_view operation) {
    if (core_.is_fenced()) {
      throw peer_failure({},
                         "this worker was fenced by the servers of the job (they received no message from this worker "
                         "for longer than " +
                             number_text(seconds(protocol_.worker_silence).count()) +
                             " s, or its connections broke); start it again");
    }
    std::vector<int> silent;
    for (const auto& server : core_.silent(now_, protocol_.detection_silence))
      silent.push_back(static_cast<int>(server.place));
    throw timeout_error(std::string(operation), silent,
                        "a " + std::string(operation) + " has not ended within " +
                            number_text(options_.timeout.count()) + " s (" +
                            (silent.empty() ? "all servers answer; they may wait for a slower worker"
                                            : "no answer from rank " + format_ranks(silent)) +
                            "); check the servers and workers, or raise the timeout");
  }

  [[nodiscard]] bool has_other_workers() const {
    return std::ranges::any_of(core_.map().workers, [&](const member& node) { return node != core_.self(); });
  }

  // A frame with this many messages is sent at once, like a full frame, so that a server works on it while further
  // frames are filled. With large messages a frame is full earlier. Frames of 16 KiB halved the rate of 4 KiB pushes
  // over tcp.
  static constexpr std::uint32_t flush_at = 24;

  worker core_;
  clock::time_point now_;
  clock::time_point next_tick_{};
  std::unordered_map<std::uint64_t, pull_target> targets_;
  std::size_t requested_bytes_ = 0;      // bytes of outstanding answers
  std::size_t pulls_of_call_ = 0;        // pulls from one call
  std::vector<std::uint64_t> versions_;  // by range: version of the last pulled values, from which pushes are computed
  any_codec codec_;
  std::vector<std::vector<float>> residuals_;  // by range, for codecs that need residuals
  std::uint64_t bytes_pushed_ = 0;
  std::uint64_t bytes_recorded_ = 0;  // bytes of `bytes_pushed_` that the event sink has recorded
  std::vector<node_id> servers_;      // places that can serve and are not lost
  saved_folders folders_;             // owners of the tables in the folders that this worker loads from and saves into
  bool joins_ = false;                // the map does not contain this worker yet
  // Reason of a refused push or pull, or of an unusable answer. Later pushes to its range cannot be committed, so every
  // call throws.
  std::string refusal_;
};

}}}  // namespace muster::v0::ps::detail
