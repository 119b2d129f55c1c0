// The client's side of a connection to a store's server.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <muster/comm/rendezvous/store.hpp>

#include "socket.hpp"
#include "store_protocol.hpp"

namespace muster::inline v0::detail {

/// A connection that stands, with the calls that are under way on it.
class store_client {
 public:
  store_client(tcp_socket socket, std::string where);
  store_client(const store_client&) = delete;
  store_client& operator=(const store_client&) = delete;
  ~store_client();

  /// An answer with a text of its own.
  struct answer {
    store_status status = store_status::done;
    std::uint64_t number = 0;
    std::string value;
  };
  /// Asks and waits; nothing when the deadline comes first (a watch is then taken back). Chooses the id itself. Throws
  /// peer_failure when the connection is lost.
  [[nodiscard]] std::optional<answer> call(store_request asked, clock::time_point until);

  /// A lease of this client: kept alive from now on.
  struct lease {
    seconds ttl{};
    clock::time_point asked{};   ///< when the server was last asked to keep it, and said yes
    clock::time_point asking{};  ///< when it is being asked now
    bool is_being_asked = false;
    bool held = true;
  };
  void begin_keeping(std::uint64_t id, seconds ttl, clock::time_point asked);
  void end_keeping(std::uint64_t id) noexcept;
  [[nodiscard]] bool is_kept(std::uint64_t id) const noexcept;

  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  struct waiting {
    std::condition_variable answered;
    std::optional<answer> came;
  };

  void run() noexcept;
  void keep_leases(clock::time_point now);
  void knock(clock::time_point now);
  [[nodiscard]] clock::time_point next_keeping() const;
  void read_answers();
  void take(const store_reply& said);
  void write();
  void lose(const std::string& why) noexcept;
  void ring() const noexcept;
  [[noreturn]] void fail() const;

  tcp_socket socket_;
  std::string where_;
  descriptor bell_;
  mutable std::mutex mutex_;
  std::string out_;  // what is to be written; begun by whoever calls, finished by the thread
  std::string in_;   // the thread's
  std::map<std::uint64_t, waiting*> calls_;
  std::map<std::uint64_t, lease> leases_;
  std::uint64_t last_id_ = 0;
  int knocks_ = 0;  // since the server was last heard
  clock::time_point next_knock_;
  std::string lost_;  // why, when it is
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace muster::inline v0::detail
