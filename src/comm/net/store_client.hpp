// The client's side of a connection to a store's server.
#pragma once

#include <string>
#include <thread>

#include "handshake.hpp"
#include "socket.hpp"
#include "store_calls.hpp"

namespace muster::inline v0::detail {

/// Proves to a store's server that this process is one of its job, and has the server prove the same; false when the
/// server, which answers, does not take the proof for one. Throws socket_error.
[[nodiscard]] bool introduce_to_store(const tcp_socket& to, const job_secret& secret, clock::time_point until);

/// A connection that stands, with the calls that are under way on it.
class store_client final : public store_calls {
 public:
  store_client(tcp_socket socket, std::string where);
  ~store_client() override;

 private:
  void ask(const store_request& asked) override;
  void wake() noexcept override { ring(); }
  void run() noexcept;
  void knock(clock::time_point now);
  void read_answers();
  void write();
  void ring() const noexcept;

  tcp_socket socket_;
  descriptor bell_;
  std::string out_;  // what is to be written; begun by whoever calls, finished by the thread
  std::string in_;   // the thread's
  int knocks_ = 0;   // since the server was last heard
  clock::time_point next_knock_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace muster::inline v0::detail
