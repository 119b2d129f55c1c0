// The connections of a process to all other processes, shared by all its groups, and the mutex that guards them.
//
// Threads: any thread that tests a request advances all links, with the mutex held. The thread of the connection
// manager makes the connections, sends heartbeats, and reports lost peers. Lock order: `mutex_`
// before `connection_manager::controls_mutex_`.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <muster/comm/transports/tcp/connection_manager.hpp>
#include <muster/comm/transports/tcp/link.hpp>

namespace muster { inline namespace v0 { namespace detail {

class tcp_transport;

/// The parameters of the connections of a job; the same in all processes, except `connect_timeout`.
struct tcp_plan {
  bool lazy = false;            ///< connections are made when first needed, not all at the start
  seconds beat{0.1};            ///< interval between heartbeats
  int missed_heartbeats = 5;    ///< number of missing heartbeats after which a process is lost
  seconds connect_timeout{30};  ///< time limit for a connection
  tcp_limits limits;
};

/// Sends and receives the messages of all groups, on the thread of any of their transports, which holds the mutex. A
/// lost process stays lost to all groups, including later ones, except a group that renews the connection.
class tcp_mesh {
 public:
  /// Starts the connection manager. `peers` has every rank's addresses. `listeners` are the sockets at which the
  /// peers reach this rank.
  tcp_mesh(const tcp_plan& plan, int rank, std::vector<tcp_peer> peers, std::vector<tcp_socket> listeners,
           const job_secret& secret);
  /// Announces the end to all peers, and waits a limited time until the peers' systems have acknowledged all bytes.
  ~tcp_mesh();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(peers_.size()); }
  /// Returns true if this host has more ranks than cores.
  [[nodiscard]] bool oversubscribed() const noexcept { return oversubscribed_; }
  /// Returns the largest number of ranks a core on any host; the same at all ranks.
  [[nodiscard]] double most_ranks_a_core() const noexcept { return most_ranks_a_core_; }
  /// Returns the number of connections that were refused or closed because the peer did not belong to this job.
  [[nodiscard]] std::uint64_t unauthenticated_connections() const noexcept { return manager_.unauthenticated(); }
  /// Requests the connections to all lower ranks, and waits until every other process is connected. Throws
  /// timeout_error with the processes that are not connected. Throws peer_failure if a process is lost or has ended, or
  /// if `is_aborted`, which is called every few milliseconds, returns true. Throws error if this process has no
  /// descriptor left.
  void await_all(clock::time_point deadline, const std::function<bool()>& is_aborted = {});

  /// Adds a group, and reports the lost peers and early control messages to the group.
  void open(matching_group& group);
  /// Removes a group; messages that arrive for it later are dropped.
  void close(matching_group& group) noexcept;

 private:
  friend class connection_manager;
  friend class tcp_transport;

  // The state of a peer. Guarded by mutex_.
  struct peer_state {
    std::unique_ptr<tcp_link> link;
    bool reported = false;      // set when the failure of the present link was reported to the manager
    bool disconnected = false;  // set while the peer is lost and not connected again
    bool departed = false;      // set when the peer has announced its end
    std::string lost_reason;    // reason why the peer was lost; empty if it never was
  };
  [[nodiscard]] peer_state& state(int peer) noexcept { return peers_[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] tcp_link& link(int peer) noexcept { return *state(peer).link; }
  // Makes a new link, without a connection, for a peer that connects again.
  void replace_link(int peer);
  void progress() noexcept;
  // Writes and reads as much as possible, and reports a broken link to the manager once.
  void advance(peer_state& peer) noexcept;

  // The connection manager calls these functions when a data connection is made, a peer is lost, its goodbye or its
  // control message has arrived.
  void attach(int peer, tcp_socket connection);
  void on_lost(int peer, const std::string& reason);
  void on_departure(int peer);
  void on_control_message(int peer, const frame& head, control_message& message);
  // Returns a frame whose signature and generation identify the last collective that this rank began.
  [[nodiscard]] frame position();
  void flush_urgent();

  // A control message of a group that this process has not made yet.
  struct early_message {
    std::uint64_t generation;
    control_message message;
    int peer;
  };
  // Posts the message that a rank has ended to the group, once, if the peer is a member.
  void report_lost_peer(matching_group& group, int peer, const std::string& reason);
  [[nodiscard]] bool try_flush() noexcept;

  const tcp_plan plan_;
  const int rank_;
  bool oversubscribed_;
  double most_ranks_a_core_;
  std::mutex mutex_;
  std::condition_variable changed_;
  matcher messages_;                           // guarded by mutex_
  std::vector<peer_state> peers_;              // by rank; guarded by mutex_
  std::vector<early_message> early_messages_;  // guarded by mutex_
  frame position_;                             // the last collective that this rank began; guarded by mutex_
  connection_manager manager_;                 // declared last: its thread uses the members above
};

}}}  // namespace muster::v0::detail
