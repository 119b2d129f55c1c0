// What runs the membership protocol beside a training: a thread that hears, watches and decides, whatever the rank
// does.
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

#include "../../comm/bootstrap/processes.hpp"
#include "../../comm/bootstrap/stores/watched_record.hpp"
#include "../../comm/group/revocation.hpp"
#include "../timing.hpp"
#include "datagrams.hpp"
#include "membership.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// What SIGTERM and SIGUSR1 leave, until a service looks.
struct signals_seen {
  std::atomic<bool> leave{false};
  std::atomic<bool> describe{false};
};
inline constinit signals_seen signals;

/// One process' part in an elastic job. There is one state machine, `membership`: the rank and the record tell it what
/// happens, under one lock, and one thread does what it wants done. That thread has nothing else to do, so that its
/// heart beats however busy the rank is.
class membership_service final : elastic::membership_outlet {
 public:
  /// The rest is the rank's thread's.
  membership_service(std::shared_ptr<any_store> store, std::unique_ptr<datagram_socket> words, elastic::member self,
                     const elastic::membership_policy& policy, std::size_t steps_watched)
      : words_(std::move(words)),
        self_(self),
        policy_(policy),
        bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        works_(steps_watched),
        protocol_(std::move(self), policy, *this, clock::now()),
        record_(std::move(store), "elastic/record",
                {log_level::warning, "the membership",
                 "training continues, and failures are handled when the store answers again"},
                {}, [this] { ring(); }) {
    if (!bell_) {
      throw error(error_kind::other, "the membership of this job cannot be watched (eventfd: " +
                                         std::string(std::strerror(errno)) + "); raise the limit (ulimit -n)");
    }
    thread_ = std::jthread([this](const std::stop_token& stop) {
      try {
        run(stop);
      } catch (...) {  // the rank ends with the reason, and the others go on without it
        const std::lock_guard held(mutex_);
        over_ = std::current_exception();
        end_generation("the membership of this rank failed");
      }
    });
  }

  ~membership_service() override {
    thread_.request_stop();
    ring();
  }

  // ---- quick, for every step ----
  /// Whether the present generation is over, or over after so many steps.
  [[nodiscard]] bool must_stop(std::uint64_t steps) const noexcept {
    if (stop_.load(std::memory_order_acquire)) return true;
    const auto halt = halt_.load(std::memory_order_acquire);
    return halt != 0 && steps >= halt;
  }
  void committed(std::uint64_t steps, std::uint64_t cursor) noexcept {
    cursor_.store(cursor, std::memory_order_relaxed);
    steps_.store(steps, std::memory_order_release);
  }
  /// How long the rank's own part of a step took.
  void worked(clock::duration work) noexcept {
    works_[works_seen_++ % works_.size()] = work;
    if (works_seen_ < works_.size()) return;
    least_work_.store(elastic::least_work(works_), std::memory_order_relaxed);
  }

  // ---- changes ----
  /// A generation that is to be formed, and its end, which comes as soon as it is over. Both may have come already.
  struct next_generation {
    elastic::generation_record record;
    std::shared_ptr<revocation> end;
  };
  /// Nothing when the deadline comes first. Throws departure when this member's part is over.
  [[nodiscard]] std::optional<next_generation> next(clock::time_point until) {
    std::unique_lock held(mutex_);
    changed_.wait_until(held, until, [this] { return to_form_ || over_; });
    if (over_) std::rethrow_exception(over_);
    if (to_form_) {
      works_seen_ = 0;
      least_work_ = clock::duration{};
    }
    return std::exchange(to_form_, std::nullopt);
  }

  /// What the traffic of the last steps shows of this rank's connections.
  void judged(const elastic::link_seen& slowest, std::uint64_t usual, std::vector<elastic::link_seen> all) {
    const std::lock_guard held(mutex_);
    protocol_.judged(slowest, usual);
    links_ = std::move(all);
  }

  /// Waits for the end of the present generation; false when the deadline comes first. Throws departure when this
  /// member's part is over.
  [[nodiscard]] bool await_stop(clock::time_point until) {
    const auto ends = [this] { return must_stop(~std::uint64_t{0}); };
    std::unique_lock held(mutex_);
    changed_.wait_until(held, until, [&] { return over_ || ends(); });
    if (over_) std::rethrow_exception(over_);
    return ends();
  }

