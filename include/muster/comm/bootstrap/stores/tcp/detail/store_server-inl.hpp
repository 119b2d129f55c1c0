#pragma once

#include <muster/comm/bootstrap/tcp_store.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include <muster/comm/bootstrap/stores/tcp/store_client.hpp>
#include <muster/comm/bootstrap/stores/tcp/store_file.hpp>
#include <muster/comm/bootstrap/stores/tcp/store_table.hpp>
#include <muster/comm/comm_timing.hpp>
#include <muster/comm/net/acceptor.hpp>
#include <muster/comm/net/connection.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/random_bytes.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// Number of connections that are not authenticated yet; a new connection replaces the oldest.
inline constexpr std::size_t max_pending_clients = 512;
// Unwritten bytes of a client: above this limit its requests wait until it has read some replies.
inline constexpr std::size_t reply_limit = std::size_t{4} << 20;
// Unwritten bytes: only a client that does not read reaches this limit.
inline constexpr std::size_t unread_limit = std::size_t{64} << 20;

using client_number = detail::store_table::client;

// Thrown when a peer violates the protocol, which no client of muster does.
struct protocol_violation {};

// Listens at "10.0.0.1:29500", "[::1]:0" or ":29500". Throws the errors of the constructor of store_server.
inline detail::tcp_socket listen_at(std::string_view text) {
  const bool anywhere = text.starts_with(':');
  const auto destination = detail::address::parse(anywhere ? "0.0.0.0" + std::string(text) : std::string(text));
  if (destination.empty()) {
    throw configuration_error("a store cannot be served at '" + std::string(text) +
                              "' (not a numeric address and a port); write 10.0.0.1:29500, [::1]:0 or :29500");
  }
  try {
    return detail::tcp_socket::listen(anywhere ? detail::address::any(destination.port()) : destination);
  } catch (const detail::socket_error& failed) {
    const std::string reason = "a store cannot be served: " + std::string(failed.what()) + "; choose another address";
    if (failed.code() == EADDRINUSE) throw store_address_taken(reason);
    throw configuration_error(reason);
  }
}

// Number of this process's servers that listen at each port.
inline std::array<std::atomic<std::uint8_t>, 65536> listening_at;

}  // namespace detail

MUSTER_INLINE bool store_server::listens_here(std::uint16_t port) { return detail::listening_at[port] > 0; }

struct store_server::implementation {
  // A client that has proved that it knows the token.
  struct client {
    detail::connection link;
    clock::time_point last;  // when the client connected, last accepted bytes, or had read all replies
    detail::event_loop::registration ready{};
    std::string name{};     // the name of a client that has opened the store
    bool has_part = false;  // true once the client has opened the store, or sent a swap or watch
    bool leaves = false;    // true if it has announced that it leaves for good

    [[nodiscard]] bool accepts_requests() const noexcept { return link.unsent() < detail::reply_limit; }
  };

  // A client that opened the store and is no longer connected. A network failure, or a pause of the server's process,
  // may have ended its connection.
  struct absent_client {
    std::string name;
    std::optional<detail::life> process;  // set if the client is on this host
    clock::time_point until;              // the client counts as ended from then on
  };
  // A request to open the store. A request that would restart the table empty waits until the absent clients have
  // ended.
  struct opening {
    detail::client_number client = 0;
    std::uint64_t id = 0;
    clock::time_point until;
  };

