// Ranks that share each batch by their speed.
#include "train/speed_balance.hpp"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
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
                    "a batch cannot be shared by 2 weights (of 3 ranks); give each rank one");
}

TEST_CASE("weights by speed: an unknown one is a mean one, none is 0, and small changes are none") {
  using muster::detail::differ;
  using muster::detail::weights_by;
  CHECK(weights_by({0, 0}) == nullptr);
  CHECK(*weights_by({100, 100, 50}) == std::vector<std::uint32_t>{4000, 4000, 2000});
  CHECK(*weights_by({0, 100, 50}) == std::vector<std::uint32_t>{3333, 4444, 2222});
  CHECK(*weights_by({1e-9, 1}) == std::vector<std::uint32_t>{1, 10000});
  CHECK_FALSE(differ(weights_of({5000, 5000}), weights_of({5200, 4800})));
  CHECK(differ(weights_of({5000, 5000}), weights_of({5300, 4700})));
  CHECK(differ(nullptr, weights_of({5000, 5000})));
  CHECK_FALSE(differ(nullptr, nullptr));
}

TEST_CASE("a rank that takes longer for a sample gets fewer of them, and each is used once") {
  std::atomic<std::uint64_t> slow{0};
  std::atomic<std::uint64_t> all{0};
  test::as_ranks(3,
                 [&](muster::context& context, muster::group& world) {
                   test::trained here(context);
                   here.training.run({.epochs = 10, .log = nullptr}, [&](muster::training_step& step) {
                     const auto batch = step.next(here.loader);
                     const auto each = std::chrono::milliseconds(world.rank() == 2 ? 10 : 1);
                     std::this_thread::sleep_for(each * static_cast<int>(batch.samples.size()));
                     step.backward(batch, [&](const auto& part, auto& to) { here.gradient(part, to); });
                     step.update(here.optimizer, 0.5);
                     all += batch.samples.size();
                     if (world.rank() == 2) slow += batch.samples.size();
                   });
                   for (const auto& one : here.training.epochs()) test::require(one.samples == 40, "each sample once");
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
                     test::trained here(context);
                   } catch (const muster::configuration_error& error) {
                     return test::require(std::string(error.what()).starts_with("--balance"), error.what());
                   }
                   test::require(false, "it is refused");
                 },
                 {"--balance", "speed", "--mode", mode});
}
