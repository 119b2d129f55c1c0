#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/core/log.hpp>

#include "../../../../core/random_bytes.hpp"
#include "../../../net/acceptor.hpp"
#include "../../../net/connection.hpp"
#include "../../../timing.hpp"
#include "store_client.hpp"
#include "store_file.hpp"
#include "store_table.hpp"

namespace muster { inline namespace v0 {
namespace {

constexpr std::size_t most_strangers = 512;              // at a time; the oldest makes room for the next
constexpr std::size_t enough = std::size_t{4} << 20;     // owed to a client: it may ask more when it has taken some
constexpr std::size_t too_much = std::size_t{64} << 20;  // as much is owed only to one that does not read

using client_number = detail::store_table::client;

// What no client of muster does.
struct offence {};

detail::tcp_socket listen_at(std::string_view text) {
  const bool anywhere = text.starts_with(':');
  const auto where = detail::address::parse(anywhere ? "0.0.0.0" + std::string(text) : std::string(text));
  if (where.empty()) {
    throw configuration_error("a store cannot be served at '" + std::string(text) +
                              "' (it is a number and a port: 10.0.0.1:29500, [::1]:0, :29500); write it like that");
  }
  try {
    return detail::tcp_socket::listen(anywhere ? detail::address::any(where.port()) : where);
  } catch (const detail::socket_error& failed) {
    const std::string why = "a store cannot be served: " + std::string(failed.what()) + "; choose another address";
    if (failed.code() == EADDRINUSE) throw store_address_taken(why);
    throw configuration_error(why);
  }
}

// By port: the servers of this process that listen there.
std::array<std::atomic<std::uint8_t>, 65536> listening_at;

}  // namespace

bool store_server::listens_here(std::uint16_t port) { return listening_at[port] > 0; }

struct store_server::implementation {
  // One that has proved that it knows the token.
  struct client {
    detail::connection line;
    clock::time_point last;  // when it came, or last took something
    detail::event_loop::registration ready{};
    std::string name{};     // of one that opened the store
    bool has_part = false;  // in the table
    bool leaves = false;    // for good

    [[nodiscard]] bool wants_to_read() const noexcept { return line.unsent() < enough; }
  };

  // A client that opened the store and is not connected any more: a network, or a pause of this process, may have ended
  // its connection.
  struct absent_client {
    std::string name;
    std::optional<detail::life> process;  // of this host
    clock::time_point until;              // then it counts as ended
  };
  // One that would begin anew, and waits for the absent ones.
  struct opening {
    client_number by = 0;
    std::uint64_t id = 0;
    clock::time_point until;
  };

  implementation(std::string_view where, std::string_view by, const std::string& folder)
      : implementation(listen_at(where), by, folder) {}
  implementation(detail::tcp_socket listening, std::string_view by, const std::string& folder)
      : address(listening.local()),
        token(by),
        table([this](client_number to, const detail::store_reply& said) { tell(to, said); }, folder,
              [this](client_number) { return begins_anew; }, &detail::random_token) {
    if (table.is_used()) unknown_until = deadline_after(detail::store_timing::lease);
    std::vector<detail::tcp_socket> all;
    all.push_back(std::move(listening));
    incoming.emplace(
        loop, std::move(all), detail::store_secret(token), detail::store_server_name, most_strangers,
        [](const detail::introduction&) { return true; },
        [this](detail::tcp_socket came, const detail::introduction&) { add_client(std::move(came)); });
    ++listening_at[address.port()];
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  ~implementation() {
    if (!announced_in.empty()) detail::remove_store_file(announced_in, announced);
    thread.request_stop();
    loop.wake();
    thread.join();
    --listening_at[address.port()];
  }

  void announce(const std::string& path) {
    announced.token = token;
    announced.addresses = {address};
    if (const auto host = address.host(); host == "::" || host == "0.0.0.0") {  // at all addresses
      announced.addresses = detail::own_addresses("auto", "");
      for (auto& one : announced.addresses) one = one.with_port(address.port());
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
        if (pause > 2 * detail::store_timing::tick) excuse(pause);
        loop.dispatch();
        incoming->tick(now);
        cut_stalled(now);
        answer_openings(now);
        while (!told.empty()) {  // what requests made of answers for others
          for (const auto number : std::exchange(told, {})) serve(number, [](client&) {});
        }
      }
    } catch (const std::exception& failed) {  // no memory: the clients see the connection end
      log(log_level::error, "the store at " + address.to_string() + " ends (" + failed.what() + ")");
    }
    incoming->close();
    clients.clear();
    ended = true;
  }

