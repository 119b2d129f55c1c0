// All collectives against a sequential oracle, on ranks that are threads.
#include "catch.hpp"
#include "comm/oracle.hpp"
#include "comm/ranks.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <muster/comm/algorithms/chain.hpp>
#include <muster/comm/algorithms/chooser.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/reduce.hpp>
#include <muster/comm/collectives/reduce_scatter.hpp>

#include <iostream>

namespace {

// Requires that no rank has failed. The first text is from a rank that found an error itself; the others only report
// that this rank failed.
void require_all_right(const std::vector<std::exception_ptr>& thrown) {
  std::string texts;
  for (const auto& failure : thrown) {
    if (failure) texts += muster::describe(failure) + "\n";
  }
  INFO(texts);
  REQUIRE(texts.empty());
}

void compare_with_oracle(test::fabric over, std::uint64_t cases) {
  const auto list = test::cases_of_run(cases, 9);
  std::cout << "seed " << list.seed << " (MUSTER_TEST_SEED sets another)\n";
  for (int ranks = 1; ranks <= 9; ++ranks)
    require_all_right(test::outcomes(over, ranks, [&](muster::group& world) { test::check_cases(list, world); }));
}

}  // namespace

TEST_CASE("every collective equals its oracle over threads", "[oracle][slow]") {
  compare_with_oracle(test::fabric::threads, 9000);
}
TEST_CASE("every collective equals its oracle over hosts", "[oracle][slow]") {
  compare_with_oracle(test::fabric::hierarchical, 4500);
}
#ifdef MUSTER_HAS_TCP
TEST_CASE("every collective equals its oracle over hosts joined by tcp", "[oracle][slow]") {
  compare_with_oracle(test::fabric::hierarchical_over_tcp, 1500);
}
#endif
TEST_CASE("every collective equals its oracle over shm", "[oracle][slow]") {
  compare_with_oracle(test::fabric::shm, 9000);
}
#ifdef MUSTER_HAS_TCP
TEST_CASE("every collective equals its oracle over tcp", "[oracle][slow]") {
  compare_with_oracle(test::fabric::tcp, 4500);
}
#endif

// The root of a broadcast and the leaves of a reduction wait for no rank: the transport must bound how far they get
// ahead.
TEST_CASE("what a rank has sent stays until the slowest has it", "[slow]") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  using muster::collective;
  for (const int ranks : {2, 3, 5}) {
    require_all_right(test::outcomes(over, ranks, [&](muster::group& world) {
      muster::random_stream random(20261121, static_cast<std::uint64_t>(ranks));
      for (int burst = 0; burst < 40; ++burst) {
        constexpr collective kinds[] = {collective::broadcast, collective::reduce, collective::scatter,
                                        collective::gather};
        test::scenario s;
        s.kind = kinds[random.below(std::size(kinds))];
        s.root = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
        const std::uint64_t largest = random.below(8) == 0 ? 20000 : random.below(2) == 0 ? 300 : 12;
        for (int i = 0; i < 40; ++i) {
          s.seed = random();
          s.count = 1 + random.below(largest);
          s.delays = random.below(10) == 0;
          test::check(s, world);
        }
      }
    }));
  }
}

TEST_CASE("large buffers equal the oracle by every algorithm of allreduce", "[slow]") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  for (const int ranks : {2, 3, 5}) {
    for (const std::uint32_t registered : {0u, 0xffu}) {
      require_all_right(test::outcomes(over, ranks, [&](muster::group& world) {
        for (const auto name : muster::algorithms_of(muster::collective::allreduce)) {
          if (name == muster::algorithm::native && !world.abilities().native_collectives) continue;
          test::scenario s;
          s.seed = 20261121;
          s.algorithm = name;
          s.count = (std::size_t{1} << 20) + 7;
          s.in_place = true;
          s.registered_in = registered;
          test::check(s, world);
        }
      }));
    }
  }
}

