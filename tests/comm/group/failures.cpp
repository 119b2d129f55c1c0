// Failures of groups: disagreement, deadlines, ranks that abort or leave.
#include <muster/comm/group.hpp>

#include <array>
#include <atomic>
#include <latch>
#include <memory>
#include <thread>

#include <muster/comm/bootstrap/rank_threads.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/gather.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "require.hpp"

namespace {

using namespace std::chrono_literals;

using test::require;

std::string text_of(const std::exception_ptr& thrown) { return thrown ? muster::describe(thrown) : ""; }

template <class Error>
bool is(const std::exception_ptr& thrown) {
  if (!thrown) return false;
  try {
    std::rethrow_exception(thrown);
  } catch (const Error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

TEST_CASE("ranks that disagree are told, all of them") {
  const auto over = GENERATE(from_range(test::fabrics()));
  struct way {
    const char* name;
    std::function<void(muster::group&, std::vector<float>&)> odd;   // the calls of rank 1
    std::function<void(muster::group&, std::vector<float>&)> even;  // the calls of the other ranks
  };
  const std::vector<way> ways = {
      {"operation", [](auto& g, auto& v) { muster::allreduce(g, v, muster::sum); },
       [](auto& g, auto& v) { muster::allreduce(g, v, muster::max); }},
      {"collective", [](auto& g, auto& v) { muster::broadcast(g, v, 0); },
       [](auto& g, auto& v) { muster::allreduce(g, v, muster::sum); }},
      {"count", [](auto& g, auto& v) { muster::allreduce(g, std::span(v).first(7), muster::sum); },
       [](auto& g, auto& v) { muster::allreduce(g, v, muster::sum); }},
      {"type",
       [](auto& g, auto& v) {
         muster::allreduce(g, std::span(reinterpret_cast<std::int32_t*>(v.data()), v.size()), muster::sum);
       },
       [](auto& g, auto& v) { muster::allreduce(g, v, muster::sum); }},
      {"root", [](auto& g, auto& v) { muster::broadcast(g, v, 1); },
       [](auto& g, auto& v) { muster::broadcast(g, v, 0); }},
      // Each waits for the other: no message arrives that could be compared.
      {"root, both waiting", [](auto& g, auto& v) { muster::broadcast(g, v, 0); },
       [](auto& g, auto& v) { muster::broadcast(g, v, 1); }},
      {"algorithm",
       [](auto& g, auto& v) { muster::allreduce(g, v, muster::sum, {.algorithm = muster::algorithm::ring}); },
       [](auto& g, auto& v) { muster::allreduce(g, v, muster::sum, {.algorithm = muster::algorithm::tree}); }},
      {"a call more", [](auto& g, auto&) { muster::barrier(g); }, [](auto&, auto&) {}},
  };
  for (const int ranks : {2, 3, 5}) {
    for (const auto& way : ways) {
      INFO(way.name << ", " << ranks << " ranks");
      const auto start = muster::clock::now();
      const auto thrown = test::outcomes(over, ranks, [&](muster::group& world) {
        std::vector<float> data(64, 1.0f);
        (world.rank() == 1 ? way.odd : way.even)(world, data);
        (void)muster::allreduce(world, 1.0, muster::sum);  // "in this call or its next"
        muster::barrier(world);
      });
      bool named = false;
      for (const auto& e : thrown) {
        CHECK(e != nullptr);
        named = named || is<muster::mismatch_error>(e);
        CHECK(text_of(e).find("disagree") != std::string::npos);
      }
      CHECK(named);
      CHECK(muster::seconds_since(start) < 15);  // half the deadline: the deadline did not end it
    }
  }
}

TEST_CASE("a rank that never comes is named at the deadline, and the group refuses more with that cause") {
  const auto over = GENERATE(from_range(test::fabrics()));
  std::atomic<int> failed_ranks{0};
  const auto thrown = test::outcomes(over, 4, [&](muster::group& world) {
    if (world.rank() == 2) {  // calls when the others have failed
      for (int seen = 0; seen < 3; seen = failed_ranks) failed_ranks.wait(seen);
      (void)muster::allreduce(world, 1.0f, muster::sum);  // the others' contributions may still arrive
      muster::barrier(world);
      return;
    }
    float x = 1;
    std::string first;
    try {
      muster::allreduce(world, std::span(&x, 1), muster::sum, {.timeout = muster::seconds(1.5)});
    } catch (const muster::error& cause) {
      first = cause.what();
    }
    ++failed_ranks;
    failed_ranks.notify_all();
    try {
      muster::barrier(world);
    } catch (const muster::error& again) {
      require(first == again.what(), "the first cause stays");
      throw;
    }
    throw std::runtime_error("the group works on after an error");
  });
  bool timed_out = false;
  for (const auto& e : thrown) {
    REQUIRE(e);
    INFO(text_of(e));
    CHECK(text_of(e).find("allreduce, collective 0 of its group, did not finish in 1.5 s (not seen in it: rank 2)") !=
          std::string::npos);
    if (!is<muster::timeout_error>(e)) continue;
    timed_out = true;
    try {
      std::rethrow_exception(e);
    } catch (const muster::timeout_error& late) {
      CHECK(late.operation() == "allreduce");
      CHECK(late.sequence() == 0);
      CHECK(late.missing() == std::vector<int>{2});
    }
  }
  CHECK(timed_out);
  INFO(text_of(thrown[2]));
  CHECK(is<muster::peer_failure>(thrown[2]));
}

TEST_CASE("split ends at the deadline of the group where a rank goes only half of its way") {
  const auto over = GENERATE(from_range(test::fabrics()));
  std::atomic<int> failed_ranks{0};
  const auto thrown =
      test::outcomes(over, 3,
                     [&](muster::group& world) {
                       if (world.rank() == 1) {  // a split first exchanges a color and a key
                         const int mine[2] = {0, 0};
                         std::vector<int> all(6);
                         muster::allgather(world, mine, all);
                         for (int looks = 0; failed_ranks < 2 && looks < 2000; ++looks)
                           std::this_thread::sleep_for(10ms);
                         require(failed_ranks == 2, "the others did not wait for as long as this rank was away");
                         return;
                       }
                       try {
                         (void)world.split(0);
                       } catch (...) {
                         ++failed_ranks;
                         require(world.failed(), "the group refuses more");
                         throw;
                       }
                     },
                     {.timeout = muster::seconds(1.5)});
  CHECK(text_of(thrown[1]) == "");
  for (const std::size_t rank : {0u, 2u}) {
    INFO(text_of(thrown[rank]));
    CHECK(text_of(thrown[rank]).find("did not finish in 1.5 s (not seen in it: rank 1)") != std::string::npos);
  }
}

TEST_CASE("a rank that gives up wakes all waiting ranks, with its reason and its status, in groups made from it too") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const auto start = muster::clock::now();
  const auto thrown = test::outcomes(over, 4, [](muster::group& world) {
    struct slow_end {  // an exception destroys the child groups before the world is notified
      bool is_slow;
      ~slow_end() {
        if (is_slow) std::this_thread::sleep_for(60ms);
      }
    } const end{world.rank() == 3};
    auto half = world.split(world.rank() / 2);
    if (world.rank() == 3) throw muster::data_error({"train.txt", 7, 2}, "bad number 'x' (not a decimal) correct it");
    muster::barrier(half);   // rank 2 waits for rank 3, in a group that rank 3 does not use again
    muster::barrier(world);  // ranks 0 and 1 wait here
  });
  for (const int rank : {0, 1, 2}) {
    const auto& e = thrown[static_cast<std::size_t>(rank)];
    REQUIRE(is<muster::peer_failure>(e));
    CHECK(text_of(e).find("train.txt:7:2") != std::string::npos);
    CHECK(muster::exit_status_of(e) == 3);
    try {
      std::rethrow_exception(e);
    } catch (const muster::peer_failure& failure) {
      CHECK(failure.ranks() == std::vector<int>{3});
    }
  }
  CHECK(muster::seconds_since(start) < 15);
}

TEST_CASE("a rank that leaves while others need it is named to them, and not by their deadline") {
  const auto start = muster::clock::now();
  const auto thrown = test::outcomes(test::fabric::shm, 3, [](muster::group& world) {
    auto twin = world.duplicate();
    muster::barrier(world);
    if (world.rank() == 1) return;
    muster::barrier(world.rank() == 0 ? world : twin);
  });
  CHECK(thrown[1] == nullptr);
  for (const std::size_t rank : {0u, 2u}) {
    REQUIRE(is<muster::peer_failure>(thrown[rank]));
    CHECK(text_of(thrown[rank]).find("rank 1 is gone") != std::string::npos);
  }
  CHECK(muster::seconds_since(start) < 15);
}

// Within a host ranks have other numbers than in the group.
TEST_CASE("a rank that leaves its host is named by its number in the group") {
  const auto thrown = test::outcomes(test::fabric::hierarchical, 3, [](muster::group& world) {
    muster::barrier(world);
    if (world.rank() != 2) muster::barrier(world);  // on the host of rank 0, and its second rank
  });
  CHECK(thrown[2] == nullptr);
  REQUIRE(is<muster::peer_failure>(thrown[0]));
  // Rank 1, which is on another host, may have been the first to report it.
  CHECK(text_of(thrown[0]).find("rank 2 is gone") != std::string::npos);
}

TEST_CASE("what a user's reduction throws at one rank is that rank's failure at every rank") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const auto name = GENERATE(muster::algorithm::automatic, muster::algorithm::ring, muster::algorithm::tree,
                             muster::algorithm::recursive_doubling, muster::algorithm::halving_doubling);
  const std::size_t count = GENERATE(std::size_t{3}, std::size_t{1000}, std::size_t{200000});
  const bool is_standard = GENERATE(true, false);
  CAPTURE(over, name, count, is_standard);
  constexpr int ranks = 4, odd = 0;  // rank 0 combines in every algorithm
  const auto thrown = test::outcomes(over, ranks, [&](muster::group& world) {
    const auto combine = [me = world.rank(), is_standard](double a, double b) {
      if (me == odd && is_standard) throw std::runtime_error("bad value in my reduction");
      if (me == odd) throw 42;
      return a + b;
    };
    // With few cores another rank may do its part, and not all ranks need the odd rank at once.
    for (int round = 0; round < 50; ++round) {
      std::vector<double> data(count, 1.0);
      muster::allreduce(world, data, combine, {.algorithm = name});
      for (const double value : data) require(value == ranks, "nothing half reduced");
    }
    muster::barrier(world);
  });
  const std::string text = is_standard ? "bad value in my reduction" : "unknown exception";
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& failure = thrown[static_cast<std::size_t>(rank)];
    CAPTURE(rank, text_of(failure));
    REQUIRE(failure);
    CHECK(text_of(failure).find(text) != std::string::npos);
    CHECK(is<muster::peer_failure>(failure) == (rank != odd));
    CHECK(muster::exit_status_of(failure) == 1);
  }
}