  /// Something happened to this rank: `event(protocol, now)` tells the protocol, which acts at once.
  template <class Event>
  auto tell(const Event& event) {
    const std::lock_guard held(mutex_);
    const auto now = begin_turn();
    return event(protocol_, now);
  }
  /// Waits until all other members leave too, or are gone, or wait for a group without this one, or something else ends
  /// this member's part.
  void await_others_leaving(clock::time_point until) {
    std::unique_lock held(mutex_);
    while (!over_ && !protocol_.may_go() && clock::now() < until)
      changed_.wait_for(held, elastic_timing::farewell_poll);
  }

  /// Waits until no process of this host that was in the last generation and is not in this one lives any more.
  void await_ends(const elastic::generation_record& before, const elastic::generation_record& now,
                  clock::time_point until) {
    for (const auto& one : before.members) {
      if (now.rank_of(one.id) || one.host != self_.host || one.id == self_.id) continue;
      for (;;) {
        {
          const std::lock_guard held(mutex_);
          const auto* const its = life_of(one);
          if (its == nullptr || its->ended() || clock::now() >= until) break;
        }
        std::this_thread::sleep_for(elastic_timing::end_poll);
      }
    }
  }

 private:
  static constexpr std::size_t datagrams_a_turn = 4096;  // that are looked at before the time is

  void run(const std::stop_token& stop) {
    const auto turn = std::chrono::duration_cast<std::chrono::milliseconds>(policy_.beat / 4);
    std::vector<pollfd> watched;
    while (!stop.stop_requested()) {
      watched.assign({{bell_.get(), POLLIN, 0}, {words_->file(), POLLIN, 0}});
      {
        const std::lock_guard held(mutex_);
        for (const auto& [id, its] : lives_) {
          if (protocol_.is_in(id) && !protocol_.is_dead(id) && its.file() >= 0)
            watched.push_back({its.file(), POLLIN, 0});
        }
      }
      (void)::poll(watched.data(), watched.size(), static_cast<int>(std::max<long long>(turn.count(), 1)));
      std::uint64_t rung = 0;
      (void)!::read(bell_.get(), &rung, sizeof rung);

      std::vector<std::pair<elastic::heartbeat, address>> heard;  // before the lock, which the rank wants for each step
      for (std::size_t most = datagrams_a_turn; const auto text = words_->receive(most);) {
        if (auto beat = elastic::heartbeat::decode(*text)) heard.emplace_back(std::move(*beat), words_->sender());
      }
      const std::lock_guard held(mutex_);
      const auto now = begin_turn();
      look_at_record(now);
      for (const auto& [beat, sender] : heard) {
        if (beat.from == 0)
          answer(sender);
        else
          protocol_.hear(now, beat);
      }
      look_at_lives(now);
      look_at_signals(now);
      protocol_.tick(now);
    }
  }

  // To a process that watches the job and is not in it. Nothing depends on it, and nothing is kept of it.
  void answer(const address& to) {
    auto said = protocol_.heartbeat_of(self_.id);
    said.links = links_;
    words_->send(said.encode(), {to});
  }

  // Before any event: what the rank has done since the last one.
  [[nodiscard]] clock::time_point begin_turn() {
    const auto now = clock::now();
    protocol_.wake(now);
    const auto steps = steps_.load(std::memory_order_acquire);
    if (!protocol_.has_stopped()) protocol_.committed(steps, cursor_.load(std::memory_order_relaxed));
    protocol_.worked(least_work_.load(std::memory_order_relaxed));
    return now;
  }

  void look_at_record(clock::time_point now) {
    if (const auto entry = record_.take())
      protocol_.learn(now, entry->version, elastic::generation_record::decode(entry->value));
    if (record_.take_failure()) protocol_.store_failed(now);
    try {
      record_.check();
    } catch (const store_left_behind& left) {
      protocol_.left_behind(left.what());
    }
  }

