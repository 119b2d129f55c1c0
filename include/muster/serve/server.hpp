// A server of HTTP/1.1 for the models of a repository: the Open Inference Protocol (v2), :predict of v1, and metrics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <muster/core/clock.hpp>
#include <muster/serve/repository.hpp>

namespace muster { inline namespace v0 { namespace serve {

/// Where a server listens, and what it puts up with.
struct server_options {
  std::string listen = "127.0.0.1:8000";  ///< HOST:PORT or [IPv6]:PORT; port 0: any
  int threads = 1;                        ///< that serve connections; models have threads of their own
  seconds header_timeout{10};   ///< from the first byte of a request, or from the connection, to the end of its headers
  seconds request_timeout{30};  ///< from the first byte of a request to its answer, and for the client to read that
  seconds idle_timeout{75};     ///< between requests of a connection
  std::size_t max_header = std::size_t{16} << 10;
  std::size_t max_body = std::size_t{64} << 20;
  std::size_t max_bodies = std::size_t{1} << 30;  ///< bytes of all bodies at a time; a request beyond gets 503
  std::size_t max_connections = 1024;             ///< the one that waits longest for a request goes; further ones wait
  seconds drain_delay{1};                         ///< how long a server that drains goes on to take new requests
  std::string spans{};  ///< file for the spans of requests with headers of a trace, each a line for Zipkin; empty: none
  bool drain_on_sigterm = true;  ///< SIGTERM and SIGINT call drain() while run() runs
};

/// Serves the models of a repository, which must outlive it.
///
/// GET /v2/health/live, /v2/health/ready, /v2, /v2/models/NAME[/versions/N], .../ready; POST .../infer, with binary
/// tensors if the request has them; GET /v1/models/NAME; POST /v1/models/NAME:predict; GET /metrics. Requests of a
/// connection are answered in their order. Each error is {"error": "..."} and names the field that it is about.
///
/// Under a supervisor that passes a listening socket (LISTEN_FDS and LISTEN_PID, as systemd does) it takes that one.
class server {
 public:
  /// Listens. Throws configuration_error for an address that cannot be listened at.
  server(repository& models, server_options options);
  server(const server&) = delete;
  server& operator=(const server&) = delete;
  ~server();

  /// Where it listens.
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Serves until it has drained.
  void run();
  /// Has run() end without a failed request: ready says no, every answer closes its connection, and drain_delay later
  /// idle connections are closed and no new ones are taken. A socket of a supervisor is left to others at once. Thread
  /// safe.
  void drain();

 private:
  struct state;
  std::unique_ptr<state> state_;
  std::uint16_t port_ = 0;
};

}}}  // namespace muster::v0::serve
