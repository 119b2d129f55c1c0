#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include <muster/comm/tcp/store.hpp>
#include <muster/core/log.hpp>

#include "../../core/random_bytes.hpp"
#include "../net/store_guest.hpp"
#include "../net/store_journal.hpp"
#include "store_file.hpp"

namespace muster::inline v0 {
namespace {

constexpr std::size_t most_strangers = 512;  // at a time; the oldest makes room for the next
constexpr std::chrono::milliseconds tick{20};
// A client whose connection was cut, or was to a server that was killed, has so long to connect again before the table
// is begun anew for later clients; as long as one of an etcd.
constexpr seconds for_those_that_were_cut_off{10};

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

/// Where servers of this process listen.
class port_list {
 public:
  void add(std::uint16_t port) {
    const std::lock_guard lock(mutex_);
    ports_.insert(port);
  }
  void remove(std::uint16_t port) {
    const std::lock_guard lock(mutex_);
    ports_.erase(ports_.find(port));
  }
  [[nodiscard]] bool has(std::uint16_t port) {
    const std::lock_guard lock(mutex_);
    return ports_.contains(port);
  }

 private:
  std::mutex mutex_;
  std::multiset<std::uint16_t> ports_;
};

port_list& open_ports() {
  static port_list ports;
  return ports;
}

}  // namespace

bool store_server::listens_here(std::uint16_t port) { return open_ports().has(port); }

struct store_server::implementation {
  using guest = detail::store_guest;
  using guests_by_number = std::map<detail::store_table::client, guest>;

  implementation(std::string_view where, std::string_view by, const std::string& folder)
      : door(listen_at(where)),
        address(door.local()),
        token(by),
        secret(detail::store_secret(token)),
        epoll(::epoll_create1(EPOLL_CLOEXEC)),
        bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        table(
            [this](detail::store_table::client to, const detail::store_reply& said) {
              const auto found = guests.find(to);
              if (found == guests.end()) return;
              found->second.tell(said);
              told.insert(to);
            },
            [this](std::string_view key, std::uint64_t version, std::optional<std::string_view> value) {
              if (journal) journal->record(key, version, value);
            },
            [this](detail::store_table::client opens) {
              const auto known = guests.size() - strangers.size() - (strangers.contains(opens) ? 0 : 1);
              return known == 0 && clock::now() >= doubtful_until;
            },
            &detail::random_token) {
    if (!folder.empty()) journal.emplace(folder, table);
    if (table.is_used()) doubtful_until = deadline_after(for_those_that_were_cut_off);
    if (!epoll || !bell || !watch(EPOLL_CTL_ADD, door.file(), EPOLLIN, door_number) ||
        !watch(EPOLL_CTL_ADD, bell.get(), EPOLLIN, bell_number)) {
      throw error(error_kind::other, "a store cannot be served (epoll: " + std::string(std::strerror(errno)) +
                                         "); see how many files this process may have open");
    }
    open_ports().add(address.port());
    thread = std::thread([this] { run(); });
  }