// Calls gather at rank 0 with the wrong argument, and requires that the call is refused.
void require_refused_gather(muster::group& world, const std::string& wrong_argument, std::span<const float> in,
                            std::span<float> out) {
  try {
    if (wrong_argument == "size") muster::gather(world, in, out.first(7), 0);
    if (wrong_argument == "root") muster::gather(world, in, out, 3);
    if (wrong_argument == "timeout") muster::gather(world, in, out, 0, {.timeout = muster::seconds(-1)});
    if (wrong_argument == "algorithm")
      muster::gather(world, in, out, 0, {.algorithm = muster::algorithm::halving_doubling});
  } catch (const muster::configuration_error&) {
    return;
  }
  throw std::runtime_error("accepted");
}

TEST_CASE("a rank that leaves after a call with wrong arguments tells those that wait in it") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const std::string wrong_argument = GENERATE("size", "root", "timeout", "algorithm");
  CAPTURE(over, wrong_argument);
  const auto thrown = test::outcomes(over, 3, [&](muster::group& world) {
    std::vector<float> in(4), out(12);
    if (world.rank() != 0) return muster::gather(world, in, out, wrong_argument == "root" ? 1 : 0);
    require_refused_gather(world, wrong_argument, in, out);
  });
  CHECK_FALSE(thrown[0]);
  const std::string text = wrong_argument == "size"        ? "has 7 elements"
                           : wrong_argument == "root"      ? "cannot be rank 3"
                           : wrong_argument == "algorithm" ? "cannot run by halving_doubling"
                                                           : "cannot be -1";
  bool waited = false;  // the other ranks may be done if they only send
  for (const std::size_t rank : {1u, 2u}) {
    if (!thrown[rank]) continue;
    waited = true;
    CAPTURE(text_of(thrown[rank]));
    CHECK(is<muster::peer_failure>(thrown[rank]));
    CHECK(text_of(thrown[rank]).find(text) != std::string::npos);
  }
  CHECK((waited || wrong_argument != "root"));
}

