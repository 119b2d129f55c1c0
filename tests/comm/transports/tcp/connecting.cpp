// How the ranks of a tcp mesh find each other, and peers that do not authenticate.
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
  plan.patience = muster::seconds(2);
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

// They come while ranks connect and while they work: some say nothing, some talk garbage, some begin as ranks do.
TEST_CASE("strangers neither hold up a job nor break it, and are counted", "[tcp]") {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const std::size_t idle = std::min<std::size_t>(1000, (files.rlim_cur - 200) / 3);
  test::tcp_job job(2);
  const auto listener = first_address(job.endpoints()[0]);
  std::vector<tcp::tcp_socket> silent;
  const auto come = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) silent.push_back(impostor::reach(listener));
  };
  const auto babble = [&](std::uint64_t seed, std::string_view begins) {
    auto one = impostor::reach(listener);
    muster::random_stream random(20261121, seed);
    std::vector<std::byte> bytes(100000);
    for (auto& b : bytes) b = static_cast<std::byte>(random.below(256));
    std::memcpy(bytes.data(), begins.data(), begins.size());
    try {
      test::write_exactly(one, bytes, impostor::until());
    } catch (const tcp::socket_error&) {  // it is thrown out before it has said all
    }
  };
  std::atomic<bool> strangers_are_through{false};
  const auto patience = impostor::until();
  std::uint64_t counted = 0;
  const auto work = [&](int rank) {
    auto made = job.connect(rank);
    tcp::tcp_mesh& mesh = made->mesh();
    muster::group world(std::move(made), {});
    for (int through = 0; through == 0;) {
      require(muster::allreduce(world, 1, muster::sum) == 2, "the sum");
      // Work goes on until most of them were counted: some still wait in the listener's queue when the last has
      // connected.
      if (rank == 0 && strangers_are_through)
        through = mesh.strangers() > idle / 2 || muster::clock::now() >= patience ? 1 : 0;
      muster::broadcast(world, std::span(&through, 1), 0);
    }
    if (rank == 0) counted = mesh.strangers();
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
  come(idle);
  babble(1, "");
  babble(2, "");
  babble(3, "muster ranks 1\n");
  strangers_are_through = true;
  for (auto& rank : ranks) rank.join();
  for (const auto& failure : thrown) {
    INFO((failure ? muster::describe(failure) : ""));
    CHECK(failure == nullptr);
  }
  CHECK(counted > idle / 2);
}
