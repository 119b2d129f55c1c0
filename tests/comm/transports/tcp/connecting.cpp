// The connections of a tcp mesh, and peers that do not authenticate.
#include <sys/resource.h>

#include <cstring>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"
#include "meshes.hpp"

using namespace meshes;  // NOLINT: this is about nothing else

TEST_CASE("ranks with different tokens do not come together, and the error says what was seen", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.connect_timeout = muster::seconds(2);
  test::tcp_job job(2, plan);
  std::string text[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        (void)job.connect(rank, rank == 0 ? "this" : "that");
      } catch (const muster::error& refused) {
        text[rank] = refused.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_THAT(text[0], contains("rank 1"));
  CHECK_THAT(text[1], contains("rank 0"));
  CHECK_THAT(text[1], contains("token"));
}

// Regression: where a rank waits long for a processor, its peer has accepted a connection that the rank has given up.
TEST_CASE("a rank whose connections end before it has both connects again", "[tcp]") {
  test::tcp_job job(2);
  auto other = std::async(std::launch::async, [&] { return std::make_unique<impostor>(job.endpoints(), 9); });
  std::unique_ptr<tcp::tcp_transport> transport;
  CHECK_NOTHROW(transport = job.connect(0));
  std::unique_ptr<impostor> peer;
  CHECK_NOTHROW(peer = other.get());
  REQUIRE((transport && peer));
  parcel message(2 * tcp::frame_bytes, 0);
  message.with(1, 7);
  transport->receive(message.r);
  const std::vector<std::byte> payload(message.r.bytes, std::byte{5});
  peer->send(peer->data, message_of(message.r.bytes), payload);
  message.finish(*transport);
  CHECK(message.is_all(5));
}

// Rank 0 closes twelve connections at all stages of the handshake, and serves the later ones.
TEST_CASE("a rank whose connections a peer has closed connects again", "[tcp]") {
  std::vector<tcp::tcp_listeners> listeners;
  std::vector<std::string> endpoints;
  std::vector<tcp::tcp_peer> peers;
  for (int rank = 0; rank < 2; ++rank) {
    listeners.emplace_back("127.0.0.1", "the test");
    endpoints.push_back(listeners.back().endpoints());
    peers.push_back(tcp::read_endpoints(endpoints.back(), rank));
  }
  const auto plan = test::tcp_job::busy_plan();
  const std::string_view parts[] = {"of the test", endpoints[0], endpoints[1]};
  auto first = std::async(std::launch::async, [&, sockets = listeners[0].open()]() mutable {
    for (int closed = 0; closed < 12; ++closed) {
      sockets.front().await(POLLIN, impostor::deadline());
      const auto accepted = sockets.front().accept();
      std::array<std::byte, 60> hello{};  // the introduction and its nonce
      if (closed % 3 > 0) test::read_exactly(accepted, hello, impostor::deadline());
      if (closed % 3 < 2) continue;
      test::write_exactly(accepted, std::vector<std::byte>(32), impostor::deadline());   // a nonce
      test::read_exactly(accepted, std::span(hello).first<32>(), impostor::deadline());  // the proof
    }
    tcp::tcp_mesh mesh(plan, 0, peers, std::move(sockets), tcp::job_secret(parts));
    mesh.await_all(impostor::deadline());
  });
  CHECK_NOTHROW(tcp::connect_mesh(plan, 1, endpoints, std::move(listeners[1]), "of the test", impostor::deadline()));
  CHECK_NOTHROW(first.get());
}

// Strangers connect while the ranks connect and work: some send nothing, some send random bytes, some begin as ranks
// do.
TEST_CASE("strangers neither hold up a job nor break it, and are counted", "[tcp]") {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const std::size_t idle = std::min<std::size_t>(1000, (files.rlim_cur - 200) / 3);
  test::tcp_job job(2);
  const auto listener = first_address(job.endpoints()[0]);
  std::vector<tcp::tcp_socket> silent;
  const auto connect_silent = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) silent.push_back(impostor::reach(listener));
  };
  const auto send_garbage = [&](std::uint64_t seed, std::string_view prefix) {
    auto socket = impostor::reach(listener);
    muster::random_stream random(20261121, seed);
    std::vector<std::byte> bytes(100000);
    for (auto& b : bytes) b = static_cast<std::byte>(random.below(256));
    std::memcpy(bytes.data(), prefix.data(), prefix.size());
    try {
      test::write_exactly(socket, bytes, impostor::deadline());
    } catch (const tcp::socket_error&) {  // the acceptor closes the connection before all bytes are sent
    }
  };
  std::atomic<bool> all_connected{false};
  const auto deadline = impostor::deadline();
  std::uint64_t counted = 0;
  const auto work = [&](int rank) {
    auto transport = job.connect(rank);
    tcp::tcp_mesh& mesh = transport->mesh();
    muster::group world(std::move(transport), {});
    for (int finished = 0; finished == 0;) {
      require(muster::allreduce(world, 1, muster::sum) == 2, "the sum");
      // The ranks work until most strangers are counted: some still wait in the listener's queue when the last has
      // connected.
      if (rank == 0 && all_connected)
        finished = mesh.unauthenticated_connections() > idle / 2 || muster::clock::now() >= deadline ? 1 : 0;
      muster::broadcast(world, std::span(&finished, 1), 0);
    }
    if (rank == 0) counted = mesh.unauthenticated_connections();
  };
  std::exception_ptr thrown[2];
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  }
  connect_silent(idle);
  send_garbage(1, "");
  send_garbage(2, "");
  send_garbage(3, "muster ranks 1\n");
  all_connected = true;
  for (auto& rank : ranks) rank.join();
  for (const auto& failure : thrown) {
    INFO((failure ? muster::describe(failure) : ""));
    CHECK(failure == nullptr);
  }
  CHECK(counted > idle / 2);
}
