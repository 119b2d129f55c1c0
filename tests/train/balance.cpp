// Ranks that share each batch by their speed.
#include <muster/train/speed_balance.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/training.hpp>

#include "catch.hpp"
#include "trained.hpp"

namespace {

muster::rank_weights weights_of(std::vector<std::uint32_t> weights) {
  return std::make_shared<const std::vector<std::uint32_t>>(std::move(weights));
}

}  // namespace

TEST_CASE("parts by weights are disjoint, in order, whole, and as large as their weights") {
  muster::random_stream draw(20261126, 1);
  for (int round = 0; round < 2000; ++round) {
    CAPTURE(round);
    const int world = 1 + static_cast<int>(draw.below(6));
    const std::uint64_t count = draw.below(2000);
    const int shards = draw.below(2) == 0 ? 0 : 1 + static_cast<int>(draw.below(20));
    std::vector<std::uint32_t> weights(static_cast<std::size_t>(world));
    for (auto& weight : weights) weight = static_cast<std::uint32_t>(draw.below(10000));
    weights.back() += 1;
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::uint64_t before = 0;
    for (int rank = 0; rank < world; ++rank) {
      const auto part = muster::part_of(count, {rank, world, shards, weights_of(weights)});
      CHECK(part.first == before);
      before = part.last;
      const double share = weights[static_cast<std::size_t>(rank)] / all;
      const double unit = shards == 0 ? 1.0 : std::ceil(static_cast<double>(count) / shards);
      CHECK(std::abs(static_cast<double>(part.size()) - share * static_cast<double>(count)) <= 2 * unit);
    }
    CHECK(before == count);
  }
  CHECK_THROWS_WITH(muster::part_of(8, {0, 3, 0, weights_of({1, 2})}),
                    "a batch cannot be divided by 2 weights (there are 3 ranks); give every rank a weight");
}

TEST_CASE("weights by speed: an unknown one is a mean one, none is 0, and small changes are none") {
  using muster::detail::differ;
  using muster::detail::weights_by;
  CHECK(weights_by({0, 0}) == nullptr);
  CHECK(*weights_by({100, 100, 50}) == std::vector<std::uint32_t>{4000, 4000, 2000});
  CHECK(*weights_by({0, 100, 50}) == std::vector<std::uint32_t>{3333, 4444, 2222});
  CHECK(*weights_by({1e-9, 1}) == std::vector<std::uint32_t>{1, 10000});
  CHECK_FALSE(differ(weights_of({5000, 5000}), weights_of({5080, 4920})));
  CHECK(differ(weights_of({5000, 5000}), weights_of({5200, 4800})));
  CHECK_FALSE(differ(nullptr, weights_of({5000, 5000})));
  CHECK(differ(nullptr, weights_of({5200, 4800})));
  CHECK(differ(weights_of({5000, 5000}), weights_of({1, 1, 1})));
  CHECK(differ(weights_of({5000, 5000}), nullptr));
  CHECK_FALSE(differ(nullptr, nullptr));
}

namespace {

// A rank that processes this number of samples per second, in three ways: evenly, with random times, or under a
// quota, which runs the rank at full speed and then stops it until its period ends.
struct simulated_rank {
  double speed;
  double period = 0;  // period of a quota in seconds, a quarter of which the rank runs; 0: no quota
  double noise = 0;

  double time_of(std::uint64_t samples, muster::random_stream& draw) const {
    const double even = static_cast<double>(samples) / speed;
    if (period <= 0) return even * std::exp(noise * draw.normal() - noise * noise / 2);
    double work = even / 4, took = 0, until_stop = period / 4 * draw.uniform();
    for (; work > until_stop; work -= std::exchange(until_stop, period / 4)) took += until_stop + period * 3 / 4;
    return took + work;
  }
};

// The ranks' time for steps of 600 samples, compared to steps with parts by the ranks' speeds.
class simulated_job {
 public:
  explicit simulated_job(std::vector<simulated_rank> simulated)
      : ranks(std::move(simulated)), estimates_(ranks.size()) {}

