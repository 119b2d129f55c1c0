// Messages between ranks (muster/comm/messages.hpp), on ranks that are threads.
#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/collectives/uneven.hpp>
#include <muster/core/error.hpp>
#include "catch.hpp"
#include "comm/oracle.hpp"
#include "comm/passing_checks.hpp"
#include "comm/ranks.hpp"

namespace {

std::vector<std::string> texts_by_rank(const std::vector<std::exception_ptr>& thrown) {
  std::vector<std::string> texts;
  for (const auto& failure : thrown) texts.push_back(failure ? muster::describe(failure) : "");
  return texts;
}

}  // namespace

TEST_CASE("messages arrive whole and in order, whatever is under way") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const auto seed = test::cases_of_run(1).seed;
  std::cout << "seed " << seed << " (MUSTER_TEST_SEED sets another)\n";
  for (const int ranks : {1, 2, 3, 5}) {
    INFO(ranks << " ranks");
    const auto texts = texts_by_rank(test::outcomes(over, ranks, [&](muster::group& world) {
      test::check_calls(world);
      for (std::uint64_t round = 0; round < 6; ++round) test::check_traffic(world, seed + round, 40);
    }));
    for (const auto& text : texts) CHECK(text.empty());
  }
}

TEST_CASE("messages progress by a thread") {
  const auto over = GENERATE(test::fabric::threads, test::fabric::shm);
  const auto texts = texts_by_rank(test::outcomes(over, 2,
                                                  [](muster::group& world) {
                                                    std::vector<int> out(50000, world.rank()), in(50000);
                                                    auto pending = muster::receive_async(world, in, 1 - world.rank());
                                                    auto sent = muster::send_async(world, out, 1 - world.rank());
                                                    std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                                    pending.wait();
                                                    test::require(in.back() == 1 - world.rank(), "the message");
                                                  },
                                                  {.progress_thread = true}));
  for (const auto& text : texts) CHECK(text.empty());
}

TEST_CASE("wrong arguments of a message are refused in one line, and the group goes on") {
  test::run_ranks(2, [](muster::group& world) {
    std::vector<int> data(4);
    const auto refuses = [](const std::string& says, const std::function<void()>& call) {
      try {
        call();
      } catch (const muster::configuration_error& refused) {
        const std::string text = refused.what();
        test::require(text.find(says) != std::string::npos && text.find('\n') == std::string::npos, "another text");
        return;
      }
      throw std::runtime_error("accepted: " + says);
    };
    refuses("send: the receiver cannot be rank 2", [&] { muster::send(world, data, 2); });
    refuses("send: the receiver cannot be rank -1", [&] { muster::send(world, data, muster::any_rank); });
    refuses("receive: the sender cannot be rank -2", [&] { muster::receive(world, data, -2); });
    refuses("probe: the sender cannot be rank 7", [&] { muster::probe(world, 7); });
    refuses("the tag cannot be -1", [&] { muster::send(world, data, 0, {.tag = -1}); });
    refuses("the tag cannot be 15999", [&] { muster::receive(world, data, 0, {.tag = 15999}); });
    refuses("a timeout cannot be -1", [&] { muster::send(world, data, 0, {.timeout = muster::seconds(-1)}); });
    refuses("the two buffers overlap", [&] {
      const std::span<int> all(data);
      muster::send_receive(world, all.first(3), 1 - world.rank(), all.last(2), 1 - world.rank());
    });
    test::check_calls(world);
  });
}

TEST_CASE("a message that is too long or of another type is a mismatch at every rank") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const bool is_long = GENERATE(true, false);
  const std::size_t length = GENERATE(10u, 100000u);
  const auto thrown = test::outcomes(over, 3, [&](muster::group& world) {
    std::vector<int> data(length);
    std::vector<float> floats(length);
    if (world.rank() == 0) muster::send(world, data, 1, {.tag = 4});
    if (world.rank() == 1 && is_long) muster::receive(world, std::span(data).first(length - 1), 0, {.tag = 4});
    if (world.rank() == 1 && !is_long) muster::receive(world, floats, 0, {.tag = 4});
    muster::barrier(world);
  });
  for (const auto& failure : thrown) {
    REQUIRE(failure);
    CHECK(muster::exit_status_of(failure) == static_cast<int>(muster::error_kind::mismatch));
    CHECK_THAT(muster::describe(failure), contains(is_long ? "does not fit" : "has elements of int32"));
    CHECK_THAT(muster::describe(failure), contains("from rank 0 with tag 4"));
  }
}