  [[nodiscard]] clock::time_point next_turn() const {
    const auto next = incoming->next();
    if (!openings.empty()) return std::min(next, deadline_after(detail::store_timing::doubt_poll));
    const bool waits = !owing.empty() || !absent.empty() || last_turn < unknown_until;
    return waits ? std::min(next, deadline_after(detail::store_timing::tick)) : next;
  }

  // This process stood still: no client could connect meanwhile.
  void excuse(clock::duration pause) {
    for (auto& one : absent) one.until += pause;
    if (last_turn - pause < unknown_until) unknown_until += pause;
  }

  // Whether a client that is not connected may live, and have a part in the table.
  [[nodiscard]] bool is_doubtful(clock::time_point now) {
    std::erase_if(absent,
                  [&](const absent_client& one) { return now >= one.until || (one.process && one.process->ended()); });
    return !absent.empty() || now < unknown_until;
  }

  void open(client_number number, client& one, const detail::store_request& asked) {
    one.name = asked.value.value_or("");
    std::erase_if(absent, [&](const absent_client& other) { return other.name == one.name; });
    if (asked.number == 0) {
      one.has_part = true;
      return static_cast<void>(table.handle(number, asked));
    }
    // Half of its time at most: one that cannot be told from the first goes on with what is there.
    const std::chrono::milliseconds patience(std::min<std::uint64_t>(asked.number / 2, 1'000'000));
    openings.push_back({number, asked.id, clock::now() + patience});
  }

  void answer_openings(clock::time_point now) {
    for (const auto& next : std::exchange(openings, {})) {
      const auto found = clients.find(next.by);
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
      (void)table.handle(next.by, {.what = detail::store_call::open, .id = next.id});
    }
    begins_anew = false;
  }

  void add_client(detail::tcp_socket came) {
    const auto number = ++last_number;
    ++served;
    try {
      came.set_no_delay();
      came.set_liveness(seconds(5), seconds(10));
      auto& made = clients.try_emplace(number, client{detail::connection(std::move(came)), clock::now()}).first->second;
      made.ready = loop.watch(made.line.socket().file(), EPOLLIN, [this, number](std::uint32_t) {
        serve(number, [&](client& one) { hear(number, one); });
      });
    } catch (const error&) {  // it has left already, or there is no room for it
      drop(number);
    }
  }

  // Does that for a client, if it is still there, and writes what it is owed.
  template <class Deed>
  void serve(client_number number, const Deed& deed) {
    const auto found = clients.find(number);
    if (found == clients.end()) return;
    auto& one = found->second;
    try {
      write(one);
      deed(one);
      write(one);
    } catch (const offence&) {
      ++offenders;
      return drop(number);
    } catch (const detail::socket_error&) {
      return drop(number);
    }
    if (one.line.unsent() > 0) {
      owing.insert(number);
    } else {
      owing.erase(number);
    }
    // A request that was left for lack of room is looked at again, also where all answers have gone since.
    const bool goes_on = one.line.unsent() > 0 || detail::first_frame(one.line.received());
    one.ready.want((one.wants_to_read() ? EPOLLIN : 0U) | (goes_on ? EPOLLOUT : 0U));
  }

