#pragma once

#include <muster/comm/bootstrap/stores/tcp/store_client.hpp>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/stores/tcp/store_file.hpp>
#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/comm/comm_timing.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/random_bytes.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace detail {
// TCP's own probes (keepalive, TCP_USER_TIMEOUT) detect a silent host. They do not detect a stopped server, because the
// kernel still answers for it. The client therefore sends several pings, each at an interval after the previous ping by
// the clock of a running process: a client that was stopped itself does not blame the server.
inline constexpr int max_pings = 3;
inline constexpr std::uint64_t ping_id = 0;  // an id that no call has: any reply counts

MUSTER_INLINE job_secret store_secret(std::string_view token) {
  const std::string_view parts[] = {"store 3", token};
  return job_secret(parts);
}

// Returns the identity of the pid namespace in which a process number is unique.
inline std::string process_space() { return boot_number() + "/" + process_namespaces(); }

MUSTER_INLINE std::string store_client_identity() {
  const auto own = process_identity::own();
  return process_space() + " " + std::to_string(own.process) + " " + std::to_string(own.started) + " " + random_token();
}

MUSTER_INLINE std::optional<life> life_of_client(const std::string& identity) {
  std::istringstream words(identity);
  std::string space;
  process_identity named;
  words >> space >> named.process >> named.started;
  if (!words || named.started == 0 || space != process_space()) return std::nullopt;
  return life(named);
}

MUSTER_INLINE bool introduce_to_store(const tcp_socket& socket, const job_secret& secret, clock::time_point until) {
  auto exchange = handshake::connect(secret, {store_client_name, store_server_name, 0});
  try {
    exchange.conclude(socket, until);
    if (!exchange.protocol_difference().empty())
      throw store_problem("the store at " + socket.peer().to_string() + " cannot be used " +
                          exchange.protocol_difference());
    return exchange.current_state() == handshake::state::done;
  } catch (const socket_error& failed) {
    // The server replied to the introduction and then closed the connection: it rejects the proof.
    if (!exchange.is_answered() || !failed.closed()) throw;
    return false;
  }
}

MUSTER_INLINE store_client::store_client(tcp_socket socket, std::string where)
    : where_(std::move(where)),
      server_(std::move(socket)),
      next_ping_(deadline_after(store_timing::ping_interval)),
      ready_(loop_.watch(server_.socket().file(), EPOLLIN, [this](std::uint32_t events) {
        if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_answers();
      })) {
  thread_ = std::thread([this] { run(); });
}

MUSTER_INLINE store_client::~store_client() {
  {
    const std::lock_guard held(mutex_);
    stopping_ = true;
  }
  loop_.wake();
  thread_.join();
}

MUSTER_INLINE void store_client::leave() {
  const std::lock_guard held(mutex_);
  if (lost_.empty()) send({.call = store_call::leave});
}

MUSTER_INLINE store_client::answer store_client::call(const char* name, const store_request& request,
                                                      clock::time_point until) {
  auto reply = wait_for(request, until);
  if (!reply) store_timed_out(name, request.key, where_);
  if (reply->status == store_status::full) {
    throw error(error_kind::other, "the store " + where_ + " is full (it holds 256 MiB); remove keys");
  }
  return std::move(*reply);
}

MUSTER_INLINE std::optional<store_client::answer> store_client::wait_for(store_request request, clock::time_point until,
                                                                         const std::stop_token& stop) {
  if (request.call != store_call::open) check_store_key(request.key, where_);
  check_store_value(request.value, where_);
  pending_call mine;
  std::unique_lock held(mutex_);
  if (!lost_.empty()) throw_lost();
  request.id = ++last_id_;
  send(request);
  calls_.emplace(request.id, &mine);  // no reply is handled before this call waits
  mine.answered.wait_until(held, stop, until, [&] { return mine.reply || !lost_.empty(); });
  calls_.erase(request.id);
  if (mine.reply) return std::move(mine.reply);
  if (!lost_.empty()) throw_lost();
  if (request.call == store_call::watch) send({.call = store_call::cancel, .id = request.id});
  return std::nullopt;
}

MUSTER_INLINE void store_client::on_reply(const store_reply& reply) {
  const auto found = calls_.find(reply.id);
  if (found == calls_.end()) return;  // the caller no longer waits
  found->second->reply = answer{reply.status, reply.version, std::string(reply.value)};
  found->second->answered.notify_all();
}

MUSTER_INLINE void store_client::mark_lost(const std::string& reason) {
  if (lost_.empty()) lost_ = reason;
  for (auto& [id, call] : calls_) call->answered.notify_all();
}

MUSTER_INLINE void store_client::throw_lost() const {
  throw peer_failure({}, "the store " + where_ + " is lost (" + lost_ + "); check that its server runs");
}

MUSTER_INLINE void store_client::send(const store_request& request) {
  const bool idle = server_.unsent() == 0;
  append_frame(server_.outgoing(), request);
  if (idle) write();
  if (server_.unsent() > 0) loop_.wake();
}