TEST_CASE("a message that no rank sends ends at its deadline, and the peers hear of it") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const int what = GENERATE(0, 1, 2);
  const auto thrown = test::outcomes(over, 2, [&](muster::group& world) {
    std::vector<int> data(300000);
    const muster::message_options soon{.tag = 2, .timeout = muster::seconds(0.2)};
    if (world.rank() == 1) return muster::barrier(world);
    if (what == 0) muster::receive(world, data, 1, soon);
    if (what == 1) muster::send_async(world, data, 1, soon).wait();
    if (what == 2) muster::probe(world, muster::any_rank, soon);
  });
  const auto texts = texts_by_rank(thrown);
  INFO(texts[0] << "\n" << texts[1]);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(thrown[rank]);
    CHECK(muster::exit_status_of(thrown[rank]) == static_cast<int>(muster::error_kind::timeout));
    CHECK_THAT(texts[rank], contains("with tag 2 did not finish in 0.2"));
  }
}

TEST_CASE("the deadline of an outstanding message begins with the wait for it, and not for other work") {
  const auto over = GENERATE(test::fabric::threads, test::fabric::shm);
  const bool threaded = GENERATE(false, true);
  const int what = GENERATE(0, 1, 2);
  const auto texts = texts_by_rank(
      test::outcomes(over, 2,
                     [&](muster::group& world) {
                       using namespace std::chrono_literals;
                       const int other = 1 - world.rank();
                       int early = -1, late = -1, own = other;
                       const muster::message_options soon{.tag = 1, .timeout = 1.5s};
                       auto pending = muster::receive_async(world, std::span(&early, 1), other, soon);
                       if (world.rank() == 1)
                         std::this_thread::sleep_for(2500ms);  // rank 0 waits here, for something else
                       if (what == 0) muster::barrier(world);
                       if (what == 1)
                         muster::send_receive(world, std::span(&own, 1), other, std::span(&late, 1), other);
                       if (what == 2) {
                         auto more = muster::receive_async(world, std::span(&late, 1), other);
                         muster::send(world, std::span(&own, 1), other);
                         while (!more.test()) std::this_thread::sleep_for(1ms);
                       }
                       muster::send(world, std::span(&own, 1), other, soon);
                       pending.wait();
                       test::require(early == world.rank(), "the message");
                     },
                     {.progress_thread = threaded}));
  for (const auto& text : texts) CHECK(text.empty());
}

TEST_CASE("the error of a message does not name the counts of the call that waits") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const auto texts = texts_by_rank(test::outcomes(over, 2, [&](muster::group& world) {
    std::vector<int> data(10), all(15);
    if (world.rank() == 0) {
      auto pending = muster::receive_async(world, std::span(data).first(3), 1);
      muster::allgather(world, data, all, std::vector<std::size_t>{10, 5});
    } else {
      muster::send(world, data, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      muster::allgather(world, std::span(data).first(5), all, std::vector<std::size_t>{10, 5});
    }
  }));
  CHECK_THAT(texts[0], contains("does not fit"));
  for (const auto& text : texts) CHECK_THAT(text, !contains("this rank's counts"));
}

// Rank 1 sends in another order than rank 0 receives, and every rank waits in a third order.
TEST_CASE("thousands of messages may be outstanding, in any order") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const bool from_any = GENERATE(false, true);
  constexpr int count = 4000;
  const auto texts = texts_by_rank(test::outcomes(over, 2, [&](muster::group& world) {
    std::vector<int> data(count), order(count);
    std::iota(order.begin(), order.end(), 0);
    std::vector<muster::work> pending(count);
    for (int k = 0; k < count; ++k) {
      const int at = world.rank() == 0 ? k : count - 1 - k;
      const std::span<int> one(&data[static_cast<std::size_t>(at)], 1);
      const muster::message_options tag{.tag = at};
      if (world.rank() == 1) one[0] = 3 * at;
      pending[static_cast<std::size_t>(at)] = world.rank() == 1 ? muster::send_async(world, one, 0, tag)
                                              : from_any ? muster::receive_async(world, one, muster::any_rank, tag)
                                                         : muster::receive_async(world, one, 1, tag);
    }
    std::ranges::shuffle(order, std::minstd_rand(7));
    for (const int at : order) pending[static_cast<std::size_t>(at)].wait();
    for (int at = 0; at < count; ++at) test::require(data[static_cast<std::size_t>(at)] == 3 * at, "a message");
  }));
  for (const auto& text : texts) CHECK(text.empty());
}

TEST_CASE("a rank that waits for a message of a rank that has left or failed is told so") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const bool fails = GENERATE(true, false);
  const int from = GENERATE(1, muster::any_rank);
  const auto thrown = test::outcomes(over, 2, [&](muster::group& world) {
    std::vector<int> data(10);
    if (world.rank() == 0) {
      muster::receive(world, data, 1);  // was sent before the rank left
      test::require(data[3] == 5, "the message of a rank that left");
      muster::receive(world, data, from);
    } else {
      std::fill(data.begin(), data.end(), 5);
      auto sent = muster::send_async(world, data, 0);
      sent.wait();
      if (fails) throw muster::data_error({.file = "part"}, "bad record");
    }
  });
  REQUIRE(thrown[0]);
  CHECK_THAT(muster::describe(thrown[0]), contains(fails ? "bad record" : "rank 1 is gone"));
}