  void look_at_lives(clock::time_point now) {
    for (const auto& [id, its] : lives_) {
      if (!protocol_.is_in(id) || protocol_.is_dead(id)) continue;
      if (its.ended()) {
        protocol_.prove_dead(now, id);
      } else if (protocol_.is_silent(now, id) && !protocol_.is_suspect(id) && its.is_stopped()) {
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
    for (const auto& one : protocol_.record().members) {
      const auto reason = protocol_.reason_for(one.id);
      const auto& said = protocol_.heartbeat_of(one.id);
      text += " rank " + std::to_string(rank++) + " is process " + std::to_string(one.process.process) +
              (one.id == self_.id ? " (this one)" : "") + (reason.empty() ? "" : " (" + reason + ")");
      if (said.work != 0) text += ", " + std::to_string(said.work) + " us of a step its own";
      if (const auto to = protocol_.record().rank_of(said.slowest.to)) {
        text += ", " + std::to_string(said.slowest.rate) + " B/s and " + std::to_string(said.slowest.latency) +
                " us over its slowest connection, to rank " + std::to_string(*to);
      }
      text += ";";
    }
    text += " " + std::to_string(protocol_.record().waiting.size()) + " wait to join";
    log(log_level::error, text);  // at whatever level: a signal asked for it
  }

  void say(const elastic::heartbeat& what, const std::vector<elastic::member_id>& to) override {
    const auto learn = [&](const elastic::member& one) {
      if (!places_.contains(one.id)) places_.emplace(one.id, words_->read_place(one.words, one.host == self_.host));
    };
    std::vector<address> places;
    for (const auto id : to) {
      auto found = places_.find(id);
      if (found == places_.end()) {  // a new record
        std::ranges::for_each(protocol_.record().members, learn);
        std::ranges::for_each(protocol_.record().waiting, learn);
        found = places_.find(id);
      }
      if (found != places_.end()) places.insert(places.end(), found->second.begin(), found->second.end());
    }
    words_->send(what.encode(), places);
  }

  void swap(std::uint64_t expected, const elastic::generation_record& next) override {
    record_.swap(expected, next.encode());
  }

  void stop(const std::string& why) override {
    end_generation("generation " + std::to_string(protocol_.record().generation) + " is over (" + why + ")");
  }

  void halt(std::uint64_t step) override {
    halt_.store(step, std::memory_order_release);
    changed_.notify_all();
  }

  void kill(const elastic::member& peer) override {
    log(log_level::warning, "process " + std::to_string(peer.process.process) + " of this host is killed (" +
                                protocol_.reason_for(peer.id) + ")");
    if (const auto* const its = life_of(peer)) its->kill();
  }

  void note(const std::string& text) override { log(log_level::warning, text); }

  void form(const elastic::generation_record& group) override {
    present_ = std::make_shared<revocation>([this, members = group.members](int rank, const std::string& why) {
      const auto& peer = members[static_cast<std::size_t>(rank)];
      if (peer.host == self_.host) return;  // of this host there is proof, or none
      tell([&](auto& protocol, clock::time_point now) { protocol.disconnected(now, peer.id, why); });
    });
    to_form_ = {group, present_};
    links_.clear();
    stop_.store(false, std::memory_order_release);
    halt_.store(0, std::memory_order_release);
    std::erase_if(lives_, [&](const auto& one) { return !group.rank_of(one.first) && one.second.ended(); });
    std::erase_if(places_, [&](const auto& one) { return !group.rank_of(one.first); });
    for (const auto& one : group.members) (void)life_of(one);
    changed_.notify_all();
  }

  void end(elastic::exit_reason why, const std::string& text, bool is_first) override {
    over_ = std::make_exception_ptr(elastic::departure(why, text, is_first));
    end_generation(text);
  }

  void end_generation(const std::string& why) {
    stop_.store(true, std::memory_order_release);
    if (present_) present_->revoke(why);
    changed_.notify_all();
  }

  [[nodiscard]] const life* life_of(const elastic::member& peer) {
    if (peer.host != self_.host || peer.id == self_.id) return nullptr;
    auto found = lives_.find(peer.id);
    if (found == lives_.end()) found = lives_.emplace(peer.id, life(peer.process)).first;
    return &found->second;
  }

  void ring() const noexcept {
    const std::uint64_t one = 1;
    (void)!::write(bell_.get(), &one, sizeof one);
  }

  std::unique_ptr<datagram_socket> words_;
  elastic::member self_;
  elastic::membership_policy policy_;
  descriptor bell_;

  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> halt_{0};
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::uint64_t> cursor_{0};
  std::atomic<clock::duration> least_work_{};

  // The rank's thread's: the last steps of this generation.
  std::vector<clock::duration> works_;
  std::size_t works_seen_ = 0;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  elastic::membership protocol_;
  std::map<elastic::member_id, life> lives_;
  std::map<elastic::member_id, std::vector<address>> places_;
  std::optional<next_generation> to_form_;
  std::vector<elastic::link_seen> links_;  // of this rank, that carried anything
  std::shared_ptr<revocation> present_;
  std::exception_ptr over_;  // departure, or what the thread threw

  watched_record record_;
  std::jthread thread_;
};

}}}  // namespace muster::v0::detail