// Writes as many bytes as possible without waiting; the thread writes the rest.
MUSTER_INLINE void store_client::write() {
  try {
    server_.write();
  } catch (const socket_error& failed) {
    mark_lost(failed.what());
    loop_.wake();
  }
}

MUSTER_INLINE void store_client::run() noexcept {
  std::string reason = "this process has closed it";
  try {
    for (;;) {
      clock::time_point next;
      {
        const std::lock_guard held(mutex_);
        if (stopping_) break;
        ping(clock::now());
        next = next_ping_;
        write();
        if (!lost_.empty()) break;
        ready_.set_events(EPOLLIN | (server_.unsent() > 0 ? EPOLLOUT : 0U));
      }
      loop_.wait(next);
      loop_.dispatch();
    }
  } catch (const std::exception& failed) {
    reason = failed.what();
  }
  const std::lock_guard held(mutex_);
  server_.socket().shutdown_write();
  mark_lost(reason);
}

MUSTER_INLINE void store_client::ping(clock::time_point now) {
  if (now < next_ping_) return;
  if (pings_ == max_pings) throw socket_error(ETIMEDOUT, "the server does not answer");
  send({.call = store_call::get, .id = ping_id, .key = store_identity_key});
  ++pings_;
  next_ping_ = deadline_after(store_timing::ping_interval);
}

MUSTER_INLINE void store_client::read_answers() {
  if (!server_.read()) return;
  pings_ = 0;
  next_ping_ = deadline_after(store_timing::ping_interval);
  std::size_t used = 0;
  while (const auto frame = first_frame(server_.received().substr(used))) {
    const auto reply = parse_reply(frame->body);
    if (!reply) throw socket_error(EPROTO, "malformed reply of the server");
    const std::lock_guard held(mutex_);
    on_reply(*reply);
    used += frame->bytes;
  }
  server_.drop(used);
}

}}}  // namespace muster::v0::detail

