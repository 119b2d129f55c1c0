#include "store_client.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr std::uint64_t of_lease = std::uint64_t{1} << 63;  // ids of requests to keep the lease of the same number

// TCP's own probes (keepalive, TCP_USER_TIMEOUT) find a host that is silent. They do not find a server that is stopped:
// the kernel answers for it. Several knocks, each so long after the one before by the clock of a process that runs: one
// that was stopped for a while itself blames nobody else.
constexpr seconds between_knocks{5};
constexpr int most_knocks = 3;

}  // namespace

store_client::store_client(tcp_socket socket, std::string where)
    : socket_(std::move(socket)),
      where_(std::move(where)),
      bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      next_knock_(deadline_after(between_knocks)) {
  if (!bell_) throw error(error_kind::other, "no descriptor is left for the store " + where_ + "; close some files");
  thread_ = std::thread([this] { run(); });
}

store_client::~store_client() {
  {
    const std::lock_guard held(mutex_);
    stopping_ = true;
  }
  ring();
  thread_.join();
}

std::optional<store_client::answer> store_client::call(store_request asked, clock::time_point until) {
  waiting mine;
  std::unique_lock held(mutex_);
  if (!lost_.empty()) fail();
  asked.id = ++last_id_;
  const bool idle = out_.empty();
  append_frame(out_, asked);
  if (idle) write();
  if (!out_.empty()) ring();
  if (!lost_.empty()) fail();
  calls_.emplace(asked.id, &mine);
  mine.answered.wait_until(held, until, [&] { return mine.came || !lost_.empty(); });
  calls_.erase(asked.id);
  if (mine.came) return std::move(mine.came);
  if (!lost_.empty()) fail();
  if (asked.what == store_call::watch) {
    append_frame(out_, {.what = store_call::cancel, .id = asked.id});
    ring();
  }
  return std::nullopt;
}

void store_client::begin_keeping(std::uint64_t id, seconds ttl, clock::time_point asked) {
  const std::lock_guard held(mutex_);
  leases_.emplace(id, lease{ttl, asked, {}, false, true});
  ring();
}

void store_client::end_keeping(std::uint64_t id) noexcept {
  const std::lock_guard held(mutex_);
  if (leases_.erase(id) == 0 || !lost_.empty()) return;
  try {
    append_frame(out_, {.what = store_call::end, .id = of_lease | id, .number = id});
    ring();
  } catch (const std::exception&) {  // no memory: it ends by silence
  }
}

bool store_client::is_kept(std::uint64_t id) const noexcept {
  const std::lock_guard held(mutex_);
  const auto found = leases_.find(id);
  if (found == leases_.end() || !lost_.empty() || stopping_) return false;
  return found->second.held && clock::now() < found->second.asked + found->second.ttl;
}

void store_client::run() noexcept {
  try {
    for (;;) {
      pollfd watched[2] = {{socket_.file(), POLLIN, 0}, {bell_.get(), POLLIN, 0}};
      clock::time_point wake;
      {
        const std::lock_guard held(mutex_);
        if (stopping_) break;
        keep_leases(clock::now());
        knock(clock::now());
        if (!out_.empty()) write();
        if (!lost_.empty()) break;
        if (!out_.empty()) watched[0].events |= POLLOUT;
        wake = next_keeping();
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(wake - clock::now()).count();
      if (::poll(watched, 2, static_cast<int>(std::clamp<long long>(left, 0, 60000))) < 0 && errno != EINTR) {
        throw socket_error(errno, "poll failed");
      }
      std::uint64_t rung = 0;
      if (watched[1].revents != 0) (void)!::read(bell_.get(), &rung, sizeof rung);
      if ((watched[0].revents & ~POLLOUT) != 0) read_answers();
    }
  } catch (const std::exception& failed) {
    lose(failed.what());
  }
  const std::lock_guard held(mutex_);
  if (!out_.empty() && lost_.empty()) write();  // the ends of leases, as far as they go at once
  socket_.shutdown_write();
  if (lost_.empty()) lost_ = "this process has closed it";
  for (auto& [id, call] : calls_) call->answered.notify_all();
}

void store_client::keep_leases(clock::time_point now) {
  for (auto& [id, kept] : leases_) {
    if (!kept.held || kept.is_being_asked || now < kept.asked + kept.ttl / 4) continue;
    kept.asking = now;
    kept.is_being_asked = true;
    append_frame(out_, {.what = store_call::keep, .id = of_lease | id, .number = id});
  }
}

void store_client::knock(clock::time_point now) {
  if (now < next_knock_) return;
  if (knocks_ == most_knocks) throw socket_error(ETIMEDOUT, "the server is silent");
  append_frame(out_, {.what = store_call::keep, .id = of_lease});  // a lease that nobody has: any answer will do
  ++knocks_;
  next_knock_ = deadline_after(between_knocks);
}

clock::time_point store_client::next_keeping() const {
  auto next = next_knock_;
  for (const auto& [id, kept] : leases_) {
    if (!kept.held || kept.is_being_asked) continue;
    next = std::min(next, std::chrono::time_point_cast<clock::duration>(kept.asked + kept.ttl / 4));
  }
  return next;
}

void store_client::read_answers() {
  std::array<std::byte, std::size_t{64} << 10> room;
  const auto got = socket_.try_read(room);
  if (!got) return;
  if (*got == 0) throw socket_error(ECONNRESET, "the server closed the connection");
  knocks_ = 0;
  next_knock_ = deadline_after(between_knocks);
  in_.append(reinterpret_cast<const char*>(room.data()), *got);
  std::size_t used = 0;
  for (;;) {
    const auto frame = first_frame(std::string_view(in_).substr(used));
    if (frame.what == store_frame::state::part) break;
    const auto said = frame.what == store_frame::state::whole ? parse_reply(frame.body) : std::optional<store_reply>();
    if (!said) throw socket_error(EPROTO, "the server talks garbage");
    take(*said);
    used += frame.bytes;
  }
  in_.erase(0, used);
}

void store_client::take(const store_reply& said) {
  const std::lock_guard held(mutex_);
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

// As much as goes without waiting. Whoever calls holds the mutex.
void store_client::write() {
  try {
    const iovec piece{out_.data(), out_.size()};
    out_.erase(0, socket_.try_write({&piece, 1}));
  } catch (const socket_error& failed) {
    lost_ = failed.what();
    for (auto& [id, call] : calls_) call->answered.notify_all();
    ring();
  }
}

void store_client::lose(const std::string& why) noexcept {
  const std::lock_guard held(mutex_);
  if (lost_.empty()) lost_ = why;
}

void store_client::ring() const noexcept {
  const std::uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof one);
}

void store_client::fail() const {
  throw peer_failure({}, "the store " + where_ + " is lost (" + lost_ + "); see what became of whoever served it");
}

}  // namespace muster::inline v0::detail