TEST_CASE("of more ranks than a case's masks have bits, all have registered memory as often as of fewer") {
  for (const int ranks : {3, 31, 32, 33, 64, 100}) {
    muster::random_stream random(20261121);
    int at_all = 0;
    for (int number = 0; number < 200; ++number) {
      const auto description = test::draw(random, ranks, {}).describe(ranks);
      if (description.find("input registered, output registered") != std::string::npos) ++at_all;
    }
    INFO(ranks);
    CHECK(at_all > 50);
  }
}

TEST_CASE("a chain passes on every chunk, whole or not") {
  const auto over = GENERATE(from_range(test::fabrics()));
  constexpr std::size_t chunk = muster::detail::chain_chunk;
  for (const int ranks : {2, 3, 6}) {
    REQUIRE_NOTHROW(test::run_ranks(over, ranks, [&](muster::group& world) {
      for (const std::size_t bytes :
           {chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1, 3 * chunk, 7 * chunk + 5}) {
        for (int root = 0; root < world.size(); ++root) {
          test::scenario s;
          s.seed = 20261121 + bytes;
          s.kind = muster::collective::broadcast;
          s.algorithm = muster::algorithm::chain;
          s.type = muster::dtype::uint8;
          s.count = bytes;
          s.root = root;
          test::check(s, world);
        }
      }
    }));
  }
}

// Rounding makes a sum depend on its order: in any order, the sum must be the same at every rank.
TEST_CASE("every rank gets the same bits", "[slow]") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8}) {
    for (const auto name : muster::algorithms_of(muster::collective::allreduce)) {
      REQUIRE_NOTHROW(test::run_ranks(over, ranks, [&](muster::group& world) {
        if (name == muster::algorithm::native && !world.abilities().native_collectives) return;
        muster::random_stream random(3, static_cast<std::uint64_t>(world.rank()));
        std::vector<float> data(1003);
        for (auto& x : data) x = static_cast<float>(random.normal() * std::exp(4 * random.normal()));
        data[5] = std::numeric_limits<float>::quiet_NaN();
        // Not commutative in its bits: the result for two equal magnitudes depends on the side.
        const auto odd = [](float a, float b) { return a * 1.25f + b; };
        auto user = data;
        muster::allreduce(world, data, muster::mean, {.algorithm = name});
        muster::allreduce(world, user, odd, {.algorithm = name});
        data.insert(data.end(), user.begin(), user.end());
        auto reference = data;
        muster::broadcast(world, reference, 0);
        if (std::memcmp(reference.data(), data.data(), data.size() * sizeof(float)) != 0) {
          throw std::runtime_error("rank " + std::to_string(world.rank()) + " has other bits than rank 0 by " +
                                   std::string(to_string(name)));
        }
      }));
    }
  }
}

namespace {

// Checks the mean of values that fit T although their sum does not, with every collective that supports mean.
template <class T>
void check_mean(muster::group& world, std::size_t count, const std::vector<T>& values, T expected) {
  const T mine = values[static_cast<std::size_t>(world.rank())];
  const auto require_mean = [&](const auto& got, const char* operation) {
    for (const T value : got) {
      if (value == expected) continue;
      throw std::runtime_error(std::string(operation) + " of " + std::string(to_string(muster::type_code_of<T>())) +
                               " is " + std::to_string(static_cast<double>(value)) + ", not " +
                               std::to_string(static_cast<double>(expected)));
    }
  };
  require_mean(std::array{muster::allreduce(world, mine, muster::mean)}, "the mean");
  for (const auto name : muster::algorithms_of(muster::collective::allreduce)) {
    if (name == muster::algorithm::native && !world.abilities().native_collectives) continue;
    const auto in = std::make_unique<T[]>(count);
    const auto out = std::make_unique<T[]>(count);
    std::fill_n(in.get(), count, mine);
    muster::allreduce(world, std::span(std::as_const(in).get(), count), std::span(out.get(), count), muster::mean,
                      {.algorithm = name});
    require_mean(std::span(out.get(), count), "allreduce");
    auto work = muster::allreduce_async(world, std::span(in.get(), count), muster::mean, {.algorithm = name});
    work.wait();
    require_mean(std::span(in.get(), count), "allreduce_async");
  }
  const auto in = std::make_unique<T[]>(count);
  const auto out = std::make_unique<T[]>(count);
  std::fill_n(in.get(), count, mine);
  const std::span<const T> all(in.get(), count);
  muster::reduce(world, all, std::span(out.get(), world.rank() == 1 ? count : 0), muster::mean, 1);
  if (world.rank() == 1) require_mean(std::span(out.get(), count), "reduce");
  const auto part = muster::block_of(count, world.rank(), world.size()).count;
  muster::reduce_scatter(world, all, std::span(out.get(), part), muster::mean);
  require_mean(std::span(out.get(), part), "reduce_scatter");
  for (std::size_t i = 0; i < count; ++i)
    if (in[i] != mine) throw std::runtime_error("the input was changed");
}

}  // namespace

