// Cancellation of messages and release of memory when there is no memory: a separate program, as it replaces operator
// new.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include <muster/comm/transport.hpp>
#include <muster/comm/transports/shm/segment.hpp>
#include <muster/core/error.hpp>
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "require.hpp"

namespace {

thread_local bool no_memory = false;
thread_local bool no_pages = false;  // no pages for the memory of a host's ranks
constexpr std::size_t MiB = std::size_t{1} << 20;

using test::require;

// Sends a message and cancels it without memory, when rank 1 has the start or the announcement of the message. Called
// by rank 0.
void send_and_cancel(muster::transport& over, std::size_t bytes, std::uint32_t tag, std::atomic<bool>& cancelled) {
  std::vector<std::byte> data(bytes);
  muster::request r;
  r.data = data.data();
  r.bytes = data.size();
  r.peer = 1;
  r.tag = tag;
  if (tag == 0) r.signature.kind = muster::collective::broadcast;
  over.send(r);
  (void)over.test(r);
  require(r.owner != nullptr, "more than can be sent at once");
  no_memory = true;
  r.owner->cancel(r);
  no_memory = false;
  cancelled = true;
}

// Returns the text of the error that rank 1 receives about rank 0.
std::string receive_error(muster::transport& over, std::size_t bytes, std::uint32_t tag, std::atomic<bool>& cancelled) {
  const auto until = muster::deadline_after(muster::seconds(60));
  std::vector<std::byte> data(bytes);
  muster::request r;
  r.data = data.data();
  r.bytes = data.size();
  r.peer = 0;
  r.tag = tag;
  if (tag == 0) r.signature.kind = muster::collective::broadcast;
  while (!cancelled) {
    require(muster::clock::now() < until, "the message is cancelled");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  over.receive(r);
  muster::control_message message;
  try {
    // heartbeats cause positions
    while (!over.poll(message) || message.type == muster::control_message::kind::position) {
      require(!over.test(r), "a part of the message does not complete it");
      require(muster::clock::now() < until, "rank 1 is notified");
      over.pause(muster::deadline_after(muster::seconds(0.01)));
    }
  } catch (const muster::peer_failure& failure) {
    require(failure.ranks() == std::vector<int>{0}, "it names rank 0");
    return failure.what();
  }
  require(message.type == muster::control_message::kind::peer_ended && message.origin == 0, "it names rank 0");
  return message.text;
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = no_memory ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes == 0 ? 1 : bytes);
}  // for Catch2
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
int fallocate(int file, int mode, off_t at, off_t bytes) {
  if (!no_pages) return static_cast<int>(::syscall(SYS_fallocate, file, mode, at, bytes));
  errno = ENOSPC;
  return -1;
}

TEST_CASE("memory of the ranks that the system refuses is one with its neighbours again") {
  muster::detail::segment own(64 * MiB);
  void* const first = own.allocate(9 * MiB);
  void* const behind = own.allocate(MiB);
  own.deallocate(first, 9 * MiB);
  no_pages = true;
  CHECK_THROWS_AS(own.allocate(3 * MiB), std::bad_alloc);
  no_pages = false;
  CHECK(own.allocate(9 * MiB) == first);
  own.deallocate(first, 9 * MiB);
  own.deallocate(behind, MiB);
}

// Formerly an exception when ranks released memory at their end, which ended the process.
TEST_CASE("memory of the ranks is given back without memory for a note of it") {
  muster::detail::segment own(64 * MiB);
  void* all[3];
  for (auto& block : all) block = own.allocate(MiB);
  bool thrown = false;
  no_memory = true;
  try {
    own.deallocate(all[1], MiB);
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  no_memory = false;
  CHECK_FALSE(thrown);
  own.deallocate(all[0], MiB);
  CHECK(own.allocate(MiB) == all[0]);
}

TEST_CASE("a send that is taken back without memory is an error for its receiver, and ends no process") {
#ifdef MUSTER_HAS_TCP
  const auto over = GENERATE(test::fabric::shm, test::fabric::tcp);
#else
  const auto over = test::fabric::shm;
#endif
  const bool tagged = GENERATE(false, true);  // a tagged message was announced
  const std::size_t bytes = 12'000'000;       // more than a ring or a socket buffers
  std::atomic<bool> cancelled{false};
  std::string text;
  test::connections all(over, 2);
  std::thread sender([&] {
    const auto transport = all.connect(0);
    send_and_cancel(*transport, bytes, tagged ? 3 : 0, cancelled);
    muster::request r;  // a rank that is alive continues to test
    std::byte data{};
    r.data = &data;
    r.bytes = r.peer = 1;
    r.tag = 9;
    transport->receive(r);
    while (cancelled) {
      (void)transport->test(r);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto transport = all.connect(1);
  try {
    text = receive_error(*transport, bytes, tagged ? 3 : 0, cancelled);
  } catch (const std::exception& failure) {
    text = failure.what();
  }
  cancelled = false;
  sender.join();
  INFO(text << ", over " << over);
  CHECK_THAT(text, contains(over == test::fabric::shm ? "ended (it is out of memory)" : "its connection"));
}
