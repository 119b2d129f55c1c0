// The client's side of a connection to a store's server.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <muster/comm/bootstrap/store.hpp>

#include <muster/comm/bootstrap/processes.hpp>
#include <muster/comm/bootstrap/stores/tcp/store_protocol.hpp>
#include <muster/comm/net/connection.hpp>
#include <muster/comm/net/event_loop.hpp>
#include <muster/comm/net/handshake.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The names of both sides of a store in the handshake.
inline constexpr std::uint32_t store_server_name = 0x65726f74;
inline constexpr std::uint32_t store_client_name = 1;
/// Number of successive closed handshakes after which the server counts as belonging to another job, if the first of
/// them was at least `store_timing::rejected` ago. A server that closes the connection after the client's proof does
/// not know the token, died at that moment, or had no processor or room for the handshake.
inline constexpr int max_rejections = 3;
/// Returns the secret of a store with this token.
[[nodiscard]] job_secret store_secret(std::string_view token);

/// Returns a new, unique name for a client in the calling process. The name identifies the process, so that a server on
/// the same host can observe whether the process lives.
[[nodiscard]] std::string store_client_identity();
/// Starts to observe the process of the client with this name (`store_client_identity`). Returns nothing for a process
/// on another host, or in another pid namespace.
[[nodiscard]] std::optional<life> life_of_client(const std::string& identity);

/// Authenticates this process to a store's server, and the server to this process. Returns false when the server
/// replies and rejects the proof. Throws socket_error, and store_problem for a server with another protocol.
[[nodiscard]] bool introduce_to_store(const tcp_socket& socket, const job_secret& secret, clock::time_point until);

/// An established connection to a store's server, with the outstanding calls of the process's threads, and a
/// thread that reads the replies.
class store_client {
 public:
  store_client(tcp_socket socket, std::string where);
  ~store_client();

  /// A reply that owns its text.
  struct answer {
    store_status status = store_status::done;
    std::uint64_t number = 0;
    std::string value;
  };
  /// Sends a request and waits for the reply. Returns nothing at the deadline or on a stop request; a watch is then
  /// cancelled. Chooses the id of the request. Throws peer_failure when the store is lost, configuration_error for a
  /// key or a value that no store accepts.
  [[nodiscard]] std::optional<answer> wait_for(store_request request, clock::time_point until,
                                               const std::stop_token& stop = {});
  /// Does the same, but throws a timeout_error with the name of the call ("get") at the deadline, and error when the
  /// store is full.
  [[nodiscard]] answer call(const char* name, const store_request& request, clock::time_point until);
  /// Notifies the server that this client closes the store for good.
  void leave();
  /// Returns the address of the server.
  [[nodiscard]] address peer() const { return server_.socket().peer(); }
  /// Returns true if the connection is lost: no call is answered any more.
  [[nodiscard]] bool has_ended() const {
    const std::lock_guard held(mutex_);
    return !lost_.empty();
  }

 private:
  struct pending_call {
    std::condition_variable_any answered;
    std::optional<answer> reply;
  };
  [[noreturn]] void throw_lost() const;

  // The following functions require mutex_.
  void send(const store_request& request);
  void write();
  void mark_lost(const std::string& reason);
  void on_reply(const store_reply& reply);
  void ping(clock::time_point now);

  void run() noexcept;
  void read_answers();

  std::string where_;
  mutable std::mutex mutex_;
  connection server_;                             // the thread reads without mutex_; writes are guarded by mutex_
  std::map<std::uint64_t, pending_call*> calls_;  // outstanding calls by id; guarded by mutex_
  std::uint64_t last_id_ = 0;                     // guarded by mutex_
  std::string lost_;                              // the reason for the loss; empty while connected; guarded by mutex_
  int pings_ = 0;                                 // pings since the last reply of the server; used by the thread only
  clock::time_point next_ping_;                   // used by the thread only
  bool stopping_ = false;                         // guarded by mutex_
  event_loop loop_;
  event_loop::registration ready_;
  std::thread thread_;
};

}}}  // namespace muster::v0::detail