  // Returns how much longer a step takes in the mean.
  double steps(int count) {
    double sum = 0;
    for (int k = 0; k < count; ++k) sum += step();
    return sum / count;
  }

  std::vector<simulated_rank> ranks;

 private:
  double step() {
    if (muster::detail::exchanges_speeds_after(step_++)) {
      std::vector<double> rates;
      for (auto& estimate : estimates_) rates.push_back(estimate.rate());
      auto next = muster::detail::weights_by(rates);
      if (muster::detail::differ(weights_, next)) weights_ = std::move(next);
    }
    double sum = 0, longest = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const auto samples =
          muster::part_of(600, {static_cast<int>(r), static_cast<int>(ranks.size()), 0, weights_}).size();
      estimates_[r].note(samples, ranks[r].time_of(samples, draw_));
      sum += ranks[r].speed;
      longest = std::max(longest, static_cast<double>(samples) / ranks[r].speed);
    }
    return longest * sum / 600 - 1;
  }

  std::vector<muster::detail::speed_estimate> estimates_;
  muster::rank_weights weights_;
  muster::random_stream draw_{20261126, 2};
  std::uint64_t step_ = 0;
};

}  // namespace

TEST_CASE("parts are by speed within 20 steps and stay so, also when a rank's speed changes") {
  const auto [name, period, noise, most] = GENERATE(table<std::string, double, double, double>({
      {"even", 0.0, 0.02, 0.02},
      {"a short quota", 0.01, 0.0, 0.02},
      {"a quota's period of a sixth of a step", 0.1, 0.0, 0.03},
      {"a period of half a step", 0.3, 0.0, 0.08},
      {"noise", 0.0, 0.2, 0.08},
  }));
  CAPTURE(name);
  simulated_job job({{400, period, noise}, {400, period, noise}, {200, period, noise}});
  job.steps(2);
  CHECK(job.steps(18) < 0.15);  // equal parts: 0.67
  CHECK(job.steps(20) < most);
  CHECK(job.steps(300) < most);
  job.ranks[1].speed = 100;  // measurements before this point must not delay the next parts
  job.steps(20);
  CHECK(job.steps(20) < most);
  job.ranks[1].speed = 400;
  job.steps(20);
  CHECK(job.steps(20) < most);
  CHECK(job.steps(300) < most);
}

TEST_CASE("a rank that takes longer for a sample gets fewer of them, and each is used once") {
  std::atomic<std::uint64_t> slow{0};
  std::atomic<std::uint64_t> all{0};
  test::as_ranks(3,
                 [&](muster::context& context, muster::group& world) {
                   test::trained fixture(context);
                   fixture.training.run({.epochs = 10, .log = nullptr}, [&](muster::training_step& step) {
                     const auto batch = step.next(fixture.loader);
                     const auto each = std::chrono::milliseconds(world.rank() == 2 ? 10 : 1);
                     std::this_thread::sleep_for(each * static_cast<int>(batch.samples.size()));
                     step.backward(batch, [&](const auto& part, auto& backward) { fixture.gradient(part, backward); });
                     step.update(fixture.optimizer, 0.5);
                     all += batch.samples.size();
                     if (world.rank() == 2) slow += batch.samples.size();
                   });
                   for (const auto& epoch : fixture.training.epochs())
                     test::require(epoch.samples == 40, "each sample once");
                 },
                 {"--balance", "speed"});
  CHECK(all == 400);
  CHECK(slow < all / 5);
}

TEST_CASE("ranks that do not exchange gradients do not share by speed") {
  const std::string mode = GENERATE("local-sgd:2", "allreduce-weights");
  test::as_ranks(2,
                 [&](muster::context& context, muster::group&) {
                   try {
                     test::trained fixture(context);
                   } catch (const muster::configuration_error& error) {
                     return test::require(std::string(error.what()).starts_with("--balance"), error.what());
                   }
                   test::require(false, "it is refused");
                 },
                 {"--balance", "speed", "--mode", mode});
}
