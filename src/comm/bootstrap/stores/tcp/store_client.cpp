#include "store_client.hpp"

#include <algorithm>
#include <cerrno>

#include <muster/core/error.hpp>

#include "../../../timing.hpp"

namespace muster::inline v0::detail {
namespace {

// TCP's own probes (keepalive, TCP_USER_TIMEOUT) find a host that is silent. They do not find a server that is stopped:
// the kernel answers for it. Several pings, each so long after the one before by the clock of a process that runs: a
// client that was stopped for a while itself does not blame the server.
constexpr int most_knocks = 3;
constexpr std::uint64_t of_knocks = 0;  // the id of none of the calls: any answer will do

}  // namespace

job_secret store_secret(std::string_view token) {
  const std::string_view parts[] = {"store 2", token};
  return job_secret(parts);
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

std::string store_client::open(clock::time_point until) {
  return call("open", {.what = store_call::open}, until).value;
}

store_entry store_client::get(std::string_view key, clock::time_point until) {
  check_store_key(key, where_);
  auto came = call("get", {.what = store_call::get, .key = key}, until);
  return {came.number, std::move(came.value)};
}

store_swap store_client::compare_and_swap(std::string_view key, std::uint64_t expected,
                                          std::optional<std::string_view> value, clock::time_point until,
                                          store_life life) {
  check_store_key(key, where_);
  check_store_value(value, where_);
  auto came = call("compare_and_swap",
                   {.what = store_call::swap, .number = expected, .key = key, .value = value, .life = life}, until);
  return {came.status == store_status::done, {came.number, std::move(came.value)}};
}

std::optional<store_entry> store_client::watch(std::string_view key, std::uint64_t known, clock::time_point until) {
  check_store_key(key, where_);
  auto came = wait_for({.what = store_call::watch, .number = known, .key = key}, until);
  if (!came) return std::nullopt;
  if (came->status == store_status::full) {
    throw error(error_kind::other,
                "the store " + where_ + " refuses the watch (4096 of this client are open); watch fewer keys");
  }
  return store_entry{came->number, std::move(came->value)};
}

store_client::answer store_client::call(const char* name, const store_request& asked, clock::time_point until) {
  auto came = wait_for(asked, until);
  if (!came) store_timed_out(name, asked.key, where_);
  if (came->status == store_status::full) {
    throw error(error_kind::other, "the store " + where_ + " is full (it holds 256 MiB); remove keys");
  }
  return std::move(*came);
}

std::optional<store_client::answer> store_client::wait_for(store_request asked, clock::time_point until) {
  waiting mine;
  std::unique_lock held(mutex_);
  if (!lost_.empty()) fail();
  asked.id = ++last_id_;
  send(asked);
  calls_.emplace(asked.id, &mine);  // no answer is taken before this waits
  mine.answered.wait_until(held, until, [&] { return mine.came || !lost_.empty(); });
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
  for (;;) {
    const auto frame = first_frame(server_.received().substr(used));
    if (frame.what == store_frame::state::part) break;
    const auto said = frame.what == store_frame::state::whole ? parse_reply(frame.body) : std::optional<store_reply>();
    if (!said) throw socket_error(EPROTO, "malformed reply of the server");
    const std::lock_guard held(mutex_);
    take(*said);
    used += frame.bytes;
  }
  server_.drop(used);
}

}  // namespace muster::inline v0::detail
