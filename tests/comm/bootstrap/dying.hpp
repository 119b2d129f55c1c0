// A server that dies while a client authenticates.
#pragma once

#include <poll.h>

#include <string>
#include <thread>

#include <muster/comm/bootstrap/stores/tcp/store_client.hpp>
#include <muster/comm/net/handshake.hpp>
#include <muster/comm/net/socket.hpp>
#include "places.hpp"

/// Replies to the first client that connects, and ends after it has received that client's proof. No process listens at
/// its address any more.
class dying_server {
 public:
  dying_server()
      : listener_(muster::detail::tcp_socket::listen(muster::detail::address::parse("127.0.0.1:0"))),
        where_(listener_.local().to_string()) {
    thread_ = std::jthread([this] { serve(); });
  }
  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  void serve() {
    muster::detail::tcp_socket accepted;
    while (!accepted) {
      if (!muster::detail::wait_for(listener_.file(), POLLIN, places::soon())) return;
      accepted = listener_.accept();
    }
    auto exchange = muster::detail::handshake::answer(muster::detail::job_secret(), muster::detail::store_server_name);
    exchange.conclude(accepted, places::soon());
    listener_ = {};
  }

  muster::detail::tcp_socket listener_;
  std::string where_;
  std::jthread thread_;
};
