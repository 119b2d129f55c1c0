#include <muster/serve/server.hpp>

#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>

#include <muster/core/descriptor.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include <muster/core/scheduling.hpp>
#include "http_connection.hpp"

namespace muster { inline namespace v0 { namespace serve {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// Time limit for incomplete connections: longer than the third packet of a TCP handshake needs to arrive.
constexpr std::chrono::milliseconds handshake_time{200};

/// Returns the socket that a supervisor has passed, or no socket.
detail::descriptor supervised_socket() {
  const auto count = environment("LISTEN_FDS"), owner = environment("LISTEN_PID");
  if (!count || !owner || parse_number<int>(*owner) != static_cast<int>(::getpid())) return {};
  constexpr int first = 3;
  int listens = 0;
  socklen_t size = sizeof listens;
  if (*count != "1" || ::getsockopt(first, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) {
    throw configuration_error("the sockets of LISTEN_FDS cannot be used (it is '" + *count +
                              "', but must be one listening socket); have the supervisor pass one socket");
  }
  return detail::descriptor(::fcntl(first, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

detail::descriptor listening_socket(const std::string& address) {
  const auto refuse = [&](const std::string& reason) -> configuration_error {
    return configuration_error("--listen " + address + " cannot be used (" + reason +
                               "); write HOST:PORT of this machine, such as 127.0.0.1:8000");
  };
  const auto colon = address.rfind(':');
  if (colon == std::string::npos || !parse_number<std::uint16_t>(std::string_view(address).substr(colon + 1)))
    throw refuse("it has no port");
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  asio::io_context io;
  error_code failed;
  const auto found = tcp::resolver(io).resolve(host, address.substr(colon + 1), tcp::resolver::passive, failed);
  if (failed || found.empty()) throw refuse(failed.message());
  tcp::acceptor acceptor(io);
  const tcp::endpoint at = *found.begin();
  acceptor.open(at.protocol(), failed);
  if (!failed) acceptor.set_option(tcp::acceptor::reuse_address(true), failed);
  if (!failed) acceptor.bind(at, failed);
  if (!failed) acceptor.listen(asio::socket_base::max_listen_connections, failed);
  if (failed) throw refuse(failed.message());
  return detail::descriptor(::fcntl(acceptor.native_handle(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

/// The event loop, listening socket and connections of a serving thread.
class serving_thread {
 public:
  serving_thread(server_shared& server, int listening, std::size_t most_connections)
      : server_(server), acceptor_(io_), pause_(io_), drained_(io_), most_connections_(most_connections) {
    connections_.on_end = connections_.on_wait = [this] {
      if (is_full_) accept();
    };
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    ::getsockname(listening, reinterpret_cast<sockaddr*>(&bound), &size);
    acceptor_.assign(bound.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(),
                     ::fcntl(listening, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    acceptor_.non_blocking(true);
    accept();
  }

  serving_thread(const serving_thread&) = delete;
  ~serving_thread() {
    connections_.on_end = connections_.on_wait = [] {};
  }  // the destructor of the loop destroys the remaining connections

  [[nodiscard]] asio::io_context& io() noexcept { return io_; }
  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

  /// Drains the connections. Called in this object's own thread.
  void drain(bool others_accept) {
    if (others_accept) stop_accepting();
    drained_.expires_after(std::chrono::duration_cast<clock::duration>(server_.options.drain_delay));
    drained_.async_wait([this, others_accept](error_code) {
      const std::vector<connection*> open_connections(connections_.all.begin(), connections_.all.end());
      // A connection is destroyed only after its handler was called, so these pointers stay valid.
      for (connection* const each : open_connections) each->close_if_idle();
      if (!others_accept) accept_the_last();
    });
  }

 private:
  void accept() {
    const auto is_waiting = [](const connection* each) { return each->waits_since().has_value(); };
    is_full_ = connections_.all.size() >= most_connections_ && std::ranges::none_of(connections_.all, is_waiting);
    if (is_full_ || !acceptor_.is_open()) return;
    acceptor_.async_accept([this](error_code failed, tcp::socket socket) {
      if (failed == asio::error::operation_aborted) return;
      if (!failed) {
        start_connection(std::move(socket));
        return accept();
      }
      // An error such as too many open files may persist, so the next attempt follows after a pause.
      log(log_level::warning, "a connection was not accepted (" + failed.message() + "); accepting continues");
      pause_.expires_after(std::chrono::milliseconds(100));
      pause_.async_wait([this](error_code ended) {
        if (!ended) accept();
      });
    });
  }

  void start_connection(tcp::socket socket) {
    if (connections_.all.size() >= most_connections_) (void)connections_.close_oldest();
    std::make_shared<connection>(std::move(socket), server_, connections_)->start();
  }

  // Accepts the connections that are queued or in their handshake, before the socket is closed: closing it would reset
  // these connections. A filter drops the first packets (SYN) of new connections meanwhile. Their clients send the
  // packet again, and then are notified that no process listens.
  void accept_the_last() {
    constexpr unsigned flags_of_tcp = 13;  // offset of the flags in the TCP header
    sock_filter drop_first_packets[] = {{BPF_LD | BPF_B | BPF_ABS, 0, 0, flags_of_tcp},
                                        {BPF_JMP | BPF_JSET | BPF_K, 0, 1, TH_SYN},
                                        {BPF_RET | BPF_K, 0, 0, 0},
                                        {BPF_RET | BPF_K, 0, 0, ~0U}};
    const sock_fprog filter{std::size(drop_first_packets), drop_first_packets};
    if (acceptor_.is_open())
      ::setsockopt(acceptor_.native_handle(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
    drained_.expires_after(handshake_time);
    drained_.async_wait([this](error_code) {
      error_code failed;
      while (acceptor_.is_open() && !failed) {
        tcp::socket socket = acceptor_.accept(failed);
        if (!failed) start_connection(std::move(socket));
      }
      stop_accepting();
    });
  }

  void stop_accepting() {
    error_code ignored;
    pause_.cancel();
    acceptor_.close(ignored);
  }

  server_shared& server_;
  connection_set connections_;  // declared before the loop, whose handlers own connections
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer pause_, drained_;
  std::size_t most_connections_;
  bool is_full_ = false;
};

}  // namespace

struct server::state {
  server_shared shared;
  bool is_supervised = false;
  std::vector<std::unique_ptr<serving_thread>> threads{};

  void drain() {
    if (shared.draining.exchange(true)) return;
    for (const auto& each : threads) asio::post(each->io(), [&thread = *each, this] { thread.drain(is_supervised); });
  }
};

server::server(repository& models, server_options options) {
  detail::prepare_process();
  if (options.threads < 1) throw configuration_error("no thread would serve (threads is less than 1); set at least 1");
  state_.reset(new state{.shared = {.models = models, .options = std::move(options)}});
  detail::descriptor listening = supervised_socket();
  state_->is_supervised = static_cast<bool>(listening);
  if (!listening) listening = listening_socket(state_->shared.options.listen);
  const auto count = static_cast<std::size_t>(state_->shared.options.threads);
  const std::size_t most_connections = std::max<std::size_t>(state_->shared.options.max_connections / count, 1);
  for (std::size_t k = 0; k < count; ++k)
    state_->threads.push_back(std::make_unique<serving_thread>(state_->shared, listening.get(), most_connections));
  port_ = state_->threads.front()->port();
}

server::~server() = default;

std::uint16_t server::port() const noexcept { return port_; }

void server::drain() { state_->drain(); }

void server::run() {
  // Low latency, because clients wait for this thread. The other threads inherit the setting.
  detail::shorten_slices_of_this_thread();
  auto& threads = state_->threads;
  std::optional<asio::signal_set> signals;
  if (state_->shared.options.drain_on_sigterm) {
    signals.emplace(threads.front()->io(), SIGTERM, SIGINT);
    signals->async_wait([this](error_code failed, int) {
      if (!failed) drain();
    });
  }
  std::vector<std::thread> other_threads;
  for (std::size_t k = 1; k < threads.size(); ++k) other_threads.emplace_back([&io = threads[k]->io()] { io.run(); });
  auto& io = threads.front()->io();
  // A pending wait for a signal keeps the loop running, so the wait is cancelled when draining begins.
  while (!state_->shared.draining) io.run_one();
  signals.reset();
  io.run();
  for (auto& each : other_threads) each.join();
}

}}}  // namespace muster::v0::serve