TEST_CASE("a mean that fits its type does not overflow, nor does it lose what its type can tell") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const std::size_t count = GENERATE(std::size_t{1}, std::size_t{777}, std::size_t{70001});
  CAPTURE(over, count);
  REQUIRE_NOTHROW(test::run_ranks(over, 3, [&](muster::group& world) {
    constexpr auto most = std::numeric_limits<std::int64_t>::max();
    check_mean<bool>(world, count, {true, true, true}, true);
    check_mean<bool>(world, count, {true, false, true}, false);
    check_mean<signed char>(world, count, {100, 120, -1}, 73);
    check_mean<char>(world, count, {100, 120, 101}, 107);
    check_mean<unsigned char>(world, count, {200, 250, 249}, 233);
    check_mean<std::int16_t>(world, count, {-30000, -32768, -2}, -20923);
    check_mean<std::uint16_t>(world, count, {60000, 65535, 60000}, 61845);
    check_mean<std::int32_t>(world, count, {2000000000, 2147483647, 1}, 1382494549);
    check_mean<std::uint32_t>(world, count, {4000000000u, 4294967295u, 4000000000u}, 4098322431u);
    check_mean<std::int64_t>(world, count, {most, most, most - 1}, most - 1);
    check_mean<std::int64_t>(world, count, {-most, -most, most}, -(most / 3));
    check_mean<std::int64_t>(world, count, {4, -1, -1}, 0);
    check_mean<std::int64_t>(world, count, {-7, 1, 1}, -1);
    check_mean<std::uint64_t>(world, count, {~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0}},
                              ~std::uint64_t{0});
    check_mean<muster::float16>(world, count, {40000.0f, 60000.0f, 50000.0f}, 50000.0f);
    check_mean<muster::float16>(world, count, {2048.0f, 1.0f, 1.0f}, 683.5f);
    check_mean<muster::bfloat16>(world, count, {3e38f, 3e38f, 3e38f}, 3e38f);
    if (std::abs(muster::allreduce(world, 3e38f, muster::mean) / 3e38f - 1) > 1e-6f) throw std::runtime_error("float");
    if (!std::isfinite(muster::allreduce(world, 1.7e308, muster::mean))) throw std::runtime_error("double");
  }));
}

TEST_CASE("means of other types are told from one another, though their sums have one type") {
  const auto over = GENERATE(from_range(test::fabrics()));
  for (const auto& thrown : test::outcomes(over, 2, [](muster::group& world) {
         std::vector<std::int8_t> small(64);
         std::vector<std::int16_t> large(64);
         if (world.rank() == 0)
           muster::allreduce(world, small, muster::mean);
         else
           muster::allreduce(world, large, muster::mean);
         muster::barrier(world);
       })) {
    REQUIRE(thrown);
    CHECK_THAT(muster::describe(thrown), contains("disagree"));
  }
}

