#include "state_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds after_trouble{50};
constexpr std::chrono::seconds for_answers{5};
constexpr std::chrono::seconds for_bytes{30};  // in which one message is taken
constexpr std::chrono::seconds for_a_state{2};
constexpr std::size_t most_followers = 16;

void copy_all(std::span<const std::span<std::byte>> pieces, std::span<std::byte> to) {
  std::size_t at = 0;
  for (const auto& one : pieces) {
    std::memcpy(to.data() + at, one.data(), one.size());
    at += one.size();
  }
}

}  // namespace

state_server::state_server(std::string_view chosen, const std::string& origin, std::string_view token)
    : bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  tcp_doors made(chosen, origin);
  card_ = made.card();
  doors_ = made.open();
  secret_ = secret_of_line(token, card_);
  listener_ = std::jthread([this](const std::stop_token& stop) { listen(stop); });
}

state_server::~state_server() {
  listener_.request_stop();
  ring();
  listener_ = {};  // nobody comes any more
  for (auto& one : followers_) one.thread.request_stop();
  followers_.clear();
}

// ---- the rank's ----

void state_server::present(const state& of, bool copied) {
  const std::lock_guard held(mutex_);
  offer_ = describe_state(of);
  has_state_ = true;
  steps_ = of.steps();
  last_step_ = {};
  for (auto& one : followers_) {
    if (copied) cut(one);
  }
  presented_.notify_all();
}

void state_server::committed(const state& of) noexcept {
  const auto now = clock::now();
  if (last_step_ != clock::time_point{}) step_time_.store((now - last_step_).count(), std::memory_order_relaxed);
  last_step_ = now;
  steps_ = of.steps();  // before the question whether anybody follows, as `admit` asks in the other order
  if (following_ == 0) return;
  const std::lock_guard held(mutex_);
  for (auto& one : followers_) {
    try {
      give(one, of);
    } catch (const std::bad_alloc&) {
      cut(one);
    }
  }
}

void state_server::pause(std::uint64_t generation) noexcept {
  last_step_ = {};
  const std::lock_guard held(mutex_);
  for (auto& one : followers_) {
    try {
      if (one.has_snapshot && !one.cut) put(one, {state_message::kind::pause, generation, 0, 0}, {});
    } catch (const std::bad_alloc&) {
      cut(one);
    }
  }
}

void state_server::give(follower& one, const state& of) {
  if (one.at == 0 || one.cut || of.steps() < one.at) return;
  if (!one.has_snapshot) {
    const auto pieces = one.share.pieces(replicated_bytes(of));
    if (of.steps() != one.at || size_of(pieces) != one.snapshot.size()) return cut(one);
    copy_all(pieces, one.snapshot);
    one.has_snapshot = true;
    const state_message head{state_message::kind::snapshot, one.at, 0, one.snapshot.size()};
    put(one, head, std::move(one.snapshot));
    return;
  }
  const auto pieces = one.share.pieces(brought_bytes(of));
  const std::uint64_t bytes = size_of(pieces);
  // One that takes less than comes would never be where the others are.
  constexpr std::uint64_t at_least = std::uint64_t{64} << 20;
  if (one.queued > at_least + 4 * one.share.size(offer_.bytes)) return cut(one);
  room copied;
  if (!one.spare.empty()) {
    copied = std::move(one.spare.back());
    one.spare.pop_back();
  }
  copied.resize(bytes);  // new memory only while the follower falls back
  copy_all(pieces, copied);
  put(one, {state_message::kind::step, of.steps(), 0, bytes}, std::move(copied));
}

void state_server::put(follower& one, state_message head, room bytes) {
  one.queued += bytes.size();
  one.queue.push_back({head, std::move(bytes)});
  one.changed.notify_all();
}

void state_server::cut(follower& one) noexcept {
  one.cut = true;
  one.changed.notify_all();
}

// ---- threads ----

void state_server::ring() const noexcept {
  const std::uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof one);
}