namespace muster { inline namespace v0 {
namespace detail {

using detail::socket_error;
using detail::store_call;
using detail::store_status;
using detail::tcp_socket;

inline std::string name_of(std::string_view where) {
  return (where.starts_with(detail::store_file_scheme) ? "" : "tcp://") + std::string(where);
}

inline std::vector<detail::address> addresses_of(std::string_view list, clock::time_point until) {
  std::vector<detail::address> all;
  for (const auto word : detail::split(list, ',')) {
    const auto more = detail::resolve(detail::parse_host_port(word, "the address of a store"), until);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

inline std::shared_ptr<detail::store_client> connect(std::string_view where, std::string_view token,
                                                     clock::time_point until) {
  const bool by_file = where.starts_with(detail::store_file_scheme);
  const std::string name = name_of(where);
  detail::store_place place;
  if (!by_file) place = {addresses_of(where, until), std::string(token)};
  auto delay = std::chrono::milliseconds(5);
  int rejections = 0;  // in succession
  clock::time_point first_rejection;
  for (;;) {
    std::string failure;
    try {
      // A rank that arrives first finds no file yet, or the file of an earlier job. A rank that was disconnected may
      // find the file of a later job.
      if (by_file) place = detail::read_store_file(name.substr(detail::store_file_scheme.size()));
      // An attempt is limited in time, because an address may not answer and a server may send nothing.
      const auto attempt = std::min(until, deadline_after(seconds(5) * static_cast<double>(place.addresses.size())));
      auto socket = tcp_socket::connect(place.addresses, attempt);
      socket.set_no_delay();
      socket.set_liveness(seconds(5), seconds(10));
      socket.set_acknowledged_within(seconds(10));
      if (detail::introduce_to_store(socket, detail::store_secret(place.token), attempt))
        return std::make_shared<detail::store_client>(std::move(socket), name);
      failure = socket.peer().to_string() + " has another token";
      if (++rejections == 1) first_rejection = clock::now();
      const bool is_final =
          rejections >= detail::max_rejections && clock::now() - first_rejection >= detail::store_timing::rejected;
      if (is_final && !by_file) {
        throw configuration_error("the server at " + name +
                                  " does not have this job's token (it serves the store of another job, or is not a "
                                  "store of muster); give all ranks the same MUSTER_TOKEN, or choose another port");
      }
    } catch (const detail::store_problem& reported) {
      throw configuration_error(reported.what());
    } catch (const socket_error& failed) {
      failure = failed.what();
      rejections = 0;
    }
    if (clock::now() + delay >= until) {
      throw timeout_error("opening the store", {},
                          "no store at " + name + " answered in time (" + failure +
                              "); check that rank 0 runs with the same WORLD_SIZE and serves there, " +
                              (by_file ? "remove the file if its job has ended, " : "") +
                              "or raise --timeout / MUSTER_TIMEOUT");
    }
    std::this_thread::sleep_for(delay);
    delay = std::min(2 * delay, std::chrono::milliseconds(200));
  }
}

}  // namespace detail

// The connection that all threads of a process use. With `when_lost::connect_again` a lost connection is replaced.
struct tcp_store::connection {
  connection(std::string_view place, std::string_view shared_token, clock::time_point until, when_lost on_loss_option)
      : where(place), token(shared_token), on_loss(on_loss_option), calls(detail::connect(where, token, until)) {
    if (on_loss == when_lost::connect_again) open_first(until);
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() {
    if (on_loss != when_lost::connect_again) return;
    try {
      calls->leave();
    } catch (const std::exception&) {  // out of memory: the server waits for this client
    }
  }

  // Opens the store and returns the identity of the table. `patience`: milliseconds until the deadline of the opening;
  // 0: the client connects again (store_call::open).
  std::string open(detail::store_client& client, std::uint64_t patience, clock::time_point until) const {
    return client.call("open", {.call = detail::store_call::open, .version = patience, .value = name}, until).value;
  }

  // Opens the store, and connects again if the connection ends meanwhile.
  void open_first(clock::time_point until) {
    for (;;) {
      try {
        const auto remaining = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
        identity = open(*calls, static_cast<std::uint64_t>(std::max<long long>(remaining, 1)), until);
        return;
      } catch (const peer_failure&) {
        if (clock::now() + detail::store_timing::open_retry >= until) throw;
        std::this_thread::sleep_for(detail::store_timing::open_retry);
        calls = detail::connect(where, token, until);
      }
    }
  }

  // Returns the connected client. Connects again first, if the connection is lost and `on_loss` allows it.
  std::shared_ptr<detail::store_client> get(clock::time_point until) {
    const turn mine(*this, until);
    if (on_loss == when_lost::fail || !calls->has_ended()) return calls;
    if (!is_other_table) {
      auto client = detail::connect(where, token, until);
      is_other_table = open(*client, 0, until) != identity;
      if (!is_other_table) return calls = std::move(client);
    }
    throw store_left_behind("the store " + detail::name_of(where) +
                            " lost its contents (its server was restarted and had no file); restart the job, with "
                            "muster-store --data FOLDER as the store");
  }

  // Acts as the lock of a mutex with a deadline. ThreadSanitizer of GCC 12 does not support std::timed_mutex.
  struct turn {
    turn(connection& parent, clock::time_point until) : owner(parent) {
      std::unique_lock held(owner.mutex);
      if (!owner.freed.wait_until(held, until, [this] { return !owner.busy; })) owner.throw_late();
      owner.busy = true;
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() {
      const std::lock_guard held(owner.mutex);
      owner.busy = false;
      owner.freed.notify_one();
    }
    connection& owner;
  };
  [[noreturn]] void throw_late() const {
    throw timeout_error("opening the store", {},
                        "the store " + detail::name_of(where) +
                            " does not answer (another call waits for it too); check that its server runs");
  }

  std::string where;
  std::string token;
  when_lost on_loss;
  std::string name = detail::store_client_identity();  // its name at the server
  std::string identity;                                // the identity of the table that this client opened
  std::mutex mutex;
  std::condition_variable freed;
  bool busy = false;
  std::shared_ptr<detail::store_client> calls;
  bool is_other_table = false;  // true if the server has another table now
};

MUSTER_INLINE tcp_store::tcp_store(std::string_view where, std::string_view token, clock::time_point until,
                                   std::unique_ptr<store_server> own, when_lost on_loss)
    : own_(std::move(own)), self_(std::make_unique<connection>(where, token, until, on_loss)) {}
MUSTER_INLINE tcp_store::tcp_store(tcp_store&&) noexcept = default;
MUSTER_INLINE tcp_store::~tcp_store() = default;

MUSTER_INLINE std::string tcp_store::where() const { return detail::name_of(self_->where); }
MUSTER_INLINE bool tcp_store::is_served_here() const {
  const auto server = self_->calls->peer();
  return store_server::listens_here(server.port()) && detail::is_own(server);
}

MUSTER_INLINE store_entry tcp_store::get(std::string_view key, clock::time_point until) {
  auto reply = self_->get(until)->call("get", {.key = key}, until);
  return {reply.number, std::move(reply.value)};
}

MUSTER_INLINE store_swap tcp_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                                     std::optional<std::string_view> value, clock::time_point until,
                                                     store_life life) {
  auto reply = self_->get(until)->call(
      "compare_and_swap",
      {.call = detail::store_call::swap, .version = expected, .key = key, .value = value, .life = life}, until);
  return {reply.status == detail::store_status::done, {reply.number, std::move(reply.value)}};
}

MUSTER_INLINE std::optional<store_entry> tcp_store::watch(std::string_view key, std::uint64_t known,
                                                          clock::time_point until, const std::stop_token& stop) {
  auto reply =
      self_->get(until)->wait_for({.call = detail::store_call::watch, .version = known, .key = key}, until, stop);
  if (!reply) return std::nullopt;
  if (reply->status == detail::store_status::full) {
    throw error(error_kind::other,
                "the store " + where() + " refuses the watch (this client has 4096 open watches); watch fewer keys");
  }
  return store_entry{reply->number, std::move(reply->value)};
}

}}  // namespace muster::v0
