// A server that dies while a client authenticates.
#pragma once

#include <poll.h>

#include <string>
#include <thread>

#include <muster/comm/bootstrap/stores/tcp/store_client.hpp>
#include <muster/comm/net/handshake.hpp>
#include <muster/comm/net/socket.hpp>
#include "places.hpp"

/// Closes the connections of the first clients, each after it has received the client's proof, and then ends. No
/// process listens at its address any more.
class dying_server {
 public:
  /// `clients`: number of connections that the server closes. `token`: if not null, the server has this token, and
  /// accepts each client before it closes the connection.
  explicit dying_server(int clients = 1, const char* token = nullptr)
      : secret_(token == nullptr ? muster::detail::job_secret() : muster::detail::store_secret(token)),
        listener_(muster::detail::tcp_socket::listen(muster::detail::address::parse("127.0.0.1:0"))),
        where_(listener_.local().to_string()) {
    thread_ = std::jthread([this, clients, token] {
      for (int client = 0; client < clients; ++client) serve(token != nullptr);
      listener_ = {};
    });
  }
  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  void serve(bool accepts) {
    muster::detail::tcp_socket accepted;
    while (!accepted) {
      if (!muster::detail::wait_for(listener_.file(), POLLIN, places::soon())) return;
      accepted = listener_.accept();
    }
    auto exchange = muster::detail::handshake::answer(secret_, muster::detail::store_server_name);
    exchange.conclude(accepted, places::soon());
    if (!accepts) return;
    exchange.accept();
    exchange.conclude(accepted, places::soon());
  }

  muster::detail::job_secret secret_;
  muster::detail::tcp_socket listener_;
  std::string where_;
  std::jthread thread_;
};
