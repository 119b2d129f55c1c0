#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/core/error.hpp>

#include "store_client.hpp"
#include "store_file.hpp"

namespace muster::inline v0 {
namespace {

using detail::socket_error;
using detail::tcp_socket;

std::string name_of(std::string_view where) {
  return (where.starts_with(detail::store_file_scheme) ? "" : "tcp://") + std::string(where);
}

std::vector<detail::address> addresses_of(std::string_view list) {
  std::vector<detail::address> all;
  for (;;) {
    const auto comma = list.find(',');
    const auto more = detail::resolve(detail::parse_host_port(list.substr(0, comma), "the address of a store"));
    all.insert(all.end(), more.begin(), more.end());
    if (comma == std::string_view::npos) return all;
    list.remove_prefix(comma + 1);
  }
}

// A connection that stands, and whether its server is of this process.
struct connected {
  std::shared_ptr<detail::store_client> calls;
  bool served_here = false;
};

connected connect(std::string_view where, std::string_view token, clock::time_point until) {
  const bool by_file = where.starts_with(detail::store_file_scheme);
  const std::string name = name_of(where);
  detail::store_place place;
  if (!by_file) place = {addresses_of(where), std::string(token)};
  auto nap = std::chrono::milliseconds(5);
  int turned_away = 0;  // times in a row
  for (;;) {
    std::string failure;
    try {
      // A rank that came first finds no file yet, or that of an earlier job; one that was cut off perhaps a later one.
      if (by_file) place = detail::read_store_file(name.substr(detail::store_file_scheme.size()));
      // An address that does not answer, a server that says nothing: not the whole time is spent on one attempt.
      const auto attempt = std::min(until, deadline_after(seconds(5) * static_cast<double>(place.addresses.size())));
      auto made = tcp_socket::connect(place.addresses, attempt);
      made.set_no_delay();
      made.set_liveness(seconds(5), seconds(10));
      made.set_acknowledged_within(seconds(10));
      if (detail::introduce_to_store(made, detail::store_secret(place.token), attempt)) {
        const bool here = store_server::listens_here(made.peer().port()) && detail::is_own(made.peer());
        return {std::make_shared<detail::store_client>(std::move(made), name), here};
      }
      failure = made.peer().to_string() + " has another token";
      if (++turned_away >= detail::closings_of_a_stranger && !by_file) {
        throw configuration_error("the server at " + name +
                                  " does not have this job's token (it serves the store of another job, or is no store "
                                  "of muster); give all ranks the same MUSTER_TOKEN, or choose another port");
      }
    } catch (const socket_error& failed) {
      failure = failed.what();
      turned_away = 0;
    }
    if (clock::now() + nap >= until) {
      throw timeout_error(
          "opening the store", {},
          "no store at " + name + " answered in time (" + failure + "); check that rank 0 runs and serves there, " +
              (by_file ? "remove the file if its job has ended, " : "") + "or raise --timeout / MUSTER_TIMEOUT");
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, std::chrono::milliseconds(200));
  }
}

}  // namespace

// What all threads of a process call over; made anew where that is wanted.
struct tcp_store::connection {
  connection(std::string_view to, std::string_view by, clock::time_point until, when_lost after)
      : where(to), token(by), then(after) {
    auto made = connect(where, token, until);
    calls = std::move(made.calls);
    served_here = made.served_here;
    if (then == when_lost::connect_again) identity = calls->open(until);
  }

  std::shared_ptr<detail::store_client> get(clock::time_point until) {
    const turn mine(*this, until);
    if (then == when_lost::fail || !calls->has_ended()) return calls;
    if (!is_another) {
      auto made = connect(where, token, until).calls;
      is_another = made->get(detail::store_identity_key, until).value != identity;
      if (!is_another) return calls = std::move(made);
    }
    throw store_left_behind("the store " + name_of(where) +
                            " lost its contents (its server was restarted and had no file); restart the job, with "
                            "muster-store --data FOLDER as the store");
  }

  // As the lock of a mutex with a deadline; ThreadSanitizer of GCC 12 does not know that of std::timed_mutex.
  struct turn {
    turn(connection& in, clock::time_point until) : of(in) {
      std::unique_lock held(of.mutex);
      if (!of.freed.wait_until(held, until, [this] { return !of.busy; })) of.throw_late();
      of.busy = true;
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() {
      const std::lock_guard held(of.mutex);
      of.busy = false;
      of.freed.notify_one();
    }
    connection& of;
  };
  [[noreturn]] void throw_late() const {
    throw timeout_error(
        "opening the store", {},
        "the store " + name_of(where) + " does not answer (another call waits for it too); check that its server runs");
  }

  std::string where;
  std::string token;
  when_lost then;
  std::string identity;
  std::mutex mutex;
  std::condition_variable freed;
  bool busy = false;
  std::shared_ptr<detail::store_client> calls;
  bool served_here = false;
  bool is_another = false;  // another server is there now
};

tcp_store::tcp_store(std::string_view where, std::string_view token, clock::time_point until,
                     std::unique_ptr<store_server> own, when_lost then)
    : own_(std::move(own)), self_(std::make_unique<connection>(where, token, until, then)) {}
tcp_store::tcp_store(tcp_store&&) noexcept = default;
tcp_store::~tcp_store() = default;

std::string tcp_store::where() const { return name_of(self_->where); }
bool tcp_store::is_served_here() const { return self_->served_here; }

store_entry tcp_store::get(std::string_view key, clock::time_point until) { return self_->get(until)->get(key, until); }

store_swap tcp_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                       std::optional<std::string_view> value, clock::time_point until,
                                       store_life life) {
  return self_->get(until)->compare_and_swap(key, expected, value, until, life);
}

std::optional<store_entry> tcp_store::watch(std::string_view key, std::uint64_t known, clock::time_point until) {
  return self_->get(until)->watch(key, known, until);
}

}  // namespace muster::inline v0
