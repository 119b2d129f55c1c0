// Ranks that are connected by hand, or by a plan of the test's, for tests of the tcp transport.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/group.hpp>
#include "comm/net/exactly.hpp"
#include "comm/ranks.hpp"

namespace meshes {

namespace tcp = muster::detail;
using namespace std::chrono_literals;

inline constexpr muster::seconds patience{30};

inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

/// Runs a body as ranks that are connected by that plan.
inline std::vector<std::exception_ptr> outcomes(const tcp::tcp_plan& plan, int ranks,
                                                const std::function<void(muster::group&, tcp::tcp_mesh&)>& body) {
  test::tcp_job job(ranks, plan);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto& failure = thrown[static_cast<std::size_t>(rank)];
      try {
        auto made = job.connect(rank);
        tcp::tcp_mesh& mesh = made->mesh();
        muster::group world(std::move(made), {});
        try {
          body(world, mesh);
        } catch (...) {
          failure = std::current_exception();
          world.abort(muster::describe(failure));
        }
      } catch (...) {
        failure = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

inline void run(const tcp::tcp_plan& plan, int ranks, const std::function<void(muster::group&, tcp::tcp_mesh&)>& body) {
  for (const auto& thrown : outcomes(plan, ranks, body)) {
    if (thrown) std::rethrow_exception(thrown);
  }
}

inline tcp::address first_address(const std::string& card) { return tcp::read_endpoints(card, 0).addresses.front(); }

/// Rank 1 of two, by hand: it knows the secret, and does then what the test wants.
class impostor {
 public:
  explicit impostor(const std::vector<std::string>& endpoints) : cards_(endpoints) {
    std::vector<std::string_view> parts{"of the test"};
    parts.insert(parts.end(), cards_.begin(), cards_.end());
    secret_ = tcp::job_secret(parts);
    control = connect(0);
    stream = connect(1);
  }
  void send(tcp::tcp_socket& over, const tcp::frame& head, std::span<const std::byte> payload = {}) {
    test::write_exactly(over, tcp::encode(head), until());
    test::write_exactly(over, payload, until());
  }
  /// The answer to an announcement.
  void hear_clear() {
    tcp::frame_header bytes;
    test::read_exactly(stream, bytes, until());
    tcp::frame head;
    require(tcp::decode(bytes, head) == nullptr && head.kind == tcp::frame_kind::cts, "it is cleared");
  }
  static muster::clock::time_point until() { return muster::deadline_after(patience); }
  /// A rank listens when it connects, not before.
  static tcp::tcp_socket reach(const tcp::address& listener) {
    for (const auto limit = until();;) {
      try {
        return tcp::tcp_socket::connect(listener, limit);
      } catch (const tcp::socket_error&) {
        if (muster::clock::now() > limit) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  tcp::tcp_socket control;
  tcp::tcp_socket stream;

 private:
  tcp::tcp_socket connect(std::uint32_t line) {
    auto socket = reach(first_address(cards_[0]));
    auto talk = tcp::handshake::connect(secret_, {1, 0, line});
    talk.conclude(socket, until());
    require(talk.now() == tcp::handshake::state::done, "the handshake succeeds");
    return socket;
  }

  std::vector<std::string> cards_;
  tcp::job_secret secret_;
};

/// Rank 0, and rank 1 by hand.
struct odd_pair {
  explicit odd_pair(const tcp::tcp_plan& plan = test::tcp_job::busy_plan()) : job(2, plan) {
    std::thread side([&] { other = std::make_unique<impostor>(job.endpoints()); });
    mine = job.connect(0);
    side.join();
  }
  /// What rank 0 is told of the end of rank 1, while it waits for that.
  std::string hear_end(muster::request& r) const {
    const auto until = muster::deadline_after(patience);
    muster::control_message message;
    while (!mine->poll(message)) {
      require(muster::clock::now() < until, "a notice comes");
      (void)mine->test(r);
      mine->pause(muster::deadline_after(muster::seconds(0.05)));
    }
    require(message.what == muster::control_message::kind::gone && message.origin == 1, "it says that rank 1 is gone");
    return message.text;
  }

  test::tcp_job job;
  std::unique_ptr<impostor> other;
  std::unique_ptr<tcp::tcp_transport> mine;
};

/// What rank 0 hears of rank 1 after it did that.
inline std::string heard_after(const std::function<void(impostor&)>& deed,
                               const tcp::tcp_plan& plan = test::tcp_job::busy_plan()) {
  const odd_pair pair(plan);
  std::vector<std::byte> data(100000);
  muster::request r;  // so that the stream is read
  r.data = data.data();
  r.bytes = data.size();
  r.peer = 1;
  r.tag = 7;
  pair.mine->receive(r);
  auto done = std::async(std::launch::async, [&] { deed(*pair.other); });
  auto text = pair.hear_end(r);
  r.owner->cancel(r);
  done.get();
  return text;
}

/// All that this process has end, as if a device on their way had forgotten them.
inline void break_connections() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int file = std::stoi(entry.path().filename());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(file, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && peer.ss_family != AF_UNIX)
      ::shutdown(file, SHUT_RDWR);
  }
}

/// A message of bytes that are all `value`, or room for one.
struct parcel {
  parcel(std::size_t bytes, std::uint8_t value) : data(bytes, value) {
    r.data = reinterpret_cast<std::byte*>(data.data());
    r.bytes = bytes;
  }
  /// As part of that collective.
  parcel(std::size_t bytes, std::uint8_t value, std::uint64_t sequence) : parcel(bytes, value) {
    r.signature.kind = muster::collective::broadcast;
    r.signature.sequence = sequence;
  }
  parcel& with(int peer, std::uint32_t tag) {
    r.peer = peer;
    r.tag = tag;
    return *this;
  }
  void finish(muster::transport& over) {
    const auto until = muster::deadline_after(patience);
    while (!over.test(r)) {
      require(muster::clock::now() < until, "a message comes to its end");
      over.pause(muster::deadline_after(0.01s));
    }
  }
  [[nodiscard]] bool is_all(std::uint8_t value) const {
    return std::all_of(data.begin(), data.end(), [value](auto b) { return b == value; });
  }

  std::vector<std::uint8_t> data;
  muster::request r;
};

/// Ranks as threads that tell each other something beside what is tested.
class flag {
 public:
  void raise() { raised_ = true; }
  void wait() const {
    const auto until = muster::deadline_after(2 * patience);
    while (!raised_) {
      require(muster::clock::now() < until, "another rank comes to where it says so");
      std::this_thread::sleep_for(1ms);
    }
  }

 private:
  std::atomic<bool> raised_{false};
};

inline tcp::frame message_of(std::uint64_t bytes) {
  tcp::frame head;
  head.tag = 7;
  head.total = bytes;
  return head;
}

}  // namespace meshes