  // `journal_folder`: the folder of the table's journal; empty: the table is only in memory.
  implementation(std::string_view place, std::string_view shared_token, const std::string& journal_folder)
      : implementation(detail::listen_at(place), shared_token, journal_folder) {}
  implementation(detail::tcp_socket listening, std::string_view shared_token, const std::string& journal_folder)
      : address(listening.local()),
        token(shared_token),
        table([this](detail::client_number receiver, const detail::store_reply& reply) { reply_to(receiver, reply); },
              journal_folder, [this](detail::client_number) { return begins_anew; }, &detail::random_token) {
    if (table.is_used()) unknown_until = deadline_after(detail::store_timing::lease);
    std::vector<detail::tcp_socket> listeners;
    listeners.push_back(std::move(listening));
    incoming.emplace(
        loop, std::move(listeners), detail::store_secret(token), detail::store_server_name, detail::max_pending_clients,
        [](const detail::introduction&) { return true; },
        [this](detail::tcp_socket accepted, const detail::introduction&) { add_client(std::move(accepted)); });
    ++detail::listening_at[address.port()];
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  ~implementation() {
    if (!announced_in.empty()) detail::remove_store_file(announced_in, announced);
    thread.request_stop();
    loop.wake();
    thread.join();
    --detail::listening_at[address.port()];
  }

  void announce(const std::string& path) {
    announced.token = token;
    announced.addresses = {address};
    if (const auto host = address.host(); host == "::" || host == "0.0.0.0") {  // at all addresses
      announced.addresses = detail::own_addresses("auto", "");
      for (auto& own_address : announced.addresses) own_address = own_address.with_port(address.port());
    }
    detail::write_store_file(path, announced);
    announced_in = path;
  }

  void run(const std::stop_token& stop) noexcept {
    try {
      while (!stop.stop_requested()) {
        loop.wait(next_turn());
        const auto now = clock::now();
        const auto pause = now - std::exchange(last_turn, now);
        if (pause > 2 * detail::store_timing::tick) extend_deadlines(pause);
        loop.dispatch();
        incoming->tick(now);
        drop_stalled(now);
        answer_openings(now);
        while (!notified.empty()) {  // requests that have caused replies to other clients
          for (const auto number : std::exchange(notified, {})) serve(number, [](client&) {});
        }
      }
    } catch (const std::exception& failed) {  // out of memory: the clients observe the end of the connection
      log(log_level::error, "the store at " + address.to_string() + " ends (" + failed.what() + ")");
    }
    incoming->close();
    clients.clear();
    ended = true;
  }

  [[nodiscard]] clock::time_point next_turn() const {
    const auto next = incoming->next();
    if (!openings.empty()) return std::min(next, deadline_after(detail::store_timing::ended_client_poll));
    const bool waits = !unwritten.empty() || !absent.empty() || last_turn < unknown_until;
    return waits ? std::min(next, deadline_after(detail::store_timing::tick)) : next;
  }

  // Extends the deadlines of absent clients after a pause of this process, in which no client could connect.
  void extend_deadlines(clock::duration pause) {
    for (auto& peer : absent) peer.until += pause;
    if (last_turn - pause < unknown_until) unknown_until += pause;
  }

  // Returns true if a client that is not connected may still live and have a part in the table.
  [[nodiscard]] bool is_doubtful(clock::time_point now) {
    std::erase_if(absent, [&](const absent_client& peer) {
      return now >= peer.until || (peer.process && peer.process->ended());
    });
    return !absent.empty() || now < unknown_until;
  }

  // Handles a request to open the store: at once, or in `answer_openings` if the client would restart the table empty.
  void open(detail::client_number client_id, client& peer, const detail::store_request& request) {
    peer.name = request.value.value_or("");
    std::erase_if(absent, [&](const absent_client& other) { return other.name == peer.name; });
    if (request.version == 0) {
      peer.has_part = true;
      return static_cast<void>(table.handle(client_id, request));
    }
    // Waits for absent clients at most half of the client's own time. If an absent client may still live then, the
    // client continues with the present table.
    const std::chrono::milliseconds patience(std::min<std::uint64_t>(request.version / 2, 1'000'000));
    openings.push_back({client_id, request.id, clock::now() + patience});
  }

  // Answers the requests in `openings` that need not wait for absent clients any more.
  void answer_openings(clock::time_point now) {
    for (const auto& next : std::exchange(openings, {})) {
      const auto found = clients.find(next.client);
      if (found == clients.end()) continue;
      const bool is_alone = std::ranges::none_of(
          clients, [](const auto& other) { return other.second.has_part && !other.second.leaves; });
      const bool waits = is_alone && is_doubtful(now);
      if (waits && now < next.until) {
        openings.push_back(next);
        continue;
      }
      found->second.has_part = true;
      begins_anew = is_alone && !waits;
      (void)table.handle(next.client, {.call = detail::store_call::open, .id = next.id});
    }
    begins_anew = false;
  }

  void add_client(detail::tcp_socket accepted) {
    const auto number = ++last_number;
    ++served;
    try {
      accepted.set_no_delay();
      accepted.set_liveness(seconds(5), seconds(10));
      auto& added =
          clients.try_emplace(number, client{detail::connection(std::move(accepted)), clock::now()}).first->second;
      added.ready = loop.watch(added.link.socket().file(), EPOLLIN, [this, number](std::uint32_t) {
        serve(number, [&](client& peer) { on_readable(number, peer); });
      });
    } catch (const error&) {  // it has already left, or there is no room for it
      drop(number);
    }
  }

  // Runs `action` for a client that is still connected, and writes the pending replies to it.
  template <class Action>
  void serve(detail::client_number client_id, const Action& action) {
    const auto found = clients.find(client_id);
    if (found == clients.end()) return;
    auto& peer = found->second;
    try {
      write(peer);
      action(peer);
      write(peer);
    } catch (const detail::protocol_violation&) {
      ++offenders;
      return drop(client_id);
    } catch (const detail::socket_error&) {
      return drop(client_id);
    }
    if (peer.link.unsent() > 0) {
      unwritten.insert(client_id);
    } else {
      unwritten.erase(client_id);
    }
    // A request that was deferred for lack of room is checked again, also if all replies have been written since.
    const bool waits_to_write = peer.link.unsent() > 0 || detail::first_frame(peer.link.received());
    peer.ready.set_events((peer.accepts_requests() ? EPOLLIN : 0U) | (waits_to_write ? EPOLLOUT : 0U));
  }

  // Reads one piece at a time, so that a client with many requests does not delay the others, and handles requests
  // while there is room for their replies.
  void on_readable(detail::client_number client_id, client& peer) {
    if (peer.accepts_requests()) peer.link.read();
    std::size_t used = 0;
    while (peer.accepts_requests()) {
      const auto frame = detail::first_frame(peer.link.received().substr(used));
      if (!frame) break;
      const auto request = detail::parse_request(frame->body);
      if (!request) throw detail::protocol_violation();
      peer.leaves = peer.leaves || request->call == detail::store_call::leave;
      peer.has_part =
          peer.has_part || request->call == detail::store_call::swap || request->call == detail::store_call::watch;
      if (request->call == detail::store_call::open) {
        open(client_id, peer, *request);
      } else if (!table.handle(client_id, *request)) {
        throw detail::protocol_violation();
      }
      used += frame->bytes;
      if (!peer.accepts_requests()) write(peer);
    }
    peer.link.drop(used);
  }

  void reply_to(detail::client_number receiver, const detail::store_reply& reply) {
    const auto found = clients.find(receiver);
    if (found == clients.end()) return;
    if (found->second.link.unsent() < detail::unread_limit) append_frame(found->second.link.outgoing(), reply);
    notified.insert(receiver);
  }

  static void write(client& peer) {
    if (peer.link.write() > 0 || peer.link.unsent() == 0) peer.last = clock::now();
    // A reply was dropped, so later replies would be wrong.
    if (peer.link.unsent() >= detail::unread_limit) throw detail::protocol_violation();
  }

  // Drops the clients with unsent replies that have read nothing for longer than `store_timing::slow_client`.
  void drop_stalled(clock::time_point now) {
    const auto is_stalled = [&](detail::client_number client_id) {
      return now - clients.at(client_id).last > detail::store_timing::slow_client;
    };
    for (auto at = unwritten.begin(); (at = std::find_if(at, unwritten.end(), is_stalled)) != unwritten.end();) {
      ++offenders;
      drop(*at++);
    }
  }

  // Starts to observe the process of the client with this name. Returns nothing if the process is on another host or in
  // another namespace of processes, or if no descriptor is left.
  static std::optional<detail::life> observe_process_of(const std::string& name) noexcept {
    try {
      return detail::life_of_client(name);
    } catch (const std::exception&) {  // no descriptor is left: the lease alone decides
      return std::nullopt;
    }
  }

  // Ends the connection of a client, and removes its keys. A client that took part is remembered as absent.
  void drop(detail::client_number client_id) {
    ++departed;
    unwritten.erase(client_id);
    notified.erase(client_id);
    if (const auto former = clients.extract(client_id); former && former.mapped().has_part && !former.mapped().leaves) {
      const auto& name = former.mapped().name;
      if (!name.empty())
        absent.push_back({name, observe_process_of(name), deadline_after(detail::store_timing::lease)});
    }
    table.leave(client_id);
  }

  detail::address address;
  std::string token;
  std::string announced_in;  // the path of the announced file, if any
  detail::store_place announced;
  detail::event_loop loop;
  std::optional<detail::acceptor> incoming;
  detail::store_table table;
  std::map<detail::client_number, client> clients;
  std::set<detail::client_number> unwritten;  // clients with unwritten replies
  std::set<detail::client_number> notified;   // clients with new replies
  detail::client_number last_number = 0;
  std::vector<absent_client> absent;
  std::vector<opening> openings;
  bool begins_anew = false;           // true while the client that opens restarts the table empty
  clock::time_point unknown_until{};  // clients of the previous server may return until then
  clock::time_point last_turn = clock::now();
  std::atomic<std::uint64_t> served = 0;
  std::atomic<std::uint64_t> offenders = 0;
  std::atomic<std::uint64_t> departed = 0;
  std::atomic<bool> ended = false;
  std::jthread thread;
};

MUSTER_INLINE store_server::store_server(std::string_view address, std::string_view token,
                                         const std::string& journal_folder)
    : self_(std::make_unique<implementation>(address, token, journal_folder)) {}
MUSTER_INLINE store_server::~store_server() = default;
MUSTER_INLINE void store_server::announce(const std::string& path) { self_->announce(path); }
MUSTER_INLINE std::string store_server::address() const { return self_->address.to_string(); }
MUSTER_INLINE std::uint16_t store_server::port() const noexcept { return self_->address.port(); }
MUSTER_INLINE store_server::counts store_server::connection_counts() const noexcept {
  const std::uint64_t departed = self_->departed;  // read first: a client that has departed was served
  return {self_->served, self_->incoming->unauthenticated(), self_->offenders, self_->served - departed};
}
MUSTER_INLINE bool store_server::has_ended() const noexcept { return self_->ended; }

}}  // namespace muster::v0
