// The thread that every process keeps beside its work: accepts connections, connects, and sends and reads heartbeats.
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

#include "../../net/acceptor.hpp"
#include "../../net/connection.hpp"
#include "frame.hpp"

namespace muster { inline namespace v0 { namespace detail {

class tcp_mesh;
struct tcp_plan;

/// How a rank is reached and what it is called when it is gone.
struct tcp_peer {
  std::vector<address> addresses;
  std::string host;  ///< the same for two ranks of one machine, and for no others
  std::string name;  ///< of that machine, for people
  long process = 0;
  cpu_set_t cores{};  ///< that it may run on
};

/// Between every two processes there are a control connection and one of data. This has the first: control
/// messages and heartbeats go over it, so that neither waits for data, and its thread has nothing else to do, so that
/// it answers however busy the process is. A peer that stops (SIGSTOP, a host that is cut off) is silent here; one that
/// ends or crashes is seen by the end of its connections.
class connection_manager {
 public:
  connection_manager(tcp_mesh& mesh, std::vector<tcp_peer> peers, std::vector<tcp_socket> listeners,
                     const job_secret& secret);
  ~connection_manager();

  [[nodiscard]] const tcp_peer& peer(int rank) noexcept { return of(rank).at; }
  [[nodiscard]] std::uint64_t strangers() const noexcept { return acceptor_.strangers(); }
  /// Why no rank can connect to this one, or this one to no rank, by the system's number; 0: each can.
  [[nodiscard]] int trouble_of_system() const noexcept {
    const int of_dialing = dial_trouble_.load();
    return of_dialing != 0 ? of_dialing : acceptor_.trouble();
  }
  /// Why a rank is not connected yet, as far as it is known.
  [[nodiscard]] std::string trouble_with(int peer);

  // By any thread, without waiting.
  /// Connects, unless it is connected or being connected; where the connection broke, only by a call that says until
  /// when that may take.
  void want(int peer, clock::time_point until = clock::time_point::max());
  /// The connection of data broke: the rank is lost, unless its last words are on their way.
  void report(int peer, const std::string& why);
  /// Sends a frame of control; one that does not matter is left out where there is no room for it.
  void post(int peer, frame head, std::span<const std::byte> payload, bool matters);
  /// The last frame of all control connections; waits until they are written, or until then.
  void say_goodbye(clock::time_point until);

 private:
  enum class stage { idle, dialing, answering, up, broken, failed };

  // A connection that this process makes, until it stands.
  struct pending_connection {
    int peer;
    std::uint32_t which;              // of the two
    std::optional<handshake> talk{};  // of this attempt
    tcp_socket socket{};
    bool connecting = false;
    int attempts = 0;
    std::size_t refusals = 0;   // the last attempts, by the system at the other end
    clock::time_point until{};  // of this attempt
    clock::time_point retry{};  // without a socket: waits for it
    bool over = false;
    event_loop::registration ready{};
  };
  // What this process has of another.
  struct remote {
    tcp_peer at;
    // Both connections, until they stand.
    stage now = stage::idle;
    std::array<tcp_socket, 2> made;  // the control connection, and that of data
    bool again = false;              // they stood before
    bool was_silent = false;         // at their end, which nothing else told
    clock::time_point until;
    std::string trouble;  // with controls_mutex_
    // The control connection.
    connection over;  // written to, and changed, with controls_mutex_
    clock::time_point heard;
    bool goodbye = false;
    clock::time_point suspect_deadline = clock::time_point::max();  // lost then at the latest: its data broke
    std::string failure_reason;
    event_loop::registration ready{};
  };

  void run(const std::stop_token& stop);
  [[nodiscard]] clock::time_point next_event() const;

  void dial(int peer);
  void dial_again(int peer, clock::time_point until);
  void dial_one(pending_connection& one);
  void advance(pending_connection& one);
  [[nodiscard]] bool wants(const introduction& said);
  void keep(int peer, std::uint32_t which, tcp_socket socket, stage expected);
  void drop(pending_connection& one, const std::string& why, bool refused = false);
  void abandon(int peer, stage next);
  void complete(int peer);
  void expire(clock::time_point now);

  void beat();
  void listen(int peer);
  void hear(int peer, const frame& head, std::span<const std::byte> payload);
  void flush(remote& one);  // with controls_mutex_
  void close(remote& one);
  void lose(int peer, const std::string& why);

  [[nodiscard]] remote& of(int peer) noexcept { return remotes_[static_cast<std::size_t>(peer)]; }

  tcp_mesh& mesh_;
  const tcp_plan& plan_;
  const int rank_;
  job_secret secret_;
  event_loop loop_;
  acceptor acceptor_;

  std::list<pending_connection> pending_connections_;
  std::atomic<int> dial_trouble_{0};
  std::mutex controls_mutex_;
  std::vector<remote> remotes_;  // by rank
  clock::time_point next_beat_{};
  clock::duration usual_lateness_{};  // of its own heartbeats, lately
  clock::time_point last_turn_{};

  std::jthread thread_;
};

}}}  // namespace muster::v0::detail
