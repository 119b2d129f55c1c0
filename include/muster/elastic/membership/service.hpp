// Runs the membership protocol beside a training: a thread receives heartbeats, watches processes and decides, whatever
// the rank does.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/bootstrap/store.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/elastic/departure.hpp>

#include <muster/comm/bootstrap/processes.hpp>
#include <muster/comm/bootstrap/stores/watched_record.hpp>
#include <muster/comm/group/revocation.hpp>
#include <muster/elastic/elastic_timing.hpp>
#include <muster/elastic/membership/datagrams.hpp>
#include <muster/elastic/membership/membership.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Requests of SIGTERM and SIGUSR1, pending until a service handles them.
struct pending_signals {
  std::atomic<bool> leave{false};
  std::atomic<bool> describe{false};
};
inline constinit pending_signals signals;

/// A process's part in an elastic job. The rank and the record report events to one state machine, `membership`,
/// under one mutex, and the service's thread carries out its actions. That thread has no other work, so its heartbeats
/// do not depend on the load of the rank.
class membership_service final : elastic::membership_outlet {
 public:
  /// Starts the service. `steps_watched`: number of steps over which the least work is computed. One thread, usually
  /// the rank's, makes all other calls.
  membership_service(std::shared_ptr<any_store> store, std::unique_ptr<datagram_socket> socket, elastic::member self,
                     const elastic::membership_policy& policy, std::size_t steps_watched)
      : socket_(std::move(socket)),
        self_(self),
        policy_(policy),
        bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        step_times_(steps_watched),
        protocol_(std::move(self), policy, *this, clock::now()),
        record_(std::move(store), "elastic/record",
                {log_level::warning, "the membership",
                 "training continues, and failures are handled when the store answers again"},
                {}, [this] { ring(); }) {
    if (!bell_) {
      throw error(error_kind::other, "the membership of the job cannot be watched (eventfd: " +
                                         std::string(std::strerror(errno)) + "); raise the limit (ulimit -n)");
    }
    thread_ = std::jthread([this](const std::stop_token& stop) {
      try {
        run(stop);
      } catch (...) {  // the rank ends with the reason, and the others continue without it
        const std::lock_guard held(mutex_);
        end_reason_ = std::current_exception();
        end_generation("this rank's membership failed");
      }
    });
  }

  ~membership_service() override {
    thread_.request_stop();
    ring();
  }

  // ---- fast calls, for every step ----
  /// Returns true if the present generation is over, or ends after at most `steps` steps.
  [[nodiscard]] bool must_stop(std::uint64_t progress) const noexcept {
    if (stop_.load(std::memory_order_acquire)) return true;
    const auto halt = halt_.load(std::memory_order_acquire);
    return halt != 0 && progress >= halt;
  }
  /// Reports the rank's progress; see `membership::committed`.
  void committed(std::uint64_t progress, std::uint64_t steps) noexcept {
    steps_.store(steps, std::memory_order_relaxed);
    progress_.store(progress, std::memory_order_release);
  }
  /// Reports how long the rank's own part of a step took.
  void report_step_time(clock::duration work) noexcept {
    step_times_[steps_seen_++ % step_times_.size()] = work;
    if (steps_seen_ < step_times_.size()) return;
    least_work_.store(elastic::least_work(step_times_), std::memory_order_relaxed);
  }

  // ---- changes of the generation ----
  /// A generation that is to be formed, and its revocation, which is revoked as soon as that generation is over. The
  /// generation may be over before `next` returns it.
  struct next_generation {
    elastic::generation_record record;
    std::shared_ptr<revocation> end_token;
  };
  /// Waits for the next generation; returns nothing at the deadline. Throws departure when this member's part is over.
  [[nodiscard]] std::optional<next_generation> next(clock::time_point until) {
    std::unique_lock held(mutex_);
    changed_.wait_until(held, until, [this] { return next_ || end_reason_; });
    if (end_reason_) std::rethrow_exception(end_reason_);
    if (next_) {
      steps_seen_ = 0;
      least_work_ = clock::duration{};
    }
    return std::exchange(next_, std::nullopt);
  }

  /// Reports the measured quality of the rank's connections over the last steps.
  void report_slow_link(const elastic::link_seen& slowest, std::uint64_t best_rate,
                        std::vector<elastic::link_seen> links) {
    const std::lock_guard held(mutex_);
    protocol_.report_slow_link(slowest, best_rate);
    links_ = std::move(links);
  }

  /// Waits for the end of the present generation; returns false at the deadline. Throws departure when this member's
  /// part is over.
  [[nodiscard]] bool await_stop(clock::time_point until) {
    const auto ends = [this] { return must_stop(~std::uint64_t{0}); };
    std::unique_lock held(mutex_);
    changed_.wait_until(held, until, [&] { return end_reason_ || ends(); });
    if (end_reason_) std::rethrow_exception(end_reason_);
    return ends();
  }

