#include "store_client.hpp"

#include <algorithm>
#include <cerrno>
#include <sstream>

#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/core/error.hpp>

#include "../../../../core/random_bytes.hpp"
#include "../../../../core/text.hpp"
#include "../../../timing.hpp"
#include "store_file.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// TCP's own probes (keepalive, TCP_USER_TIMEOUT) find a host that is silent. They do not find a server that is stopped:
// the kernel answers for it. Several pings, each so long after the one before by the clock of a process that runs: a
// client that was stopped for a while itself does not blame the server.
constexpr int most_knocks = 3;
constexpr std::uint64_t of_knocks = 0;  // the id of none of the calls: any answer will do

}  // namespace

job_secret store_secret(std::string_view token) {
  const std::string_view parts[] = {"store 3", token};
  return job_secret(parts);
}

namespace {

// Where a number means the same process.
std::string process_space() { return boot_number() + "/" + process_numbers(); }

}  // namespace

std::string store_client_identity() {
  const auto own = process_identity::own();
  return process_space() + " " + std::to_string(own.process) + " " + std::to_string(own.started) + " " + random_token();
}

std::optional<life> life_of_client(const std::string& identity) {
  std::istringstream words(identity);
  std::string space;
  process_identity named;
  words >> space >> named.process >> named.started;
  if (!words || named.started == 0 || space != process_space()) return std::nullopt;
  return life(named);
}

bool introduce_to_store(const tcp_socket& to, const job_secret& secret, clock::time_point until) {
  auto said = handshake::connect(secret, {store_client_name, store_server_name, 0});
  try {
    said.conclude(to, until);
    return said.now() == handshake::state::done;
  } catch (const socket_error& failed) {
    if (!said.is_answered() || !failed.closed()) throw;  // it answers, so what it closed upon is the proof
    return false;
  }
}

store_client::store_client(tcp_socket socket, std::string where)
    : where_(std::move(where)),
      server_(std::move(socket)),
      next_knock_(deadline_after(store_timing::ping_interval)),
      ready_(loop_.watch(server_.socket().file(), EPOLLIN, [this](std::uint32_t events) {
        if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_answers();
      })) {
  thread_ = std::thread([this] { run(); });
}

store_client::~store_client() {
  {
    const std::lock_guard held(mutex_);
    stopping_ = true;
  }
  loop_.wake();
  thread_.join();
}

void store_client::leave() {
  const std::lock_guard held(mutex_);
  if (lost_.empty()) send({.what = store_call::leave});
}

store_client::answer store_client::call(const char* name, const store_request& asked, clock::time_point until) {
  auto came = wait_for(asked, until);
  if (!came) store_timed_out(name, asked.key, where_);
  if (came->status == store_status::full) {
    throw error(error_kind::other, "the store " + where_ + " is full (it holds 256 MiB); remove keys");
  }
  return std::move(*came);
}

std::optional<store_client::answer> store_client::wait_for(store_request asked, clock::time_point until,
                                                           const std::stop_token& stop) {
  if (asked.what != store_call::open) check_store_key(asked.key, where_);
  check_store_value(asked.value, where_);
  waiting mine;
  std::unique_lock held(mutex_);
  if (!lost_.empty()) fail();
  asked.id = ++last_id_;
  send(asked);
  calls_.emplace(asked.id, &mine);  // no answer is taken before this waits
  mine.answered.wait_until(held, stop, until, [&] { return mine.came || !lost_.empty(); });
  calls_.erase(asked.id);
  if (mine.came) return std::move(mine.came);
  if (!lost_.empty()) fail();
  if (asked.what == store_call::watch) send({.what = store_call::cancel, .id = asked.id});
  return std::nullopt;
}

void store_client::take(const store_reply& said) {
  const auto found = calls_.find(said.id);
  if (found == calls_.end()) return;  // it has given up
  found->second->came = answer{said.status, said.number, std::string(said.value)};
  found->second->answered.notify_all();
}

void store_client::lose(const std::string& why) {
  if (lost_.empty()) lost_ = why;
  for (auto& [id, call] : calls_) call->answered.notify_all();
}

void store_client::fail() const {
  throw peer_failure({}, "the store " + where_ + " is lost (" + lost_ + "); check that its server runs");
}

void store_client::send(const store_request& asked) {
  const bool idle = server_.unsent() == 0;
  append_frame(server_.outgoing(), asked);
  if (idle) write();
  if (server_.unsent() > 0) loop_.wake();
}

// As much as goes without waiting; the thread writes the rest.
void store_client::write() {
  try {
    server_.write();
  } catch (const socket_error& failed) {
    lose(failed.what());
    loop_.wake();
  }
}

void store_client::run() noexcept {
  std::string why = "this process has closed it";
  try {
    for (;;) {
      clock::time_point next;
      {
        const std::lock_guard held(mutex_);
        if (stopping_) break;
        ping(clock::now());
        next = next_knock_;
        write();
        if (!lost_.empty()) break;
        ready_.want(EPOLLIN | (server_.unsent() > 0 ? EPOLLOUT : 0U));
      }
      loop_.wait(next);
      loop_.dispatch();
    }
  } catch (const std::exception& failed) {
    why = failed.what();
  }
  const std::lock_guard held(mutex_);
  server_.socket().shutdown_write();
  lose(why);
}