  // A piece at a time: a client that asks much does not keep the others waiting. And as many requests as there is room
  // for the answers of.
  void hear(client_number number, client& one) {
    if (one.wants_to_read()) one.line.read();
    std::size_t used = 0;
    while (one.wants_to_read()) {
      const auto frame = detail::first_frame(one.line.received().substr(used));
      if (!frame) break;
      const auto asked = detail::parse_request(frame->body);
      if (!asked) throw offence();
      one.leaves = one.leaves || asked->what == detail::store_call::leave;
      one.has_part =
          one.has_part || asked->what == detail::store_call::swap || asked->what == detail::store_call::watch;
      if (asked->what == detail::store_call::open) {
        open(number, one, *asked);
      } else if (!table.handle(number, *asked)) {
        throw offence();
      }
      used += frame->bytes;
      if (!one.wants_to_read()) write(one);
    }
    one.line.drop(used);
  }

  void tell(client_number to, const detail::store_reply& said) {
    const auto found = clients.find(to);
    if (found == clients.end()) return;
    if (found->second.line.unsent() < too_much) append_frame(found->second.line.outgoing(), said);
    told.insert(to);
  }

  static void write(client& one) {
    if (one.line.write() > 0 || one.line.unsent() == 0) one.last = clock::now();
    if (one.line.unsent() >= too_much) throw offence();  // something was left out: nothing that follows would be right
  }

  void cut_stalled(clock::time_point now) {
    const auto is_stalled = [&](client_number number) {
      return now - clients.at(number).last > detail::store_timing::slow_client;
    };
    for (auto at = owing.begin(); (at = std::find_if(at, owing.end(), is_stalled)) != owing.end();) {
      ++offenders;
      drop(*at++);
    }
  }

  static std::optional<detail::life> life_of(const std::string& name) noexcept {
    try {
      return detail::life_of_client(name);
    } catch (const std::exception&) {  // no descriptor is left: its time tells
      return std::nullopt;
    }
  }

  void drop(client_number number) {
    ++left;
    owing.erase(number);
    told.erase(number);
    if (const auto gone = clients.extract(number); gone && gone.mapped().has_part && !gone.mapped().leaves) {
      const auto& name = gone.mapped().name;
      if (!name.empty()) absent.push_back({name, life_of(name), deadline_after(detail::store_timing::lease)});
    }
    table.leave(number);
  }

  detail::address address;
  std::string token;
  std::string announced_in;  // the file, if any
  detail::store_place announced;
  detail::event_loop loop;
  std::optional<detail::acceptor> incoming;
  detail::store_table table;
  std::map<client_number, client> clients;
  std::set<client_number> owing;  // clients with bytes to write
  std::set<client_number> told;   // clients with something new of these
  client_number last_number = 0;
  std::vector<absent_client> absent;
  std::vector<opening> openings;
  bool begins_anew = false;           // that opens now
  clock::time_point unknown_until{};  // until then clients of the server before may come again
  clock::time_point last_turn = clock::now();
  std::atomic<std::uint64_t> served = 0;
  std::atomic<std::uint64_t> offenders = 0;
  std::atomic<std::uint64_t> left = 0;
  std::atomic<bool> ended = false;
  std::jthread thread;
};

store_server::store_server(std::string_view address, std::string_view token, const std::string& folder)
    : self_(std::make_unique<implementation>(address, token, folder)) {}
store_server::~store_server() = default;
void store_server::announce(const std::string& file) { self_->announce(file); }
std::string store_server::address() const { return self_->address.to_string(); }
std::uint16_t store_server::port() const noexcept { return self_->address.port(); }
store_server::counts store_server::met() const noexcept {
  const std::uint64_t left = self_->left;  // first: a client that has left had been served
  return {self_->served, self_->incoming->strangers(), self_->offenders, self_->served - left};
}
bool store_server::has_ended() const noexcept { return self_->ended; }

}}  // namespace muster::v0
