#include "store_client.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include <muster/core/error.hpp>

#include "store_guest.hpp"

namespace muster::inline v0::detail {
namespace {

// TCP's own probes (keepalive, TCP_USER_TIMEOUT) find a host that is silent. They do not find a server that is stopped:
// the kernel answers for it. Several knocks, each so long after the one before by the clock of a process that runs: one
// that was stopped for a while itself blames nobody else.
constexpr seconds between_knocks{5};
constexpr int most_knocks = 3;
constexpr std::uint64_t of_knocks = std::uint64_t{1} << 63;  // as of a lease that nobody has: any answer will do

}  // namespace

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
    : store_calls(std::move(where)),
      socket_(std::move(socket)),
      bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      next_knock_(deadline_after(between_knocks)) {
  if (!bell_)
    throw error(error_kind::other, "no descriptor is left for the store " + this->where() + "; close some files");
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

void store_client::ask(const store_request& asked) {
  const bool idle = out_.empty();
  append_frame(out_, asked);
  if (idle) write();
  if (!out_.empty()) ring();
}

void store_client::run() noexcept {
  std::string why = "this process has closed it";
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
        if (is_lost()) break;
        if (!out_.empty()) watched[0].events |= POLLOUT;
        wake = std::min(next_knock_, next_keeping());
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
    why = failed.what();
  }
  const std::lock_guard held(mutex_);
  if (!out_.empty() && !is_lost()) write();  // the ends of leases, as far as they go at once
  socket_.shutdown_write();
  lose(why);
}

void store_client::knock(clock::time_point now) {
  if (now < next_knock_) return;
  if (knocks_ == most_knocks) throw socket_error(ETIMEDOUT, "the server is silent");
  append_frame(out_, store_request{.what = store_call::keep, .id = of_knocks});
  ++knocks_;
  next_knock_ = deadline_after(between_knocks);
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
    const std::lock_guard held(mutex_);
    take(*said);
    used += frame.bytes;
  }
  in_.erase(0, used);
}

// As much as goes without waiting. Whoever calls holds the mutex.
void store_client::write() {
  try {
    const iovec piece{out_.data(), out_.size()};
    out_.erase(0, socket_.try_write({&piece, 1}));
  } catch (const socket_error& failed) {
    lose(failed.what());
    ring();
  }
}

void store_client::ring() const noexcept {
  const std::uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof one);
}

}  // namespace muster::inline v0::detail
