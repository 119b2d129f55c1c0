// What runs the membership protocol beside a training: a thread that hears, watches and decides, whatever the rank
// does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/bootstrap/store.hpp>

#include "../../comm/bootstrap/processes.hpp"
#include "../../comm/bootstrap/stores/watched_record.hpp"
#include "../revocation.hpp"
#include "datagrams.hpp"
#include "membership.hpp"

namespace muster::inline v0::detail {

/// One process' part in an elastic job. There is one state machine, `membership`: the rank and the record tell it what
/// happens, under one lock, and one thread does what it wants done. That thread has nothing else to do, so that its
/// heart beats however busy the rank is.
class membership_service {
 public:
  /// The rest is the rank's thread's.
  membership_service(std::shared_ptr<any_store> store, std::unique_ptr<datagram_socket> words, elastic::member self,
                     const elastic::membership_policy& policy, std::size_t steps_watched);
  membership_service(const membership_service&) = delete;
  membership_service& operator=(const membership_service&) = delete;
  ~membership_service();

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
  void worked(clock::duration work) noexcept;

  // ---- changes ----
  /// A generation that is to be formed, and its end, which comes as soon as it is over. Both may have come already.
  struct next_generation {
    elastic::generation_record record;
    std::shared_ptr<revocation> end;
  };
  /// Nothing when the deadline comes first. Throws departure when this member's part is over.
  [[nodiscard]] std::optional<next_generation> next(clock::time_point until);
  /// This rank takes no more part in the present generation.
  void stopped();
  void suspect(elastic::member_id who, const std::string& why);
  void leave();
  void wait_at(const std::string& endpoints);
  /// Waits until all other members leave too, or are gone, or wait for a group without this one, or something else ends
  /// this member's part.
  void await_others_leaving(clock::time_point until);
  /// Waits until no process of this host that was in the last generation and is not in this one lives any more.
  void await_ends(const elastic::generation_record& before, const elastic::generation_record& now,
                  clock::time_point until);
  /// When the change that is under way began here.
  [[nodiscard]] clock::time_point change_began() const;

 private:
  void run(const std::stop_token& stop);
  [[nodiscard]] clock::time_point begin_turn();
  template <class Event>
  void tell(const Event& event);
  void look_at_record(clock::time_point now);
  void look_at_lives(clock::time_point now);
  void look_at_signals(clock::time_point now);
  void perform(const elastic::act::say& a);
  void perform(const elastic::act::swap& a);
  void perform(const elastic::act::stop& a);
  void perform(const elastic::act::halt& a);
  void perform(const elastic::act::kill& a);
  void perform(const elastic::act::note& a);
  void perform(const elastic::act::form& a);
  void perform(const elastic::act::end& a);
  void end_generation(const std::string& why);
  [[nodiscard]] const life* life_of(const elastic::member& who);
  void ring() const noexcept;

  std::unique_ptr<datagram_socket> words_;
  elastic::member self_;
  elastic::membership_policy policy_;
  descriptor bell_;

  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> halt_{0};
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::uint64_t> cursor_{0};
  std::atomic<clock::duration> usual_work_{};
  std::atomic<clock::duration> least_work_{};

  // The rank's thread's: the last steps of this generation, and room to sort them.
  std::vector<clock::duration> works_;
  std::vector<clock::duration> sorted_;
  std::size_t works_seen_ = 0;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  elastic::membership protocol_;
  std::map<elastic::member_id, life> lives_;
  std::map<elastic::member_id, std::vector<address>> places_;
  std::optional<next_generation> to_form_;
  std::shared_ptr<revocation> present_;
  std::exception_ptr over_;  // departure, or what the thread threw

  watched_record record_;
  std::jthread thread_;
};

/// What SIGTERM and SIGUSR1 leave, until a service looks.
struct signals_seen {
  std::atomic<bool> leave{false};
  std::atomic<bool> describe{false};
};
[[nodiscard]] signals_seen& signals() noexcept;

}  // namespace muster::inline v0::detail