  /// Reports an event in the rank: calls `event(protocol, now)` under the mutex, and the protocol acts at once.
  template <class Event>
  auto apply(const Event& event) {
    const std::lock_guard held(mutex_);
    const auto now = update_protocol_time();
    return event(protocol_, now);
  }
  /// Waits until every other member leaves too or is dead, until another member waits for a group without this one,
  /// until this member's part is over, or until the deadline.
  void await_others_leaving(clock::time_point until) {
    std::unique_lock held(mutex_);
    while (!end_reason_ && !protocol_.may_leave() && clock::now() < until)
      changed_.wait_for(held, elastic_timing::farewell_poll);
  }

  /// Waits until every process on the local host that is in `before` and not in `present` has ended, at most until the
  /// deadline.
  void await_ends(const elastic::generation_record& before, const elastic::generation_record& present,
                  clock::time_point until) {
    for (const auto& peer : before.members) {
      if (present.rank_of(peer.id) || peer.host != self_.host || peer.id == self_.id) continue;
      for (;;) {
        {
          const std::lock_guard held(mutex_);
          const auto* const process = local_process_of(peer);
          if (process == nullptr || process->ended() || clock::now() >= until) break;
        }
        std::this_thread::sleep_for(elastic_timing::end_poll);
      }
    }
  }

 private:
  // Number of datagrams that a turn receives before it reads the clock.
  static constexpr std::size_t datagrams_a_turn = 4096;

  void run(const std::stop_token& stop) {
    const auto turn = std::chrono::duration_cast<std::chrono::milliseconds>(policy_.heartbeat_interval / 4);
    std::vector<pollfd> watched;
    while (!stop.stop_requested()) {
      watched.assign({{bell_.get(), POLLIN, 0}, {socket_->file(), POLLIN, 0}});
      {
        const std::lock_guard held(mutex_);
        for (const auto& [id, process] : local_processes_) {
          if (protocol_.is_in(id) && !protocol_.is_dead(id) && process.pidfd() >= 0)
            watched.push_back({process.pidfd(), POLLIN, 0});
        }
      }
      (void)::poll(watched.data(), watched.size(), static_cast<int>(std::max<long long>(turn.count(), 1)));
      std::uint64_t rung = 0;
      (void)!::read(bell_.get(), &rung, sizeof rung);

      // Received without the mutex, which the rank locks in each step.
      std::vector<std::pair<elastic::heartbeat, address>> received;
      for (std::size_t most = datagrams_a_turn; const auto text = socket_->receive(most);) {
        if (auto message = elastic::heartbeat::decode(*text))
          received.emplace_back(std::move(*message), socket_->sender());
      }
      const std::lock_guard held(mutex_);
      const auto now = update_protocol_time();
      look_at_record(now);
      for (const auto& [message, sender] : received) {
        if (message.sender == 0)
          send_own_heartbeat_to(sender);
        else
          protocol_.on_heartbeat(now, message);
      }
      look_at_lives(now);
      look_at_signals(now);
      protocol_.tick(now);
    }
  }

  // Sends the heartbeat of this member to a process that observes the job and is no member. The protocol does not
  // depend on the request and stores nothing of it.
  void send_own_heartbeat_to(const address& observer) {
    auto message = protocol_.heartbeat_of(self_.id);
    message.links = links_;
    socket_->send(message.encode(), {observer});
  }

  // Starts a turn, before any event: passes on the rank's progress since the last turn.
  [[nodiscard]] clock::time_point update_protocol_time() {
    const auto now = clock::now();
    protocol_.wake(now);
    const auto progress = progress_.load(std::memory_order_acquire);
    if (!protocol_.has_stopped()) protocol_.committed(progress, steps_.load(std::memory_order_relaxed));
    protocol_.report_step_time(least_work_.load(std::memory_order_relaxed));
    return now;
  }

  void look_at_record(clock::time_point now) {
    if (const auto entry = record_.take())
      protocol_.on_record(now, entry->version, elastic::generation_record::decode(entry->value));
    if (record_.take_failure()) protocol_.store_failed(now);
    try {
      record_.check();
    } catch (const store_left_behind& left) {
      protocol_.left_behind(left.what());
    }
  }

  void look_at_lives(clock::time_point now) {
    for (const auto& [id, process] : local_processes_) {
      if (!protocol_.is_in(id) || protocol_.is_dead(id)) continue;
      if (process.ended()) {
        protocol_.prove_dead(now, id);
      } else if (protocol_.is_silent(now, id) && !protocol_.is_suspect(id) && process.is_stopped()) {
        protocol_.suspect(now, id, "its process is stopped");
      }
    }
  }

  void look_at_signals(clock::time_point now) {
    if (signals.leave.exchange(false)) protocol_.leave(now);
    if (!signals.describe.exchange(false)) return;
    std::string text = "generation " + std::to_string(protocol_.record().generation) + " at step " +
                       std::to_string(steps_.load()) + ":";
    int rank = 0;
    for (const auto& peer : protocol_.record().members) {
      const auto reason = protocol_.reason_for(peer.id);
      const auto& message = protocol_.heartbeat_of(peer.id);
      text += " rank " + std::to_string(rank++) + " is process " + std::to_string(peer.process.process) +
              (peer.id == self_.id ? " (this one)" : "") + (reason.empty() ? "" : " (" + reason + ")");
      if (message.own_step_microseconds != 0)
        text += ", " + std::to_string(message.own_step_microseconds) + " us of its own work per step";
      if (const auto slowest = protocol_.record().rank_of(message.slowest.peer)) {
        text += ", " + std::to_string(message.slowest.rate) + " B/s and " + std::to_string(message.slowest.latency) +
                " us over its slowest connection, to rank " + std::to_string(*slowest);
      }
      text += ";";
    }
    text += " " + std::to_string(protocol_.record().waiting.size()) + " wait to join";
    log(log_level::error, text);  // logged at any level: a signal requested it
  }