  ~implementation() {
    if (!announced_in.empty()) detail::remove_store_file(announced_in, announced);
    const std::uint64_t one = 1;
    (void)!::write(bell.get(), &one, sizeof one);
    thread.join();
    open_ports().remove(address.port());
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

  [[nodiscard]] bool watch(int how, int file, std::uint32_t events, std::uint64_t number) const {
    epoll_event wanted{};
    wanted.events = events;
    wanted.data.u64 = number;
    return ::epoll_ctl(epoll.get(), how, file, &wanted) == 0;
  }

  void run() noexcept {
    try {
      for (auto before = clock::now();;) {
        epoll_event events[64];
        const bool ticks = table.has_leases() || !strangers.empty() || !owing.empty() || closed;
        const int n = ::epoll_wait(epoll.get(), events, 64, ticks ? static_cast<int>(tick.count()) : -1);
        const auto now = clock::now();
        // This process was stopped or starved meanwhile: what its clients sent lies in the system and is not read yet.
        if (ticks && now - before > 10 * tick) table.forgive(now - before);
        before = now;
        for (int i = 0; i < n; ++i) {
          const std::uint64_t number = events[i].data.u64;
          if (number == bell_number) return;
          if (number == door_number) {
            welcome(now);
          } else {
            serve(number, now);
          }
        }
        table.expire(now);
        if (now - looked >= tick) look_around(now);
        deliver(now);
      }
    } catch (const std::exception& failed) {  // no memory: the clients see the connection end
      log(log_level::error, "the store at " + address.to_string() + " ends (" + failed.what() + ")");
    }
    door = {};
    guests.clear();
    ended = true;
  }

  void welcome(clock::time_point now) {
    try {
      for (int i = 0; i < 64; ++i) {
        auto came = door.accept();
        if (!came) return;
        came.set_no_delay();
        came.set_liveness(seconds(5), seconds(10));
        if (strangers.size() >= most_strangers) drop(*strangers.begin());
        const auto number = ++last_number;
        const int file = came.file();
        auto& made = guests.try_emplace(number, std::move(came), number, secret, now).first->second;
        strangers.insert(number);
        made.watched_for = EPOLLIN;
        if (!watch(EPOLL_CTL_ADD, file, EPOLLIN, number)) drop(number);
      }
    } catch (const detail::socket_error& failed) {
      if (failed.code() == ECONNRESET || failed.code() == EINVAL) return;  // that one has left already
      if (!strangers.empty()) return drop(*strangers.begin());
      (void)watch(EPOLL_CTL_MOD, door.file(), 0, door_number);  // nothing to be had now: later
      closed = true;
    }
  }

  void serve(detail::store_table::client number, clock::time_point now) {
    const auto found = guests.find(number);
    if (found == guests.end()) return;
    auto& one = found->second;
    const bool was_stranger = one.is_stranger();
    const bool goes_on = one.serve(table, now);
    if (was_stranger && !one.is_stranger()) {
      strangers.erase(number);
      ++served;
    }
    if (!goes_on) return drop(number);
    settle(one);
  }

  // Sends what requests of others made of answers.
  void deliver(clock::time_point now) {
    while (!told.empty()) {
      const auto round = std::exchange(told, {});
      for (const auto number : round) {
        const auto found = guests.find(number);
        if (found == guests.end()) continue;
        if (!found->second.write(now)) {
          drop(number);
        } else {
          settle(found->second);
        }
      }
    }
  }

  void settle(guest& one) {
    const std::uint32_t wanted = (one.wants_to_read() ? EPOLLIN : 0U) | (one.wants_to_write() ? EPOLLOUT : 0U);
    if (one.wants_to_write()) {
      owing.insert(one.number());
    } else {
      owing.erase(one.number());
    }
    if (wanted == one.watched_for) return;
    one.watched_for = wanted;
    (void)watch(EPOLL_CTL_MOD, one.file(), wanted, one.number());
  }

  void look_around(clock::time_point now) {
    looked = now;
    for (const auto* some : {&strangers, &owing}) {
      std::vector<detail::store_table::client> stalled;
      for (const auto number : *some) {
        if (guests.at(number).is_stalled(now)) stalled.push_back(number);
      }
      for (const auto number : stalled) {
        if (!guests.at(number).is_stranger()) ++offenders;
        drop(number);
      }
    }
    if (std::exchange(closed, false)) (void)watch(EPOLL_CTL_MOD, door.file(), EPOLLIN, door_number);
  }

  void drop(detail::store_table::client number) {
    const auto found = guests.find(number);
    ++(found->second.is_stranger() ? strangers_met : left);
    if (!found->second.is_stranger() && !found->second.has_left())
      doubtful_until = deadline_after(for_those_that_were_cut_off);
    if (found->second.has_offended()) ++offenders;
    strangers.erase(number);
    owing.erase(number);
    told.erase(number);
    guests.erase(found);  // its socket too
    table.leave(number);
  }

  static constexpr std::uint64_t door_number = 0;
  static constexpr std::uint64_t bell_number = ~std::uint64_t{0};

  detail::tcp_socket door;
  detail::address address;
  std::string token;
  detail::job_secret secret;
  std::string announced_in;  // the file, if any
  detail::store_place announced;
  detail::descriptor epoll;
  detail::descriptor bell;
  std::optional<detail::store_journal> journal;
  detail::store_table table;
  guests_by_number guests;
  std::set<detail::store_table::client> strangers;  // in the order in which they came
  std::set<detail::store_table::client> owing;      // to whom something is to be written
  std::set<detail::store_table::client> told;       // to whom something new is
  detail::store_table::client last_number = 0;
  clock::time_point doubtful_until{};  // until then one that is not connected may live, and have a part in the table
  bool closed = false;                 // the door, for want of descriptors
  clock::time_point looked = clock::now();
  std::atomic<std::uint64_t> served = 0;
  std::atomic<std::uint64_t> strangers_met = 0;
  std::atomic<std::uint64_t> offenders = 0;
  std::atomic<std::uint64_t> left = 0;
  std::atomic<bool> ended = false;
  std::thread thread;
};

store_server::store_server(std::string_view address, std::string_view token, const std::string& folder)
    : self_(std::make_unique<implementation>(address, token, folder)) {}
store_server::~store_server() = default;
void store_server::announce(const std::string& file) { self_->announce(file); }
std::string store_server::address() const { return self_->address.to_string(); }
std::uint16_t store_server::port() const noexcept { return self_->address.port(); }
store_server::counts store_server::met() const noexcept {
  const std::uint64_t left = self_->left;  // first: a client that has left had been served
  return {self_->served, self_->strangers_met, self_->offenders, self_->served - left};
}
bool store_server::has_ended() const noexcept { return self_->ended; }

}  // namespace muster::inline v0
