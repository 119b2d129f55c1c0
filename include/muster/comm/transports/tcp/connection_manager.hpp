// The connection manager: a thread in every process that accepts connections, connects, and sends and reads heartbeats.
//
// States for a peer (`stage`):
// - idle: no connection was requested.
// - connecting: this process connects to the peer.
// - accepting: the peer connects to this process. The stage ends when the peer has confirmed both connections by its
//   first bytes: until then the peer may close a connection, for example since the answer came too late, and try again.
// - connected: both connections exist.
// - broken: the connections existed and broke. `reconnect` starts again.
// - failed: the connections could not be made; the peer is lost for good.
//
// If both sides connect at the same time, the connection of the lower rank is used.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/net/acceptor.hpp>
#include <muster/comm/net/connection.hpp>
#include <muster/comm/transports/tcp/frame.hpp>

namespace muster { inline namespace v0 { namespace detail {

class tcp_mesh;
struct tcp_plan;

/// The addresses of a rank, and the description of the rank for error texts.
struct tcp_peer {
  std::vector<address> addresses;
  std::string host;  ///< the same for two ranks if and only if they run on one machine
  std::string name;  ///< the machine's host name, for error texts
  long process = 0;
  cpu_set_t cores{};  ///< cores on which the rank may run
};

/// Manages the connections to all peers. Every two processes have a control connection and a data connection. This
/// class owns the control connection, which carries control messages and heartbeats, so that neither waits for data.
/// Its thread has no other work, so it answers however busy the process is. A peer that is stopped (SIGSTOP, a host
/// that is cut off) sends no heartbeats. The end or crash of a peer is detected when its connections end.
class connection_manager {
 public:
  connection_manager(tcp_mesh& mesh, std::vector<tcp_peer> peers, std::vector<tcp_socket> listeners,
                     const job_secret& secret);
  ~connection_manager();

  [[nodiscard]] const tcp_peer& peer(int rank) noexcept { return remote_of(rank).info; }
  [[nodiscard]] std::uint64_t unauthenticated() const noexcept { return acceptor_.unauthenticated(); }
  /// Returns the errno because of which this process can make or accept no connection (no descriptor is left); 0 if
  /// there is none.
  [[nodiscard]] int system_error() const noexcept {
    const int connect_error = connect_error_.load();
    return connect_error != 0 ? connect_error : acceptor_.trouble();
  }
  /// Returns the last error of the attempts to connect to the rank; empty if there was none.
  [[nodiscard]] std::string last_connect_error(int peer);

  // Called by any thread; these functions do not wait.
  /// Requests a connection to the peer, unless it exists or is being made. A broken connection is made again only if
  /// the call has a deadline for it.
  void request_connection(int peer, clock::time_point deadline = clock::time_point::max());
  /// Reports that the data connection broke. The peer is lost soon afterwards (`late_control_message`), unless its
  /// goodbye arrives first.
  void report_broken_link(int peer, const std::string& reason);
  /// Sends a control frame, or stores it until there is a connection. Drops the frame if more than 1 MiB is unsent, or
  /// more than 64 KiB for a frame that is not required.
  void send_control_frame(int peer, frame head, std::span<const std::byte> payload, bool is_required);
  /// Sends the last frame over all control connections, and waits until the peers' systems have acknowledged all bytes,
  /// at most until the deadline.
  void send_goodbyes(clock::time_point deadline);

 private:
  enum class stage { idle, connecting, accepting, connected, broken, failed };

  // A connection that this process is making.
  struct pending_connection {
    int peer;
    std::uint32_t connection_index;          // 0: control connection, 1: data connection
    std::optional<handshake> negotiation{};  // handshake in progress
    tcp_socket socket{};
    bool is_connecting = false;
    int attempts = 0;
    std::size_t refusals = 0;        // number of consecutive refusals by the peer's system
    clock::time_point deadline{};    // for the attempt in progress
    clock::time_point retry_time{};  // time of the next attempt, while there is no socket
    bool finished = false;
    event_loop::registration ready{};
  };
  // The connections to a peer and their state.
  struct remote_peer {
    tcp_peer info;
    // Both connections while they are being made.
    stage state = stage::idle;
    std::array<tcp_socket, 2> sockets;  // the control connection and the data connection
    bool was_connected = false;         // set once both connections existed
    bool was_silent = false;            // set when the peer was lost only because its heartbeats were missing
    clock::time_point deadline;         // for `connecting` and `accepting`
    std::string last_error;             // guarded by controls_mutex_
    // The control connection.
    connection control;  // writing and assignment are guarded by controls_mutex_
    clock::time_point last_received;
    bool is_on_this_host = false;  // set when both ends have one address: no network can cut the connection
    bool has_departed = false;     // set when the peer's goodbye has arrived
    // time at which the peer is lost because the data connection broke; max() if it has not
    clock::time_point suspect_deadline = clock::time_point::max();
    std::string failure_reason;  // why the data connection broke
    event_loop::registration ready{};
  };

  // The thread: accepts and makes connections, sends heartbeats, and finds lost peers.
  void run(const std::stop_token& stop);
  // Returns the time of the next heartbeat, retry or deadline.
  [[nodiscard]] clock::time_point next_event() const;

  // Starts the attempts for both connections to an idle peer.
  void start_connecting(int peer);
  // See `transport::reconnect`.
  void reconnect(int peer, clock::time_point deadline);
  void start_attempt(pending_connection& attempt);
  void advance(pending_connection& attempt);
  [[nodiscard]] bool accepts_connection(const introduction& peer);
  void add_connection(int peer, std::uint32_t connection_index, tcp_socket socket, stage expected);
  // Ends an attempt and plans the next. `refused`: nothing listens at the address. A peer that was connected and
  // refuses at all addresses is lost.
  void fail_attempt(pending_connection& attempt, const std::string& reason, bool refused = false);
  void abandon_attempts(int peer, stage next);
  void read_confirmation(int peer);
  // Uses the sockets of a peer to which all connections are made.
  void complete_connections(int peer);
  // Ends late attempts, and loses peers that have been silent for too long.
  void expire(clock::time_point now);

  void send_heartbeats();
  [[nodiscard]] frame heartbeat();
  [[nodiscard]] clock::duration local_silence() const;
  [[nodiscard]] clock::duration local_interval() const;
  // Writes pending frames to the control connection, and handles the frames that have arrived.
  void read_control(int peer);
  void on_control_frame(int peer, const frame& head, std::span<const std::byte> payload);
  void flush(remote_peer& peer);  // called with controls_mutex_ held
  // Closes the control connection.
  void close(remote_peer& peer);
  void lose_peer(int peer, const std::string& reason);

  [[nodiscard]] remote_peer& remote_of(int peer) noexcept { return remotes_[static_cast<std::size_t>(peer)]; }

  tcp_mesh& mesh_;
  const tcp_plan& plan_;
  const int rank_;
  job_secret secret_;
  event_loop loop_;
  acceptor acceptor_;

  std::list<pending_connection> pending_connections_;
  std::atomic<int> connect_error_{0};  // errno of a connect for which this process had no free descriptor
  std::mutex controls_mutex_;
  std::vector<remote_peer> remotes_;  // by rank; used by the thread, except the fields that controls_mutex_ guards
  clock::time_point next_heartbeat_{};
  clock::time_point next_local_heartbeat_{};  // to peers on this host
  clock::duration usual_lateness_{};  // moving average of the lateness of the heartbeats that this process sends
  clock::time_point last_turn_{};

  std::jthread thread_;
};

}}}  // namespace muster::v0::detail
