// What a member gives to those that are about to join, beside its training.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/elastic/state.hpp>

#include "../comm/tcp/connect.hpp"
#include "../core/descriptor.hpp"
#include "state_line.hpp"

namespace muster::inline v0::detail {

/// Listens for processes that join. Each asks every member for a share of the state as it is after some step, and then
/// gets the same share of what every later step brings; threads of its own send them. The rank is held up for as long
/// as it takes to copy that share, by a memcpy; not at all when nobody joins.
class state_server {
 public:
  /// `chosen`: under which addresses it is reached, as `own_addresses` takes it.
  state_server(std::string_view chosen, const std::string& origin, std::string_view token);
  state_server(const state_server&) = delete;
  state_server& operator=(const state_server&) = delete;
  ~state_server();

  /// Where it listens: what a joiner gives to `state_follower`.
  [[nodiscard]] const std::string& card() const noexcept { return card_; }

  // ---- the rank's ----
  /// What there is to be had, before the first step and after every change of the group. `copied`: the state has become
  /// another than by steps, so who followed it does not any more.
  void present(const state& of, bool copied);
  /// A step has been committed.
  void committed(const state& of) noexcept;
  /// The rank takes no more part in that generation.
  void pause(std::uint64_t generation) noexcept;

 private:
  using room = std::vector<std::byte>;
  struct outgoing {
    state_message head;
    room bytes;
  };
  struct follower {
    explicit follower(tcp_socket from) : socket(std::move(from)) {}
    tcp_socket socket;
    std::jthread thread;
    std::atomic<bool> done{false};

    // With the server's mutex.
    state_share share;
    std::uint64_t at = 0;  // the step of its snapshot; 0: not known yet
    bool has_snapshot = false;
    bool cut = false;
    room snapshot;            // filled by the rank, at that step
    std::vector<room> spare;  // for what steps bring
    std::deque<outgoing> queue;
    std::uint64_t queued = 0;  // bytes
    std::condition_variable_any changed;
  };

  void listen(const std::stop_token& stop);
  void let_in(tcp_socket came);
  void ring() const noexcept;
  void serve(follower& one, const std::stop_token& stop);
  void admit(follower& one, state_line& line, const std::stop_token& stop);
  void send_all(follower& one, state_line& line, const std::stop_token& stop);
  void give(follower& one, const state& of);
  static void put(follower& one, state_message head, room bytes);
  static void cut(follower& one) noexcept;

  descriptor bell_;  // for the listener: it is to end, or a follower has
  std::vector<tcp_socket> doors_;
  std::string card_;
  job_secret secret_;

  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::int64_t> step_time_{0};
  std::atomic<int> following_{0};  // that have said at which step
  clock::time_point last_step_{};  // the rank's

  std::mutex mutex_;
  std::condition_variable_any presented_;
  bool has_state_ = false;
  state_offer offer_;
  std::list<follower> followers_;
  std::jthread listener_;
};

}  // namespace muster::inline v0::detail
