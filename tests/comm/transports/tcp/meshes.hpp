// Helpers for tests of the tcp transport: ranks that are connected by a given plan, and an impostor that sends frames
// by itself.
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

inline void require(bool condition, const std::string& text) {
  if (!condition) throw std::runtime_error(text);
}

/// Runs `body` on `ranks` ranks that are connected by the plan. Returns the exception of each rank, or null.
inline std::vector<std::exception_ptr> outcomes(const tcp::tcp_plan& plan, int ranks,
                                                const std::function<void(muster::group&, tcp::tcp_mesh&)>& body) {
  test::tcp_job job(ranks, plan);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto& failure = thrown[static_cast<std::size_t>(rank)];
      try {
        auto transport = job.connect(rank);
        tcp::tcp_mesh& mesh = transport->mesh();
        muster::group world(std::move(transport), {});
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

/// Runs `body` as `outcomes` does, but throws the exception of any rank.
inline void run(const tcp::tcp_plan& plan, int ranks, const std::function<void(muster::group&, tcp::tcp_mesh&)>& body) {
  for (const auto& thrown : outcomes(plan, ranks, body)) {
    if (thrown) std::rethrow_exception(thrown);
  }
}

inline tcp::address first_address(const std::string& card) { return tcp::read_endpoints(card, 0).addresses.front(); }

/// Rank 1 of two ranks, without a transport: it knows the secret, and then sends the frames that the test selects.
class impostor {
 public:
  /// Connects to rank 0. `rounds`: number of times that the impostor connects and closes its connections before, as a
  /// rank does that receives the answer too late: both connections, or one in turn.
  explicit impostor(const std::vector<std::string>& endpoints, int rounds = 0) : endpoints_(endpoints) {
    std::vector<std::string_view> parts{"of the test"};
    parts.insert(parts.end(), endpoints_.begin(), endpoints_.end());
    secret_ = tcp::job_secret(parts);
    for (int round = 0; round < rounds; ++round) {
      if (round % 3 != 1 || !control) control = connect(0);
      if (round % 3 != 2) data = connect(1);
      std::this_thread::sleep_for(20ms);  // rank 0 may process the connections before they end
      if (round % 3 != 1) control = {};
      if (round % 3 != 2) data = {};
    }
    if (!control) control = connect(0);
    if (!data) data = connect(1);
    tcp::frame confirmation;  // a rank sends a heartbeat as soon as it has both connections
    confirmation.kind = tcp::frame_kind::beat;
    send(control, confirmation);
  }
  void send(tcp::tcp_socket& connection, const tcp::frame& head, std::span<const std::byte> payload = {}) {
    test::write_exactly(connection, tcp::encode(head), deadline());
    test::write_exactly(connection, payload, deadline());
  }
  /// Reads the clear-to-send after an announcement.
  void read_clear_to_send() {
    tcp::frame_header bytes;
    test::read_exactly(data, bytes, deadline());
    tcp::frame head;
    require(tcp::decode(bytes, head) == nullptr && head.kind == tcp::frame_kind::cts, "the announcement is cleared");
  }
  static muster::clock::time_point deadline() { return muster::deadline_after(patience); }
  /// Connects to a listener, and retries until the rank listens: a rank starts to listen when it connects.
  static tcp::tcp_socket reach(const tcp::address& listener) {
    for (const auto limit = deadline();;) {
      try {
        return tcp::tcp_socket::connect(listener, limit);
      } catch (const tcp::socket_error&) {
        if (muster::clock::now() > limit) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  tcp::tcp_socket control;
  tcp::tcp_socket data;

 private:
  tcp::tcp_socket connect(std::uint32_t connection_index) {
    auto socket = reach(first_address(endpoints_[0]));
    auto handshake = tcp::handshake::connect(secret_, {1, 0, connection_index});
    handshake.conclude(socket, deadline());
    require(handshake.current_state() == tcp::handshake::state::done, "the handshake succeeds");
    return socket;
  }

  std::vector<std::string> endpoints_;
  tcp::job_secret secret_;
};

/// Rank 0 with a transport, and rank 1 as an impostor.
struct odd_pair {
  explicit odd_pair(const tcp::tcp_plan& plan = test::tcp_job::busy_plan()) : job(2, plan) {
    std::thread side([&] { peer = std::make_unique<impostor>(job.endpoints()); });
    transport = job.connect(0);
    side.join();
  }
  /// Waits for the control message by which rank 0 is notified of the end of rank 1, and returns its text.
  std::string wait_for_end(muster::request& r) const {
    const auto deadline = muster::deadline_after(patience);
    muster::control_message message;
    while (!transport->poll(message)) {
      require(muster::clock::now() < deadline, "a control message arrives");
      (void)transport->test(r);
      transport->pause(muster::deadline_after(muster::seconds(0.05)));
    }
    require(message.type == muster::control_message::kind::peer_ended && message.origin == 1,
            "the message reports that rank 1 is gone");
    return message.text;
  }

  test::tcp_job job;
  std::unique_ptr<impostor> peer;
  std::unique_ptr<tcp::tcp_transport> transport;
};

/// Returns the text with which rank 0 reports the end of rank 1 after the impostor's action.
inline std::string end_after(const std::function<void(impostor&)>& action,
                             const tcp::tcp_plan& plan = test::tcp_job::busy_plan()) {
  const odd_pair pair(plan);
  std::vector<std::byte> data(100000);
  muster::request r;  // a posted receive makes the transport read the data connection
  r.data = data.data();
  r.bytes = data.size();
  r.peer = 1;
  r.tag = 7;
  pair.transport->receive(r);
  auto done = std::async(std::launch::async, [&] { action(*pair.peer); });
  auto text = pair.wait_for_end(r);
  r.owner->cancel(r);
  done.get();
  return text;
}

/// Shuts down all network connections of this process, as if a device on the route had forgotten them.
inline void break_connections() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int file = std::stoi(entry.path().filename());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(file, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && peer.ss_family != AF_UNIX)
      ::shutdown(file, SHUT_RDWR);
  }
}

/// A message whose bytes are all `value`, or a buffer for one.
struct parcel {
  parcel(std::size_t bytes, std::uint8_t value) : data(bytes, value) {
    r.data = reinterpret_cast<std::byte*>(data.data());
    r.bytes = bytes;
  }
  /// Makes the message part of the collective with that number.
  parcel(std::size_t bytes, std::uint8_t value, std::uint64_t sequence) : parcel(bytes, value) {
    r.signature.kind = muster::collective::broadcast;
    r.signature.sequence = sequence;
  }
  parcel& with(int peer, std::uint32_t tag) {
    r.peer = peer;
    r.tag = tag;
    return *this;
  }
  void finish(muster::transport& transport) {
    const auto deadline = muster::deadline_after(patience);
    while (!transport.test(r)) {
      require(muster::clock::now() < deadline, "a message completes");
      transport.pause(muster::deadline_after(0.01s));
    }
  }
  [[nodiscard]] bool is_all(std::uint8_t value) const {
    return std::all_of(data.begin(), data.end(), [value](auto b) { return b == value; });
  }

  std::vector<std::uint8_t> data;
  muster::request r;
};

/// A flag by which a rank notifies another rank beside the tested messages.
class flag {
 public:
  void raise() { raised_ = true; }
  void wait() const {
    const auto deadline = muster::deadline_after(2 * patience);
    while (!raised_) {
      require(muster::clock::now() < deadline, "another rank raises the flag");
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