TEST_CASE("a rank that makes the call rightly after one with wrong arguments goes on with the others") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const std::string wrong_argument = GENERATE("size", "root", "timeout", "algorithm");
  CAPTURE(over, wrong_argument);
  test::run_ranks(over, 3, [&](muster::group& world) {
    const std::vector<float> in(4, float(world.rank() + 1));
    std::vector<float> out(12);
    for (int round = 0; round < 3; ++round) {
      if (world.rank() == 0) {
        require_refused_gather(world, wrong_argument, in, out);
        std::this_thread::sleep_for(20ms);  // the other ranks wait in the call
        if (round == 1) require_refused_gather(world, wrong_argument, in, out);
      }
      muster::gather(world, in, out, 0);
      if (world.rank() == 0)
        require(out[0] == 1 && out[4] == 2 && out[11] == 3, "the gathered values are those of all");
      require(muster::allreduce(world, world.rank() + 1, muster::sum) == 6, "later calls match");
    }
  });
}

TEST_CASE("a rank that makes another call after one with wrong arguments is told, as are all") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  CAPTURE(over);
  const auto start = muster::clock::now();
  const auto thrown = test::outcomes(over, 3, [&](muster::group& world) {
    const std::vector<float> in(4, 1.0f);
    std::vector<float> out(12);
    if (world.rank() == 0)
      require_refused_gather(world, "size", in, out);
    else
      muster::gather(world, in, out, 0);
    muster::allreduce(world, out, muster::sum);
    muster::barrier(world);
  });
  for (const auto& failure : thrown) {
    CAPTURE(text_of(failure));
    CHECK(failure != nullptr);
    CHECK(text_of(failure).find("disagree") != std::string::npos);
  }
  CHECK(muster::seconds_since(start) < 15);
}

