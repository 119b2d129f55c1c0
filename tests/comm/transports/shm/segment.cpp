// The memory that ranks on a host share, and the bootstrap.
#include <muster/comm/transports/shm/segment.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <thread>

#include <muster/comm/transports/shm/host.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"

namespace {

using muster::detail::descriptor;
using muster::detail::mapping;
using muster::detail::segment;

constexpr std::size_t reserve = std::size_t{64} << 20;
constexpr std::size_t MiB = std::size_t{1} << 20;

/// Returns a peer's mapping of the same memory, at other addresses.
mapping as_peer(const segment& own) { return {descriptor(::dup(own.memory().file())), reserve}; }

std::size_t bytes_in_use(const segment& own) {
  struct stat status {};
  REQUIRE(::fstat(own.memory().file(), &status) == 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

std::size_t file_size(const segment& own) {
  struct stat status {};
  REQUIRE(::fstat(own.memory().file(), &status) == 0);
  return static_cast<std::size_t>(status.st_size);
}

/// Runs the bootstrap of two ranks while the user has more descriptors in flight between processes than the system
/// allows, for a while. Called in a child process. Returns 0 if the ranks connect.
int connect_with_few_descriptors(const std::string& name) {
  if (::geteuid() == 0 && ::setuid(65534) != 0) return 1;  // the limit does not apply to root
  rlimit few{};
  if (::getrlimit(RLIMIT_NOFILE, &few) != 0) return 2;
  few.rlim_cur = std::min<rlim_t>(few.rlim_max, 128);
  if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return 2;
  const segment memory_to_pass(reserve);
  std::array<int, 200> passed_descriptors;
  passed_descriptors.fill(memory_to_pass.memory().file());
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return 3;
  char byte = '!';
  iovec bytes{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof passed_descriptors)] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof passed_descriptors);
  std::memcpy(CMSG_DATA(rights), passed_descriptors.data(), sizeof passed_descriptors);
  if (::sendmsg(ends[0], &message, MSG_NOSIGNAL) != 1) return 4;
  std::atomic<int> connected{0};
  std::vector<std::thread> ranks;
  for (const int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      try {
        (void)muster::detail::bootstrap_host(name, rank, 2, std::make_shared<segment>(reserve), muster::seconds(60), 0,
                                             {});
        ++connected;
      } catch (const std::exception& failed) {
        std::cerr << failed.what() << '\n';
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (const int end : ends) ::close(end);  // the descriptors in flight are closed too
  for (auto& thread : ranks) thread.join();
  return connected == 2 ? 0 : 5;
}

}  // namespace

TEST_CASE("what one rank writes into its memory a peer reads at the same offset, and the other way round") {
  segment own(reserve);
  const auto peer = as_peer(own);
  muster::buffer<std::uint64_t> data(1000, &own);
  CHECK(reinterpret_cast<std::uintptr_t>(data.data()) % muster::buffer_alignment == 0);
  REQUIRE(own.holds(data.data(), data.size() * 8));
  auto* const peer_data = reinterpret_cast<std::uint64_t*>(peer.at(own.offset_of(data.data())));
  data[17] = 42;
  CHECK(peer_data[17] == 42);
  peer_data[999] = 43;
  CHECK(data[999] == 43);
}

// A peer maps the memory once, at the start. Memory that is allocated later must be accessible in that mapping.
TEST_CASE("memory grows under the mappings that there are") {
  segment own(reserve);
  const auto peer = as_peer(own);
  const muster::buffer<char> first(MiB, &own);
  muster::buffer<char> second(8 * MiB, &own);
  second[8 * MiB - 1] = 'x';
  CHECK(*reinterpret_cast<char*>(peer.at(own.offset_of(&second[8 * MiB - 1]))) == 'x');
}

TEST_CASE("only what was allocated whole in it is held") {
  segment own(reserve);
  muster::buffer<char> data(10000, &own);
  std::vector<char> elsewhere(10);
  CHECK(own.holds(data.data(), 10000));
  CHECK(own.holds(data.data() + 9999, 1));
  CHECK_FALSE(own.holds(elsewhere.data(), 10));
  CHECK_FALSE(own.holds(nullptr, 0));
  CHECK_FALSE(own.holds(own.memory().at(0), reserve + 1));
  CHECK_FALSE(own.holds(own.memory().at(reserve), 1));
}

TEST_CASE("more than there is room for is refused, and what there is room for still comes") {
  segment own(reserve);
  CHECK_THROWS_AS(muster::buffer<char>(reserve + 1, &own), std::bad_alloc);
  CHECK_THROWS_AS(muster::buffer<char>(std::size_t{1} << 60, &own), std::bad_alloc);
  const muster::buffer<char> most(reserve - MiB, &own);
  CHECK_THROWS_AS(muster::buffer<char>(2 * MiB, &own), std::bad_alloc);
  const muster::buffer<char> rest(MiB / 2, &own);
  CHECK(own.holds(rest.data(), rest.size()));
}

TEST_CASE("memory that is given back is used again, with its neighbours as one") {
  segment own(reserve);
  auto a = std::make_unique<muster::buffer<char>>(3 * MiB, &own);
  auto b = std::make_unique<muster::buffer<char>>(3 * MiB, &own);
  auto c = std::make_unique<muster::buffer<char>>(3 * MiB, &own);
  const muster::buffer<char> end(10, &own);
  const std::size_t size = file_size(own);
  const char* const start = a->data();
  // Each order of releases leaves a single free range.
  SECTION("left, right, middle") { a.reset(), c.reset(), b.reset(); }
  SECTION("middle, left, right") { b.reset(), a.reset(), c.reset(); }
  SECTION("right, middle, left") { c.reset(), b.reset(), a.reset(); }
  const muster::buffer<char> all(9 * MiB, &own);
  CHECK(all.data() == start);
  CHECK(file_size(own) == size);
}

TEST_CASE("the pages of long runs go back to the system, and come again as zeros") {
  segment own(reserve);
  auto data = std::make_unique<muster::buffer<char>>(16 * MiB, &own);
  std::fill(data->begin(), data->end(), 'x');
  CHECK(bytes_in_use(own) >= 16 * MiB);
  data.reset();
  CHECK(bytes_in_use(own) <= MiB);
  const muster::buffer<char> again(16 * MiB, &own);
  CHECK(std::all_of(again.begin(), again.end(), [](char x) { return x == 0; }));
}

TEST_CASE("any order of allocations and releases: no two hold the same memory, and contents stay") {
  segment own(reserve);
  const auto peer = as_peer(own);
  muster::random_stream random(20261121);
  struct allocation {
    muster::buffer<std::uint64_t> memory;
    std::uint64_t signature;
  };
  std::vector<allocation> all;
  for (int turn = 0; turn < 4000; ++turn) {
    if (random.below(2) == 0 && all.size() < 60) {
      const auto scale = random.below(17);  // sizes from a word to 512 KiB
      allocation allocated{muster::buffer<std::uint64_t>(1 + random.below(std::uint64_t{1} << scale), &own), random()};
      std::fill(allocated.memory.begin(), allocated.memory.end(), allocated.signature);
      all.push_back(std::move(allocated));
    } else if (!all.empty()) {
      const auto index = static_cast<std::ptrdiff_t>(random.below(all.size()));
      const auto& entry = all[static_cast<std::size_t>(index)];
      const auto* const peer_view = reinterpret_cast<const std::uint64_t*>(peer.at(own.offset_of(entry.memory.data())));
      REQUIRE(std::all_of(peer_view, peer_view + entry.memory.size(),
                          [&](std::uint64_t x) { return x == entry.signature; }));
      all.erase(all.begin() + index);
    }
  }
  all.clear();
  CHECK(bytes_in_use(own) <= 2 * MiB);
  const muster::buffer<char> most(file_size(own), &own);  // the memory is a single free range again
  CHECK(file_size(own) == most.size());
}

TEST_CASE("detached memory keeps its content, and no peer reaches it any more") {
  segment own(reserve);
  const auto peer = as_peer(own);
  {
    muster::buffer<std::uint32_t> before(5000, &own);
    muster::buffer<std::uint32_t> data(100001, &own);
    muster::buffer<std::uint32_t> after(5000, &own);
    std::fill(before.begin(), before.end(), 1u);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint32_t>(i);
    std::fill(after.begin(), after.end(), 3u);
    auto* const peer_view = reinterpret_cast<std::uint32_t*>(peer.at(own.offset_of(data.data())));

    own.detach(data.data(), data.size() * sizeof(std::uint32_t));
    CHECK_FALSE(own.holds(data.data(), 4));
    CHECK_FALSE(own.holds(&data[50000], 4));
    CHECK(own.holds(before.data(), before.size() * 4));
    CHECK(own.holds(after.data(), after.size() * 4));
    std::fill(peer_view, peer_view + data.size(), 99u);  // a stopped peer resumes and writes
    bool is_unchanged = true;
    for (std::size_t i = 0; i < data.size(); ++i) is_unchanged = is_unchanged && data[i] == i;
    CHECK(is_unchanged);
    data[7] = 8;
    CHECK(peer_view[7] == 99);
    CHECK(std::all_of(before.begin(), before.end(), [](auto x) { return x == 1; }));
    CHECK(std::all_of(after.begin(), after.end(), [](auto x) { return x == 3; }));
    *reinterpret_cast<std::uint32_t*>(peer.at(own.offset_of(after.data()))) = 4;
    CHECK(after[0] == 4);
  }
  // Detached memory is never allocated again: a peer may still write to its old pages.
  std::vector<muster::buffer<std::uint32_t>> later;
  for (int i = 0; i < 20; ++i) {
    later.emplace_back(50000, &own);
    CHECK(own.holds(later.back().data(), 200000));
    later.back()[0] = 5;
    CHECK(*reinterpret_cast<std::uint32_t*>(peer.at(own.offset_of(later.back().data()))) == 5);
  }
}

// Regression: each failed collective whose output was freed later took its addresses and its memory for ever.
TEST_CASE("detached memory that was freed returns its pages at once, and its addresses when no peer is left") {
  segment own(reserve);
  const auto used = bytes_in_use(own);
  for (int failure = 0; failure < 20; ++failure) {  // 20 times 8 MiB of 64
    {
      muster::buffer<std::uint32_t> data(8 * MiB / sizeof(std::uint32_t), &own);
      std::fill(data.begin(), data.end(), 7u);
      own.detach(data.data() + 1000, 4 * MiB);
      data[3000] = 8;
    }
    CHECK(bytes_in_use(own) <= used + MiB);
    const muster::buffer<std::uint32_t> later(1000, &own);
    CHECK(own.holds(later.data(), 4000));
    own.attach_again();
  }
  const auto peer = as_peer(own);
  muster::buffer<std::uint32_t> data(8 * MiB / sizeof(std::uint32_t), &own);
  std::fill(data.begin(), data.end(), 9u);
  auto* const peer_view = reinterpret_cast<std::uint32_t*>(peer.at(own.offset_of(data.data())));
  CHECK(std::all_of(peer_view, peer_view + data.size(), [](auto x) { return x == 9; }));
}

TEST_CASE("a memory file cannot shrink under a peer that reads it") {
  segment own(reserve);
  const muster::buffer<char> data(MiB, &own);
  CHECK(::ftruncate(own.memory().file(), 0) != 0);
}

// Regression: the error was a system failure instead of a lost rank, and it ended a process of an elastic job.
TEST_CASE("a rank that leaves during the bootstrap is lost to the others") {
  muster::random_stream draw(20261122);
  for (int round = 0; round < 300; ++round) {
    const std::string name = "muster-test-meeting." + std::to_string(::getpid()) + "." + std::to_string(round);
    std::atomic<bool> first_leaves{false}, second_leaves{false}, first_was_alone{false};
    std::exception_ptr second_failure;
    std::thread first([&] {  // a bootstrap of three ranks; the third never starts
      try {
        (void)muster::detail::bootstrap_host(name, 0, 3, std::make_shared<segment>(reserve), muster::seconds(10), 0,
                                             [&] { return first_leaves.load(); });
      } catch (const muster::peer_failure&) {
        first_was_alone = true;
      }
    });
    std::thread second([&] {
      try {
        (void)muster::detail::bootstrap_host(name, 1, 3, std::make_shared<segment>(reserve), muster::seconds(10), 0,
                                             [&] { return second_leaves.load(); });
      } catch (...) {
        second_failure = std::current_exception();
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(draw.below(3000)));
    first_leaves = true;
    first.join();
    second_leaves = true;
    second.join();
    CHECK(first_was_alone);
    REQUIRE(second_failure);
    CHECK_THROWS_AS(std::rethrow_exception(second_failure), muster::peer_failure);
  }
}

// Regression: a running rank was reported as ended.
TEST_CASE("ranks meet where the system lets no more descriptors on their way for a while") {
  const std::string name = "muster-test-crowd." + std::to_string(::getpid());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(connect_with_few_descriptors(name));
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("jobs whose long names differ at their end do not meet") {
  const std::string name = "muster-test-long." + std::to_string(::getpid()) + std::string(110, '.');
  std::atomic<int> connected{0};
  std::vector<std::thread> ranks;
  for (const char* job : {"a", "b"}) {
    for (const int rank : {0, 1}) {
      ranks.emplace_back([&, rank, job_name = name + job] {
        try {
          (void)muster::detail::bootstrap_host(job_name, rank, 2, std::make_shared<segment>(reserve),
                                               muster::seconds(10), 0, {});
          ++connected;
        } catch (const std::exception&) {
        }
      });
    }
  }
  for (auto& thread : ranks) thread.join();
  CHECK(connected == 4);
}

// Every user may bind any name in the abstract namespace, so another user may hold the name of a job.
TEST_CASE("a name that another user holds is refused at once, by rank 0 and by those that look for it") {
  if (::geteuid() != 0) {
    std::cout << "SKIPPED: only root can become another user\n";
    return;
  }
  const int rank = GENERATE(0, 1);
  const std::string name = "muster-test-held." + std::to_string(::getpid()) + "." + std::to_string(rank);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const int listener = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const bool holds = ::setuid(65534) == 0 &&
                       ::bind(listener, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                       ::listen(listener, 1) == 0 && ::write(ready[1], "!", 1) == 1;
    while (holds && ::getppid() != 1) ::usleep(10000);
    ::_exit(0);
  }
  char ready_byte = 0;
  REQUIRE(::read(ready[0], &ready_byte, 1) == 1);
  std::string refused;
  try {
    (void)muster::detail::bootstrap_host(name, rank, 2, std::make_shared<segment>(reserve), muster::seconds(5), 0, {});
  } catch (const std::exception& failed) {
    refused = failed.what();
  }
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  INFO(refused);
  CHECK(refused.find("user 65534 owns that socket name") != std::string::npos);
  CHECK(refused.find("MUSTER_JOB") != std::string::npos);
}

// A process of the same user listens at rank 0's name and sends back the record that it received, as another rank's
// record.
TEST_CASE("a rank that rank 0 announces and that cannot be is refused") {
  const int announced = GENERATE(1'000'000, -1, 3, 1);
  const std::string name = "muster-test-announced." + std::to_string(::getpid()) + "." + std::to_string(announced);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const muster::detail::descriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  std::exception_ptr thrown;
  std::thread guest([&] {
    try {
      (void)muster::detail::bootstrap_host(name, 1, 3, std::make_shared<segment>(reserve), muster::seconds(10), 0, {});
    } catch (...) {
      thrown = std::current_exception();
    }
  });
  const muster::detail::descriptor connection(::accept(listener.get(), nullptr, nullptr));
  std::vector<std::byte> record(4096);
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  iovec bytes{record.data(), record.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const auto got = ::recvmsg(connection.get(), &message, MSG_CMSG_CLOEXEC);
  REQUIRE(got > 12);
  std::memcpy(record.data() + 8, &announced, sizeof announced);  // the rank is after the protocol's magic number
  bytes.iov_len = static_cast<std::size_t>(got);
  for (int i = 0; i < 2; ++i) (void)::sendmsg(connection.get(), &message, MSG_NOSIGNAL);
  guest.join();
  REQUIRE(thrown);
  CHECK_THROWS_AS(std::rethrow_exception(thrown), muster::configuration_error);
}
