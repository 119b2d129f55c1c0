// A server of HTTP/1.1 for the models of a repository: the Open Inference Protocol (v2), :predict of v1, and metrics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <muster/core/clock.hpp>
#include <muster/serve/repository.hpp>

namespace muster { inline namespace v0 { namespace serve {

/// The address and limits of a server.
struct server_options {
  std::string listen = "127.0.0.1:8000";  ///< HOST:PORT or [IPv6]:PORT; port 0: any
  int threads = 1;                        ///< number of threads for connections; models have separate threads
  /// Time limit from the first byte of a request to the end of the headers, and from the connection to the first byte.
  seconds header_timeout{10};
  /// Time limit from the first byte of a request to the start of the reply, and again for sending the reply.
  seconds request_timeout{30};
  seconds idle_timeout{75};  ///< time limit between requests of a connection
  std::size_t max_header = std::size_t{16} << 10;
  std::size_t max_body = std::size_t{64} << 20;
  /// Limit for the total size of the bodies of pending requests, in bytes. Further requests get status 503.
  std::size_t max_bodies = std::size_t{1} << 30;
  /// Each of `threads` threads has an equal part of this limit, at least 1. At the limit, a new connection replaces the
  /// connection that waits longest for a request. If all connections are busy, the new connection waits.
  std::size_t max_connections = 1024;
  seconds drain_delay{1};        ///< time for which a draining server still accepts new requests
  std::string spans{};           ///< file for the spans of traced requests, one line for Zipkin each; empty: no spans
  bool drain_on_sigterm = true;  ///< true: SIGTERM and SIGINT call drain() while run() runs
};

/// A server for the models of a repository. The repository must outlive the server.
///
/// Paths: GET /v2/health/live, /v2/health/ready, /v2, /v2/models/NAME[/versions/N], .../ready; POST .../infer, with
/// binary tensors if the request has them; GET /v1/models/NAME; POST /v1/models/NAME:predict; GET /metrics. The
/// requests of a connection are answered in order. Each error is {"error": "..."} and names the faulty field.
///
/// If a supervisor such as systemd passes a listening socket (LISTEN_FDS and LISTEN_PID), the server uses that socket.
class server {
 public:
  /// Starts to listen. Throws configuration_error if the server cannot listen on the address.
  server(repository& models, server_options options);
  server(const server&) = delete;
  server& operator=(const server&) = delete;
  ~server();

  /// Returns the port on which the server listens.
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Serves requests, and returns when draining is complete.
  void run();
  /// Makes run() return without failing a request. From now on the readiness check fails, and each reply closes its
  /// connection. After drain_delay the server closes idle connections and accepts no new connections. On a supervisor's
  /// socket the server stops accepting immediately, because other processes accept there. Thread safe.
  void drain();

 private:
  struct state;
  std::unique_ptr<state> state_;
  std::uint16_t port_ = 0;
};

}}}  // namespace muster::v0::serve