// The buffer of a work that ended with an error is freed at once: the address sanitizer detects any later write.
TEST_CASE("after an error no rank touches the buffers any more", "[slow]") {
  const auto over = GENERATE(from_range(test::fabrics()));
  for (int round = 0; round < 50; ++round) {
    test::outcomes(over, 4, [&](muster::group& world) {
      muster::random_stream random(static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(world.rank()));
      auto data = std::make_unique<std::vector<float>>(20000, 1.0f);
      try {
        for (int i = 0; i < 20; ++i) {
          if (world.rank() == round % 4 && i == round % 20) throw std::runtime_error("planned");
          auto work = muster::allreduce_async(world, *data, muster::sum);
          if (random.below(2) == 0) work.wait();
        }
      } catch (...) {
        world.abort("planned");
      }
      data.reset();
    });
  }
}

TEST_CASE("threads that wait in duplicates of a group hear of its end, each by itself", "[slow]") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const bool leaves = GENERATE(false, true);
  CAPTURE(over, leaves);
  const int rounds = leaves ? 2 : 20;
  for (int round = 0; round < rounds; ++round) {
    // the errors of the two threads of rank 0, and of the two threads of rank 1
    std::array<std::exception_ptr, 4> ends;
    std::latch both(2);
    test::run_ranks(over, 2, [&](muster::group& world) {
      std::vector<muster::group> twins;  // in each group one rank waits for the other, which does not call
      for (std::size_t i = 0; i < ends.size(); ++i) twins.push_back(world.duplicate());
      both.arrive_and_wait();
      const bool ends_it = world.rank() == 1;
      if (ends_it && leaves) return;
      std::vector<std::thread> waiting;
      for (std::size_t i = ends_it ? 2u : 0u; waiting.size() < 2; ++i) {
        waiting.emplace_back([&, i] {
          try {
            muster::barrier(twins[i]);
          } catch (...) {
            ends[i] = std::current_exception();
          }
        });
      }
      if (ends_it) {
        std::this_thread::sleep_for(1ms * (round % 4));
        world.abort("had enough");
      }
      for (auto& thread : waiting) thread.join();
    });
    for (std::size_t i = 0; i < (leaves ? 2 : ends.size()); ++i) {
      CAPTURE(i, text_of(ends[i]));
      CHECK(is<muster::peer_failure>(ends[i]));
    }
  }
}

// The child's thread also polls the parent for the reason of an end. This was a data race if the parent took no lock.
TEST_CASE("a rank whose world fails on the thread of its child's calls settles with the reason") {
  std::latch child_works(1);
  std::string reported;
  test::run_ranks(2,
                  [&](muster::group& world) {
                    auto child = world.split(0);
                    if (world.rank() == 1) {
                      child_works.wait();
                      (void)muster::detail::agree_on_exit_status_of_world(
                          world, std::make_exception_ptr(std::runtime_error("broken")));
                      return;
                    }
                    auto work = muster::barrier_async(child);
                    child_works.count_down();
                    std::this_thread::sleep_for(200ms);  // this thread does not use the world meanwhile
                    reported = muster::detail::agree_on_exit_status_of_world(world, nullptr).text;
                  },
                  {.progress_thread = true});
  CHECK_THAT(reported, contains("broken"));
}
