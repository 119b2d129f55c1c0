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

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include "../core/descriptor.hpp"
#include "../core/scheduling.hpp"
#include "connection.hpp"

namespace muster { inline namespace v0 { namespace serve {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// Longer than the third packet of a connection takes to come.
constexpr std::chrono::milliseconds half_made{200};

/// The socket of a supervisor; nothing without one.
detail::descriptor supervised_socket() {
  const auto count = environment("LISTEN_FDS"), owner = environment("LISTEN_PID");
  if (!count || !owner || parse_number<int>(*owner) != static_cast<int>(::getpid())) return {};
  constexpr int first = 3;
  int listens = 0;
  socklen_t size = sizeof listens;
  if (*count != "1" || ::getsockopt(first, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) {
    throw configuration_error("the sockets that LISTEN_FDS says were passed cannot be used (it is '" + *count +
                              "', and has to be one listening socket); have the supervisor pass one");
  }
  return detail::descriptor(::fcntl(first, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

detail::descriptor listening_socket(const std::string& address) {
  const auto refuse = [&](const std::string& why) -> configuration_error {
    return configuration_error("--listen " + address + " cannot be used (" + why +
                               "); give HOST:PORT of this machine, such as 127.0.0.1:8000");
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

/// A thread that serves: its loop, its listening socket and its connections.
class serving_thread {
 public:
  serving_thread(server_shared& server, int listening, std::size_t most)
      : server_(server), acceptor_(io_), pause_(io_), drained_(io_), most_(most) {
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
  }  // those that the loop still holds end with it

  [[nodiscard]] asio::io_context& io() noexcept { return io_; }
  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

  /// Of the thread itself.
  void drain(bool others_accept) {
    if (others_accept) stop_accepting();
    drained_.expires_after(std::chrono::duration_cast<clock::duration>(server_.options.drain_delay));
    drained_.async_wait([this, others_accept](error_code) {
      const std::vector<connection*> now(connections_.all.begin(), connections_.all.end());
      for (connection* const each : now) each->close_if_idle();  // none is destroyed before its handler was called
      if (!others_accept) accept_the_last();
    });
  }

 private:
  void accept() {
    const auto is_waiting = [](const connection* each) { return each->waits_since().has_value(); };
    is_full_ = connections_.all.size() >= most_ && std::ranges::none_of(connections_.all, is_waiting);
    if (is_full_ || !acceptor_.is_open()) return;
    acceptor_.async_accept([this](error_code failed, tcp::socket socket) {
      if (failed == asio::error::operation_aborted) return;
      if (!failed) {
        begin(std::move(socket));
        return accept();
      }
      // Such as too many open files: it is not over by itself, and must not be tried without a pause.
      log(log_level::warning, "a connection was not accepted (" + failed.message() + "); more are tried");
      pause_.expires_after(std::chrono::milliseconds(100));
      pause_.async_wait([this](error_code ended) {
        if (!ended) accept();
      });
    });
  }

  void begin(tcp::socket socket) {
    if (connections_.all.size() >= most_) (void)connections_.close_oldest();
    std::make_shared<connection>(std::move(socket), server_, connections_)->start();
  }

  // Clients whose connections wait here, or are being made, would fail if the socket was closed. None is added: a
  // client sends its first packet again when that is dropped, and is then told that nothing listens.
  void accept_the_last() {
    constexpr unsigned flags_of_tcp = 13;  // where they are in its header
    sock_filter drop_first_packets[] = {{BPF_LD | BPF_B | BPF_ABS, 0, 0, flags_of_tcp},
                                        {BPF_JMP | BPF_JSET | BPF_K, 0, 1, TH_SYN},
                                        {BPF_RET | BPF_K, 0, 0, 0},
                                        {BPF_RET | BPF_K, 0, 0, ~0U}};
    const sock_fprog filter{std::size(drop_first_packets), drop_first_packets};
    if (acceptor_.is_open())
      ::setsockopt(acceptor_.native_handle(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
    drained_.expires_after(half_made);
    drained_.async_wait([this](error_code) {
      error_code failed;
      while (acceptor_.is_open() && !failed) {
        tcp::socket socket = acceptor_.accept(failed);
        if (!failed) begin(std::move(socket));
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
  connection_set connections_;  // before the loop: its handlers hold connections
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer pause_, drained_;
  std::size_t most_;
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
  if (options.threads < 1) throw configuration_error("no thread would serve (threads is less than 1); give at least 1");
  state_.reset(new state{.shared = {.models = models, .options = std::move(options)}});
  detail::descriptor listening = supervised_socket();
  state_->is_supervised = static_cast<bool>(listening);
  if (!listening) listening = listening_socket(state_->shared.options.listen);
  const auto count = static_cast<std::size_t>(state_->shared.options.threads);
  const std::size_t most = std::max<std::size_t>(state_->shared.options.max_connections / count, 1);
  for (std::size_t k = 0; k < count; ++k)
    state_->threads.push_back(std::make_unique<serving_thread>(state_->shared, listening.get(), most));
  port_ = state_->threads.front()->port();
}

server::~server() = default;

std::uint16_t server::port() const noexcept { return port_; }

void server::drain() { state_->drain(); }

void server::run() {
  detail::shorten_slices_of_this_thread();  // clients wait for what it does; the other threads inherit it
  auto& threads = state_->threads;
  std::optional<asio::signal_set> signals;
  if (state_->shared.options.drain_on_sigterm) {
    signals.emplace(threads.front()->io(), SIGTERM, SIGINT);
    signals->async_wait([this](error_code failed, int) {
      if (!failed) drain();
    });
  }
  std::vector<std::thread> others;
  for (std::size_t k = 1; k < threads.size(); ++k) others.emplace_back([&io = threads[k]->io()] { io.run(); });
  auto& io = threads.front()->io();
  // A signal that is waited for is work of the loop, which must not outlive the connections.
  while (!state_->shared.draining) io.run_one();
  signals.reset();
  io.run();
  for (auto& each : others) each.join();
}

}}}  // namespace muster::v0::serve