void state_server::listen(const std::stop_token& stop) {
  std::vector<pollfd> watched{{bell_.get(), POLLIN, 0}};
  for (const auto& door : doors_) watched.push_back({door.file(), POLLIN, 0});
  while (!stop.stop_requested()) {
    (void)::poll(watched.data(), watched.size(), -1);
    std::uint64_t rung = 0;
    (void)!::read(bell_.get(), &rung, sizeof rung);
    try {
      {
        const std::lock_guard held(mutex_);
        std::erase_if(followers_, [](const follower& one) { return one.done.load(); });
      }
      for (const auto& door : doors_) {
        for (auto came = door.accept(); came; came = door.accept()) let_in(std::move(came));
      }
    } catch (const std::exception& failed) {  // no descriptor, thread or memory is left: who joins does so without it
      log(log_level::debug, std::string("nobody can follow this member's state now: ") + failed.what());
      pollfd bell{bell_.get(), POLLIN, 0};
      (void)::poll(&bell, 1, static_cast<int>(after_trouble.count()));  // whoever is at the door stays there
    }
  }
}

void state_server::let_in(tcp_socket came) {
  const std::lock_guard held(mutex_);
  if (followers_.size() >= most_followers) return;  // which closes it: it joins without following
  auto& one = followers_.emplace_back(std::move(came));
  try {
    one.thread = std::jthread([this, &one](const std::stop_token& end) { serve(one, end); });
  } catch (...) {
    followers_.pop_back();
    throw;
  }
}

void state_server::serve(follower& one, const std::stop_token& stop) {
  try {
    state_line line(std::move(one.socket), [&] { return stop.stop_requested(); });
    admit(one, line, stop);
    send_all(one, line, stop);
  } catch (const std::exception& failed) {
    log(log_level::debug, std::string("a process that joins follows this member no more: ") + failed.what());
  }
  {
    const std::lock_guard held(mutex_);
    if (one.at != 0) --following_;
    one.at = 0;
  }
  one.done = true;
  ring();  // what it holds is given back
}

// Room is made before anything is promised: the rank only copies, to memory that is there.
void state_server::admit(follower& one, state_line& line, const std::stop_token& stop) {
  line.socket().set_no_delay();
  if (is_own(line.socket().peer())) line.socket().set_unpaced();
  auto talk = handshake::answer(secret_, 0);
  line.meet(talk, clock::now() + for_answers);
  state_offer offer;
  {
    std::unique_lock held(mutex_);
    presented_.wait_for(held, stop, for_a_state, [&] { return has_state_; });
    offer = offer_;
  }
  const state_share share{talk.other().line, talk.other().lines};
  room snapshot(share.size(offer.bytes));
  std::vector<room> spare(2, room(share.size(offer.brought)));
  offer.steps = steps_;
  offer.step_time = static_cast<std::uint64_t>(step_time_.load(std::memory_order_relaxed));
  line.write_value(offer, clock::now() + for_answers);
  const auto at = line.read_value<std::uint64_t>(clock::now() + for_answers);
  bool in_time = false;
  {
    const std::lock_guard held(mutex_);
    ++following_;
    in_time = at > steps_;
    if (in_time) {
      one.share = share;
      one.snapshot = std::move(snapshot);
      one.spare = std::move(spare);
      one.at = at;
    } else {
      --following_;
    }
  }
  line.write_value(std::uint64_t{in_time ? 1u : 0u}, clock::now() + for_answers);
  if (!in_time) throw error(error_kind::other, "the step that it asked for is over");
}

void state_server::send_all(follower& one, state_line& line, const std::stop_token& stop) {
  for (;;) {
    outgoing next;
    {
      std::unique_lock held(mutex_);
      if (!one.changed.wait(held, stop, [&] { return one.cut || !one.queue.empty(); }) || one.cut) return;
      next = std::move(one.queue.front());
      one.queue.pop_front();
      next.head.behind = one.queue.size();
    }
    iovec pieces[2] = {{&next.head, sizeof next.head}, {next.bytes.data(), next.bytes.size()}};
    line.write(pieces, clock::now() + for_bytes);
    const std::lock_guard held(mutex_);
    one.queued -= next.bytes.size();
    if (next.head.what == state_message::kind::step) one.spare.push_back(std::move(next.bytes));
  }
}

}  // namespace muster::inline v0::detail