void store_client::ping(clock::time_point now) {
  if (now < next_knock_) return;
  if (knocks_ == most_knocks) throw socket_error(ETIMEDOUT, "the server does not answer");
  send({.what = store_call::get, .id = of_knocks, .key = store_identity_key});
  ++knocks_;
  next_knock_ = deadline_after(store_timing::ping_interval);
}

void store_client::read_answers() {
  if (!server_.read()) return;
  knocks_ = 0;
  next_knock_ = deadline_after(store_timing::ping_interval);
  std::size_t used = 0;
  while (const auto frame = first_frame(server_.received().substr(used))) {
    const auto said = parse_reply(frame->body);
    if (!said) throw socket_error(EPROTO, "malformed reply of the server");
    const std::lock_guard held(mutex_);
    take(*said);
    used += frame->bytes;
  }
  server_.drop(used);
}

}}}  // namespace muster::v0::detail

namespace muster { inline namespace v0 {
namespace {

using detail::socket_error;
using detail::store_call;
using detail::store_status;
using detail::tcp_socket;

std::string name_of(std::string_view where) {
  return (where.starts_with(detail::store_file_scheme) ? "" : "tcp://") + std::string(where);
}

std::vector<detail::address> addresses_of(std::string_view list, clock::time_point until) {
  std::vector<detail::address> all;
  for (const auto word : detail::split(list, ',')) {
    const auto more = detail::resolve(detail::parse_host_port(word, "the address of a store"), until);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

std::shared_ptr<detail::store_client> connect(std::string_view where, std::string_view token, clock::time_point until) {
  const bool by_file = where.starts_with(detail::store_file_scheme);
  const std::string name = name_of(where);
  detail::store_place place;
  if (!by_file) place = {addresses_of(where, until), std::string(token)};
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
      if (detail::introduce_to_store(made, detail::store_secret(place.token), attempt))
        return std::make_shared<detail::store_client>(std::move(made), name);
      failure = made.peer().to_string() + " has another token";
      if (++turned_away >= detail::closings_of_a_stranger && !by_file) {
        throw configuration_error("the server at " + name +
                                  " does not have this job's token (it serves the store of another job, or is no store "
                                  "of muster); give all ranks the same MUSTER_TOKEN, or choose another port");
      }
    } catch (const detail::store_problem& told) {
      throw configuration_error(told.what());
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
      : where(to), token(by), then(after), calls(connect(where, token, until)) {
    if (then == when_lost::connect_again) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
      identity = open(*calls, static_cast<std::uint64_t>(std::max<long long>(left, 1)), until);
    }
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() {
    if (then != when_lost::connect_again) return;
    try {
      calls->leave();
    } catch (const std::exception&) {  // no memory: the server waits for this client
    }
  }

  // The identity of the table.
  std::string open(detail::store_client& at, std::uint64_t patience, clock::time_point until) const {
    return at.call("open", {.what = store_call::open, .number = patience, .value = name}, until).value;
  }

  std::shared_ptr<detail::store_client> get(clock::time_point until) {
    const turn mine(*this, until);
    if (then == when_lost::fail || !calls->has_ended()) return calls;
    if (!is_another) {
      auto made = connect(where, token, until);
      is_another = open(*made, 0, until) != identity;
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
  std::string name = detail::store_client_identity();  // at the server
  std::string identity;
  std::mutex mutex;
  std::condition_variable freed;
  bool busy = false;
  std::shared_ptr<detail::store_client> calls;
  bool is_another = false;  // another server is there now
};

tcp_store::tcp_store(std::string_view where, std::string_view token, clock::time_point until,
                     std::unique_ptr<store_server> own, when_lost then)
    : own_(std::move(own)), self_(std::make_unique<connection>(where, token, until, then)) {}
tcp_store::tcp_store(tcp_store&&) noexcept = default;
tcp_store::~tcp_store() = default;

std::string tcp_store::where() const { return name_of(self_->where); }
bool tcp_store::is_served_here() const {
  const auto server = self_->calls->peer();
  return store_server::listens_here(server.port()) && detail::is_own(server);
}

store_entry tcp_store::get(std::string_view key, clock::time_point until) {
  auto came = self_->get(until)->call("get", {.key = key}, until);
  return {came.number, std::move(came.value)};
}

store_swap tcp_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                       std::optional<std::string_view> value, clock::time_point until,
                                       store_life life) {
  auto came = self_->get(until)->call(
      "compare_and_swap", {.what = store_call::swap, .number = expected, .key = key, .value = value, .life = life},
      until);
  return {came.status == store_status::done, {came.number, std::move(came.value)}};
}

std::optional<store_entry> tcp_store::watch(std::string_view key, std::uint64_t known, clock::time_point until,
                                            const std::stop_token& stop) {
  auto came = self_->get(until)->wait_for({.what = store_call::watch, .number = known, .key = key}, until, stop);
  if (!came) return std::nullopt;
  if (came->status == store_status::full) {
    throw error(error_kind::other,
                "the store " + where() + " refuses the watch (4096 of this client are open); watch fewer keys");
  }
  return store_entry{came->number, std::move(came->value)};
}

}}  // namespace muster::v0
