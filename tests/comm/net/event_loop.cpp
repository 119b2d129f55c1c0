#include <muster/comm/net/event_loop.hpp>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "catch.hpp"

using muster::deadline_after;
using muster::seconds;
using muster::detail::descriptor;
using muster::detail::event_loop;

namespace {

struct two_ends {
  two_ends() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    mine = descriptor(ends[0]);
    other = descriptor(ends[1]);
  }
  void write() const { REQUIRE(::write(other.get(), "x", 1) == 1); }

  descriptor mine;
  descriptor other;
};

}  // namespace

TEST_CASE("a handler hears of what it wants, and of nothing else") {
  event_loop loop;
  const two_ends ends;
  std::vector<std::uint32_t> received;
  auto ready = loop.watch(ends.mine.get(), EPOLLIN, [&](std::uint32_t events) { received.push_back(events); });
  const auto turn = [&](muster::clock::time_point until) {
    received.clear();
    loop.wait(until);
    loop.dispatch();
    return received;
  };
  const auto soon = [] { return deadline_after(seconds(60)); };
  const auto now = [] { return muster::clock::now(); };
  CHECK(turn(now()).empty());
  ends.write();
  CHECK(turn(soon()) == std::vector<std::uint32_t>{EPOLLIN});
  CHECK(turn(soon()) == std::vector<std::uint32_t>{EPOLLIN});  // repeated until the byte is read
  ready.set_events(0);
  CHECK(turn(now()).empty());
  ready.set_events(EPOLLIN | EPOLLOUT);
  CHECK(turn(soon()) == std::vector<std::uint32_t>{EPOLLIN | EPOLLOUT});
  ready = {};
  CHECK(turn(now()).empty());
}

TEST_CASE("a handler may end its own registration and others, those too that the same wait found") {
  event_loop loop;
  const std::array<two_ends, 3> ends;
  std::array<event_loop::registration, 3> ready;
  int received = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    ready[i] = loop.watch(ends[i].mine.get(), EPOLLIN, [&](std::uint32_t) {
      ++received;
      for (auto& registration : ready) registration = {};
    });
    ends[i].write();
  }
  loop.wait(deadline_after(seconds(60)));
  loop.dispatch();
  CHECK(received == 1);
}

TEST_CASE("what other threads post is done in their order, by the thread of the loop") {
  event_loop loop;
  std::vector<int> done;
  std::jthread([&] {
    for (int i = 0; i < 100; ++i) loop.post([&, i] { done.push_back(i); });
  }).join();
  CHECK(done.empty());
  loop.wait(deadline_after(seconds(60)));
  loop.dispatch();
  REQUIRE(done.size() == 100);
  CHECK(std::is_sorted(done.begin(), done.end()));
}

TEST_CASE("another thread ends the wait, also one that begins later") {
  event_loop loop;
  for (int i = 0; i < 3; ++i) {
    std::jthread other([&] { loop.wake(); });
    if (i == 1) other.join();
    loop.wait(deadline_after(seconds(60)));
    loop.dispatch();
  }
  SUCCEED("no wait took a minute");
}
