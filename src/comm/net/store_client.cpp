#include "store_client.hpp"

#include <algorithm>
#include <cerrno>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {
namespace {

// TCP's own probes (keepalive, TCP_USER_TIMEOUT) find a host that is silent. They do not find a server that is stopped:
// the kernel answers for it. Several knocks, each so long after the one before by the clock of a process that runs: one
// that was stopped for a while itself blames nobody else.
constexpr seconds between_knocks{5};
constexpr int most_knocks = 3;
// Ids of requests about the lease of the same number. Knocks are about lease 0, which nobody has: any answer will do.
constexpr std::uint64_t of_lease = std::uint64_t{1} << 63;

}  // namespace

job_secret store_secret(std::string_view token) {
  const std::string_view parts[] = {"store", token};
  return job_secret(parts);
}

bool introduce_to_store(const tcp_socket& to, const job_secret& secret, clock::time_point until) {
  auto said = handshake::connect(secret, {store_client_name, store_server_name, 0, 1});
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
      next_knock_(deadline_after(between_knocks)),
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

class store_client::holder final : public store_lease::holder {
 public:
  holder(std::weak_ptr<store_client> store, std::uint64_t id) : store_(std::move(store)), id_(id) {}
  ~holder() override {
    if (const auto open = store_.lock()) open->end_keeping(id_);
  }
  [[nodiscard]] std::uint64_t id() const noexcept override { return id_; }
  [[nodiscard]] bool held() const noexcept override {
    const auto open = store_.lock();
    return open && open->is_kept(id_);
  }

 private:
  std::weak_ptr<store_client> store_;
  std::uint64_t id_;
};

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
                                          std::uint64_t lease) {
  check_store_key(key, where_);
  check_store_value(value, where_);
  auto came = call("compare_and_swap",
                   {.what = store_call::swap, .number = expected, .lease = lease, .key = key, .value = value}, until);
  return {came.status == store_status::done, {came.number, std::move(came.value)}};
}

std::optional<store_entry> store_client::watch(std::string_view key, std::uint64_t known, clock::time_point until) {
  check_store_key(key, where_);
  auto came = wait_for({.what = store_call::watch, .number = known, .key = key}, until);
  if (!came) return std::nullopt;
  if (came->status == store_status::full) {
    throw error(error_kind::other,
                "the store " + where_ + " takes no more watches of this client; wait for fewer keys");
  }
  return store_entry{came->number, std::move(came->value)};
}

store_lease store_client::lease(const std::shared_ptr<store_client>& client, seconds ttl, clock::time_point until) {
  check_store_ttl(ttl, client->where_);
  const auto asked = clock::now();
  const auto microseconds = static_cast<std::uint64_t>(ttl.count() * 1e6);
  const auto came = client->call("lease", {.what = store_call::lease, .number = microseconds}, until);
  {
    const std::lock_guard held(client->mutex_);
    client->leases_.emplace(came.number, kept_lease{ttl, asked, {}, false, true});
    client->loop_.wake();
  }
  return store_lease(std::make_unique<holder>(client, came.number));
}

store_client::answer store_client::call(const char* name, const store_request& asked, clock::time_point until) {
  auto came = wait_for(asked, until);
  if (!came) store_timed_out(name, asked.key, where_);
  if (came->status == store_status::full) {
    throw error(error_kind::other, "the store " + where_ +
                                       " takes no more (256 MiB in all; 4096 leases and as many watches of a client); "
                                       "remove what is not needed");
  }
  if (came->status == store_status::ended) {
    throw store_lease_ended("a lease at the store " + where_ +
                            " has ended (its holder was silent for longer than it lives, or let it go); begin anew");
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
  if ((said.id & of_lease) != 0) {
    const auto found = leases_.find(said.id & ~of_lease);
    if (found == leases_.end()) return;
    auto& kept = found->second;
    kept.is_being_asked = false;
    kept.asked = kept.asking;
    if (said.status != store_status::done) kept.held = false;
    return;
  }
  const auto found = calls_.find(said.id);
  if (found == calls_.end()) return;  // it has given up
  found->second->came = answer{said.status, said.number, std::string(said.value)};
  found->second->answered.notify_all();
}

clock::time_point store_client::keep_leases(clock::time_point now) {
  auto next = next_knock_;
  for (auto& [id, kept] : leases_) {
    if (!kept.held || kept.is_being_asked) continue;
    const auto due = std::chrono::time_point_cast<clock::duration>(kept.asked + kept.ttl / 4);
    if (now >= due) {
      kept.asking = now;
      kept.is_being_asked = true;
      send({.what = store_call::keep, .id = of_lease | id, .number = id});
    } else {
      next = std::min(next, due);
    }
  }
  return next;
}

void store_client::end_keeping(std::uint64_t id) noexcept {
  const std::lock_guard held(mutex_);
  if (leases_.erase(id) == 0 || !lost_.empty()) return;
  try {
    send({.what = store_call::end, .id = of_lease | id, .number = id});
  } catch (const std::exception&) {  // no memory: it ends by silence
  }
}

bool store_client::is_kept(std::uint64_t id) const noexcept {
  const std::lock_guard held(mutex_);
  const auto found = leases_.find(id);
  if (found == leases_.end() || !lost_.empty()) return false;
  return found->second.held && clock::now() < found->second.asked + found->second.ttl;
}

void store_client::lose(const std::string& why) {
  if (lost_.empty()) lost_ = why;
  for (auto& [id, call] : calls_) call->answered.notify_all();
}

void store_client::fail() const {
  throw peer_failure({}, "the store " + where_ + " is lost (" + lost_ + "); see what became of whoever served it");
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
        next = keep_leases(clock::now());
        knock(clock::now());
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
  if (lost_.empty()) write();  // the ends of leases, as far as they go at once
  server_.socket().shutdown_write();
  lose(why);
}

void store_client::knock(clock::time_point now) {
  if (now < next_knock_) return;
  if (knocks_ == most_knocks) throw socket_error(ETIMEDOUT, "the server is silent");
  send({.what = store_call::keep, .id = of_lease});
  ++knocks_;
  next_knock_ = deadline_after(between_knocks);
}

void store_client::read_answers() {
  if (!server_.read()) return;
  knocks_ = 0;
  next_knock_ = deadline_after(between_knocks);
  std::size_t used = 0;
  for (;;) {
    const auto frame = first_frame(server_.received().substr(used));
    if (frame.what == store_frame::state::part) break;
    const auto said = frame.what == store_frame::state::whole ? parse_reply(frame.body) : std::optional<store_reply>();
    if (!said) throw socket_error(EPROTO, "the server talks garbage");
    const std::lock_guard held(mutex_);
    take(*said);
    used += frame.bytes;
  }
  server_.drop(used);
}

}  // namespace muster::inline v0::detail
