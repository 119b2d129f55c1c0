// What runs an embedded store in a process: a thread with its connections, its clock and its eyes on other processes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/tcp/embedded_store.hpp>

#include "../life.hpp"
#include "../net/replica.hpp"
#include "../net/replica_line.hpp"
#include "../net/store_calls.hpp"

namespace muster::inline v0::detail {

/// How a member is reached: "process started port address address ...".
struct replica_card {
  process_identity process;
  std::uint16_t port = 0;
  std::vector<std::string> hosts;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static replica_card decode(std::string_view text);
  /// Where to connect; a member of this host by the loopback first.
  [[nodiscard]] std::vector<address> places(bool here) const;
};

class replica_node final : public store_calls {
 public:
  replica_node(std::string_view places, const embedded_store_options& options);
  ~replica_node() override;

  /// Returns when this process is one of those that carry the store. Throws timeout_error, or what keeps it out.
  void await_membership(clock::time_point until);

 private:
  /// Where processes that are not in yet find one that is.
  struct place {
    std::string text;
    std::vector<address> addresses;
    address own{};        // the one of them that is this host's, if there is
    tcp_socket door;      // when this process holds it
    int turned_away = 0;  // times in a row, while this process is not in yet
  };
  struct connection {
    replica_line line;
    std::optional<replica_member> to;  // whom it looks for
    int place = -1;                    // where it leads to
    bool met = false;
  };

  void ask(const store_request& asked) override;
  void wake() noexcept override { ring(); }
  void ring() const noexcept;

  void run() noexcept;
  void wait(clock::duration most);
  [[nodiscard]] clock::duration until_keeping() const;
  void advance(clock::time_point now);
  void welcome(const tcp_socket& door, clock::time_point now);
  void sweep(clock::time_point now);
  void count_refusals(place& one, bool turned_away);
  void look_for_places(clock::time_point now);
  void hold(place& one, clock::time_point now);
  void watch_lives(clock::time_point now);
  void carry_out(clock::time_point now);
  void perform(const replica_act::send& a, clock::time_point now);
  void perform(const replica_act::answer& a, clock::time_point now);
  void perform(const replica_act::kill& a, clock::time_point now);
  void perform(const replica_act::end& a, clock::time_point now);
  void say_goodbye();
  [[nodiscard]] bool is_here(const replica_member& one) const { return one.host != 0 && one.host == self_.host; }

  embedded_store_options options_;
  job_secret secret_;
  replica_card card_;
  replica_member self_;
  tcp_socket door_;
  std::vector<place> places_;
  descriptor bell_;
  store_replica replica_;
  std::list<connection> lines_;
  std::map<std::uint64_t, life> lives_;
  replica_ballot lives_of_;  // the view whose members they are
  std::size_t next_place_ = 0;
  bool doors_rest_ = false;  // nothing is left to let somebody in with
  clock::time_point ticked_{};
  clock::time_point looked_{};
  clock::time_point tried_{};  // to hold a place
  bool ends_ = false;          // a process of this host may have ended
  std::atomic<bool> stopping_{false};

  // With the mutex.
  std::vector<std::string> asked_;
  std::condition_variable joined_;
  bool is_in_ = false;
  std::string refused_;
  std::thread thread_;
};

}  // namespace muster::inline v0::detail