  void send(const elastic::heartbeat& message, const std::vector<elastic::member_id>& recipients) override {
    const auto add_addresses = [&](const elastic::member& peer) {
      if (!datagram_addresses_.contains(peer.id))
        datagram_addresses_.emplace(peer.id,
                                    socket_->parse_endpoints(peer.datagram_endpoints, peer.host == self_.host));
    };
    std::vector<address> places;
    for (const auto id : recipients) {
      auto found = datagram_addresses_.find(id);
      if (found == datagram_addresses_.end()) {  // a new record has added processes
        std::ranges::for_each(protocol_.record().members, add_addresses);
        std::ranges::for_each(protocol_.record().waiting, add_addresses);
        found = datagram_addresses_.find(id);
      }
      if (found != datagram_addresses_.end()) places.insert(places.end(), found->second.begin(), found->second.end());
    }
    socket_->send(message.encode(), places);
  }

  void swap(std::uint64_t expected, const elastic::generation_record& next) override {
    record_.swap(expected, next.encode());
  }

  void stop(const std::string& reason) override {
    end_generation("generation " + std::to_string(protocol_.record().generation) + " is over (" + reason + ")");
  }

  void halt(std::uint64_t step) override {
    halt_.store(step, std::memory_order_release);
    changed_.notify_all();
  }

  void kill(const elastic::member& peer) override {
    log(log_level::warning, "process " + std::to_string(peer.process.process) + " on this host is killed (" +
                                protocol_.reason_for(peer.id) + ")");
    if (const auto* const process = local_process_of(peer)) process->kill();
  }

  void note(const std::string& text) override { log(log_level::warning, text); }

  void form(const elastic::generation_record& group) override {
    revocation_ = std::make_shared<revocation>([this, members = group.members](int rank, const std::string& reason) {
      const auto& peer = members[static_cast<std::size_t>(rank)];
      if (peer.host == self_.host) return;  // on the local host only proof counts
      apply([&](auto& protocol, clock::time_point now) { protocol.disconnected(now, peer.id, reason); });
    });
    next_ = {group, revocation_};
    links_.clear();
    stop_.store(false, std::memory_order_release);
    halt_.store(0, std::memory_order_release);
    std::erase_if(local_processes_,
                  [&](const auto& entry) { return !group.rank_of(entry.first) && entry.second.ended(); });
    std::erase_if(datagram_addresses_, [&](const auto& entry) { return !group.rank_of(entry.first); });
    for (const auto& peer : group.members) (void)local_process_of(peer);
    changed_.notify_all();
  }

  void end(elastic::exit_reason reason, const std::string& text, bool is_first) override {
    end_reason_ = std::make_exception_ptr(elastic::departure(reason, text, is_first));
    end_generation(text);
  }

  void end_generation(const std::string& reason) {
    stop_.store(true, std::memory_order_release);
    if (revocation_) revocation_->revoke(reason);
    changed_.notify_all();
  }

  [[nodiscard]] const life* local_process_of(const elastic::member& peer) {
    if (peer.host != self_.host || peer.id == self_.id) return nullptr;
    auto found = local_processes_.find(peer.id);
    if (found == local_processes_.end()) found = local_processes_.emplace(peer.id, life(peer.process)).first;
    return &found->second;
  }

  void ring() const noexcept {
    const std::uint64_t increment = 1;
    (void)!::write(bell_.get(), &increment, sizeof increment);
  }

  std::unique_ptr<datagram_socket> socket_;
  elastic::member self_;
  elastic::membership_policy policy_;
  descriptor bell_;

  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> halt_{0};
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<clock::duration> least_work_{};

  // Step times in the present generation, used by the rank's thread only.
  std::vector<clock::duration> step_times_;
  std::size_t steps_seen_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  elastic::membership protocol_;                                           // guarded by mutex_
  std::map<elastic::member_id, life> local_processes_;                     // processes on this host; guarded by mutex_
  std::map<elastic::member_id, std::vector<address>> datagram_addresses_;  // of datagram sockets; guarded by mutex_
  std::optional<next_generation> next_;                                    // guarded by mutex_
  std::vector<elastic::link_seen> links_;   // this rank's connections with any traffic; guarded by mutex_
  std::shared_ptr<revocation> revocation_;  // guarded by mutex_
  std::exception_ptr end_reason_;           // a departure, or an exception that the thread threw; guarded by mutex_

  watched_record record_;
  std::jthread thread_;
};

}}}  // namespace muster::v0::detail
