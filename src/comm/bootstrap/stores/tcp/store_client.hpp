// The client's side of a connection to a store's server.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <muster/comm/bootstrap/store.hpp>

#include "../../../net/connection.hpp"
#include "../../../net/event_loop.hpp"
#include "../../../net/handshake.hpp"
#include "../../processes.hpp"
#include "store_protocol.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// What both sides of a store call themselves in the handshake.
inline constexpr std::uint32_t store_server_name = 0x65726f74;
inline constexpr std::uint32_t store_client_name = 1;
/// A server that closes the connection when it has heard the proof does not know the token, or died at that moment: one
/// that does it so many times in a row is of another job.
inline constexpr int closings_of_a_stranger = 3;
/// The secret of a store with this token.
[[nodiscard]] job_secret store_secret(std::string_view token);

/// The name of a client of this process, which no other client has. The server reads in it whether the process lives.
[[nodiscard]] std::string store_client_identity();
/// What a server of this host sees of the process of that client; nothing of one on another host.
[[nodiscard]] std::optional<life> life_of_client(const std::string& identity);

/// Proves to a store's server that this process is one of its job, and has the server prove the same; false when the
/// server, which answers, does not take the proof for one. Throws socket_error.
[[nodiscard]] bool introduce_to_store(const tcp_socket& to, const job_secret& secret, clock::time_point until);

/// A connection that stands, with the calls of all threads of this process that are under way on it, and a thread that
/// reads the answers.
class store_client {
 public:
  store_client(tcp_socket socket, std::string where);
  ~store_client();

  /// An answer with a text of its own.
  struct answer {
    store_status status = store_status::done;
    std::uint64_t number = 0;
    std::string value;
  };
  /// Asks and waits; nothing when the deadline or a stop comes first (a watch is then taken back). Chooses the id
  /// itself. Throws peer_failure when the store is lost, configuration_error for a key or a value that no store takes.
  [[nodiscard]] std::optional<answer> wait_for(store_request asked, clock::time_point until,
                                               const std::stop_token& stop = {});
  /// The same, with a timeout_error of that name at the deadline.
  [[nodiscard]] answer call(const char* name, const store_request& asked, clock::time_point until);
  /// Tells the server that this client closes the store, and does not come again.
  void leave();
  /// Where the server is.
  [[nodiscard]] address peer() const { return server_.socket().peer(); }
  /// Whether no call is answered any more.
  [[nodiscard]] bool has_ended() const {
    const std::lock_guard held(mutex_);
    return !lost_.empty();
  }

 private:
  struct waiting {
    std::condition_variable_any answered;
    std::optional<answer> came;
  };
  [[noreturn]] void fail() const;

  // With the mutex held.
  void send(const store_request& asked);
  void write();
  void lose(const std::string& why);
  void take(const store_reply& said);
  void ping(clock::time_point now);

  void run() noexcept;
  void read_answers();

  std::string where_;
  mutable std::mutex mutex_;
  connection server_;  // written to with the mutex, read from by the thread
  std::map<std::uint64_t, waiting*> calls_;
  std::uint64_t last_id_ = 0;
  std::string lost_;  // why, when it is
  int knocks_ = 0;    // since the server was last heard
  clock::time_point next_knock_;
  bool stopping_ = false;
  event_loop loop_;
  event_loop::registration ready_;
  std::thread thread_;
};

}}}  // namespace muster::v0::detail
