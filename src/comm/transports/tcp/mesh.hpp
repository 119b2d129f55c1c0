// What the groups of a process share: its connections to all others, and one lock around them.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "connection_manager.hpp"
#include "link.hpp"

namespace muster { inline namespace v0 { namespace detail {

class tcp_transport;

/// How the processes of a job are connected; the same at all of them, except `patience`.
struct tcp_plan {
  bool lazy = false;     ///< made when first needed, not all at once
  seconds beat{0.1};     ///< from one heartbeat to the next
  int missed = 5;        ///< heartbeats after which a process is lost
  seconds patience{30};  ///< in which a connection must stand
  tcp_limits limits;
};

/// Moves the messages of all groups, on the thread of any of their transports, which hold its lock. A lost process
/// stays lost to all groups, those that are made later too, but for one that renews it.
class tcp_mesh {
 public:
  /// `peers`: how to reach each rank. The listeners are where they reach this one.
  tcp_mesh(const tcp_plan& plan, int rank, std::vector<tcp_peer> peers, std::vector<tcp_socket> listeners,
           const job_secret& secret);
  /// Announces the end to all peers, and waits for a moment until they have what was sent.
  ~tcp_mesh();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(peers_.size()); }
  /// More ranks than cores on this host.
  [[nodiscard]] bool oversubscribed() const noexcept { return oversubscribed_; }
  /// On the host where it is most: the same at all ranks.
  [[nodiscard]] double most_ranks_a_core() const noexcept { return most_ranks_a_core_; }
  /// Connections that were refused or broken off since they were not of this job.
  [[nodiscard]] std::uint64_t strangers() const noexcept { return manager_.strangers(); }
  /// Waits until every other process is connected. Throws timeout_error with those that are not, peer_failure, also
  /// when `given_up`, which is asked every few milliseconds, says so.
  void await_all(clock::time_point until, const std::function<bool()>& given_up = {});

  void open(matching_group& group);
  void close(matching_group& group) noexcept;

 private:
  friend class connection_manager;
  friend class tcp_transport;

  // What is known of a rank of the world.
  struct peer_state {
    std::unique_ptr<tcp_link> link;
    bool reported = false;  // its present link broke
    bool away = false;      // lost, and not connected again
    bool left = false;      // announced its end
    std::string lost;       // why; empty as long as it is not
  };
  [[nodiscard]] peer_state& state(int peer) noexcept { return peers_[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] tcp_link& link(int peer) noexcept { return *state(peer).link; }
  void replace_link(int peer);
  void progress() noexcept;
  void pump(peer_state& one) noexcept;

  // For the watch.
  void attach(int peer, tcp_socket connection);
  void lose(int peer, const std::string& why);
  void left(int peer);
  void hear_notice(int peer, const frame& head, control_message& message);
  [[nodiscard]] frame position();
  void tick();

  // Control messages of a group that is not made here yet.
  struct early_notice {
    std::uint64_t generation;
    control_message message;
    int peer;
  };
  void tell_gone(matching_group& group, int peer, const std::string& what);
  [[nodiscard]] bool flushed() noexcept;

  const tcp_plan plan_;
  const int rank_;
  bool oversubscribed_;
  double most_ranks_a_core_;
  std::mutex mutex_;
  std::condition_variable changed_;
  matcher messages_;
  std::vector<peer_state> peers_;  // by rank
  std::vector<early_notice> early_;
  frame position_;              // the last collective that was begun
  connection_manager manager_;  // last: its thread uses all of the above
};

}}}  // namespace muster::v0::detail