TEST_CASE("a NaN on one rank is a NaN in the minimum and the maximum of all") {
  test::run_ranks(GENERATE(from_range(test::fabrics())), 3, [](muster::group& world) {
    const float mine = world.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    if (!std::isnan(muster::allreduce(world, mine, muster::min))) throw std::runtime_error("min lost it");
    if (!std::isnan(muster::allreduce(world, mine, muster::max))) throw std::runtime_error("max lost it");
  });
}

TEST_CASE("many works in flight finish in their order") {
  test::run_ranks(GENERATE(from_range(test::fabrics())), 4, [](muster::group& world) {
    std::vector<std::vector<double>> data;
    std::vector<muster::work> works;
    for (std::size_t i = 0; i < 50; ++i) data.emplace_back(100 + i, static_cast<double>(world.rank() + 1));
    for (auto& buffer : data) works.push_back(muster::allreduce_async(world, buffer, muster::sum));
    works.back().wait();
    for (auto& work : works) {
      if (!work.test()) throw std::runtime_error("an earlier work is not done when a later one is");
    }
    for (const auto& buffer : data) {
      for (const double x : buffer) {
        if (x != 10.0) throw std::runtime_error("wrong sum");
      }
    }
  });
}

namespace {

// A transport that counts sends and bytes.
class counting_transport final : public muster::transport_decorator {
 public:
  counting_transport(std::shared_ptr<muster::thread_hub> hub, int rank, int& sends, std::size_t& bytes)
      : transport_decorator(std::make_unique<muster::thread_transport>(std::move(hub), rank)),
        sends_(sends),
        bytes_(bytes) {}
  void send(muster::request& r) override {
    ++sends_;
    bytes_ += r.bytes;
    inner().send(r);
  }

 private:
  int& sends_;
  std::size_t& bytes_;
};
}  // namespace

namespace {

// The number of sends and bytes per rank while all ranks run the body.
struct traffic {
  traffic(int ranks, const std::function<void(muster::group&)>& body)
      : sends(static_cast<std::size_t>(ranks), 0), bytes(sends.size(), 0) {
    auto hub = std::make_shared<muster::thread_hub>(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto r = static_cast<std::size_t>(rank);
        muster::group world(std::make_unique<counting_transport>(hub, rank, sends[r], bytes[r]));
        body(world);
      });
    }
    for (auto& thread : threads) thread.join();
  }

  std::vector<int> sends;
  std::vector<std::size_t> bytes;
};

}  // namespace

TEST_CASE("a ring allreduce is exactly 2(N-1) steps of one block") {
  for (const int ranks : {2, 3, 4, 7}) {
    const auto n = static_cast<std::size_t>(ranks);
    const traffic counted(ranks, [](muster::group& world) {
      std::vector<float> data(840, 1.0f);
      muster::allreduce(world, data, muster::sum, {.algorithm = muster::algorithm::ring});
    });
    for (std::size_t r = 0; r < n; ++r) {
      CHECK(counted.sends[r] == 2 * (ranks - 1));
      CHECK(counted.bytes[r] == 2 * (n - 1) * 840 * sizeof(float) / n);
    }
  }
}

TEST_CASE("a chain broadcast sends every byte over every link once, in chunks") {
  for (const int ranks : {2, 3, 5}) {
    constexpr std::size_t all = 5 * muster::detail::chain_chunk + 100;
    const int root = 1;
    const traffic counted(ranks, [](muster::group& world) {
      std::vector<std::uint8_t> data(all, 1);
      muster::broadcast(world, data, root, {.algorithm = muster::algorithm::chain});
    });
    for (int rank = 0; rank < ranks; ++rank) {
      const bool last = (rank + 1) % ranks == root;
      CHECK(counted.sends[static_cast<std::size_t>(rank)] == (last ? 0 : 6));
      CHECK(counted.bytes[static_cast<std::size_t>(rank)] == (last ? 0 : all));
    }
  }
}
