#include "acceptor.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <muster/core/log.hpp>

#include "../timing.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr int most_at_once = 64;  // so that those that are served already do not wait

}  // namespace

acceptor::acceptor(event_loop& loop, std::vector<tcp_socket> listening, const job_secret& secret, std::uint32_t self,
                   std::size_t most, judge wants, taker take)
    : loop_(loop), secret_(secret), self_(self), most_(most), wants_(std::move(wants)), take_(std::move(take)) {
  for (auto& one : listening) {
    auto& made = listening_.emplace_back(listener{std::move(one)});
    made.ready = loop_.watch(made.socket.file(), EPOLLIN, [this, &made](std::uint32_t) { accept(made.socket); });
  }
}

void acceptor::accept(const tcp_socket& from) {
  for (int i = 0; i < most_at_once; ++i) {
    try {
      auto came = from.accept();
      if (!came) return;
      trouble_ = 0;
      if (heard_.size() >= most_) drop(heard_.begin());
      const auto one = heard_.insert(
          heard_.end(), {std::move(came), handshake::answer(secret_, self_), clock::now() + net_timing::handshake});
      one->ready = loop_.watch(one->socket.file(), EPOLLIN, [this, one](std::uint32_t) { hear(one); });
    } catch (const error& failed) {
      // No descriptor is left: those that only may be of the job make room for those that are.
      if (!heard_.empty()) {
        drop(heard_.begin());
        continue;
      }
      const auto* const of_system = dynamic_cast<const socket_error*>(&failed);
      trouble_ = of_system != nullptr ? of_system->code() : EMFILE;
      if (!std::exchange(told_, true))
        log(log_level::error, failed.what() + std::string("; raise its limit (ulimit -n)"));
      for (auto& door : listening_) door.ready.want(0);
      closed_until_ = clock::now() + net_timing::accept_retry;
      return;
    }
  }
}

void acceptor::hear(std::list<stranger>::iterator one) {
  using state = handshake::state;
  try {
    one->talk.advance(one->socket);
    if (one->talk.now() == state::asking) {
      if (wants_(one->talk.other())) {
        one->talk.accept();
      } else {
        one->talk.refuse();
      }
      one->talk.advance(one->socket);
    }
  } catch (const socket_error&) {
    return drop(one);
  }
  if (one->talk.now() == state::stranger) return drop(one);
  one->ready.want(one->talk.now() == state::sending ? EPOLLOUT : EPOLLIN);
  if (one->talk.now() != state::done && one->talk.now() != state::refused) return;
  const bool stands = one->talk.now() == state::done;
  const auto introduced = one->talk.other();
  one->ready = {};
  auto socket = std::move(one->socket);
  heard_.erase(one);
  if (stands) take_(std::move(socket), introduced);
}

void acceptor::drop(std::list<stranger>::iterator one) {
  heard_.erase(one);
  ++strangers_;
}

void acceptor::tick(clock::time_point now) {
  while (!heard_.empty() && now >= heard_.front().until) drop(heard_.begin());
  if (now < closed_until_) return;
  closed_until_ = clock::time_point::max();
  for (auto& door : listening_) door.ready.want(EPOLLIN);
}

void acceptor::close() noexcept {
  listening_.clear();
  heard_.clear();
}

clock::time_point acceptor::next() const noexcept {
  return heard_.empty() ? closed_until_ : std::min(closed_until_, heard_.front().until);
}

}}}  // namespace muster::v0::detail
