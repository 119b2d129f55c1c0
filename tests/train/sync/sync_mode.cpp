#include <muster/train/sync/sync_mode.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/random.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/sync/gradient_sync.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "elastic/numbers.hpp"
#include "require.hpp"
#include "train/heap.hpp"

namespace {

constexpr muster::gossip_graph graphs[] = {muster::gossip_graph::ring, muster::gossip_graph::torus,
                                           muster::gossip_graph::exponential};

using test::require;

// Returns the distance between the ranks: sqrt(sum over ranks of |values - mean|^2 / ranks).
double consensus_distance(muster::group& ranks, std::span<const float> values) {
  std::vector<float> mean(values.size());
  muster::allreduce(ranks, values, std::span(mean), muster::mean);
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) squares += std::pow(double{values[i]} - double{mean[i]}, 2);
  return std::sqrt(muster::allreduce(ranks, squares, muster::sum) / ranks.size());
}

// Fits the mean of numbers: the loss of a sample is |w - target|^2 / 2, with a different target for each sample.
float target(muster::sample_id id, std::size_t i) {
  return static_cast<float>(muster::mix(id * 131 + i) % 1000) / 500.0f - 1.0f;
}

struct mode_outcome {
  std::vector<float> weights;
  double spread = 0;
  std::uint64_t digest = 0;
};

mode_outcome train(muster::group& world, const muster::sync_mode& mode, float momentum, std::uint64_t epochs,
                   double rate = 0.1) {
  heap memory;
  muster::arena arena(memory, {{"w", {33}}, {"v", {7}}});
  muster::gradient_sync sync(arena, {.first_bucket = 64, .mode = mode});
  muster::sgd optimizer(arena, {.momentum = momentum});
  auto loader = numbers{120} | muster::shuffle(5) | muster::batch(24);
  muster::state state{arena, optimizer, loader.cursor()};
  auto session = muster::fixed_session(world);
  while (session.run(state,
                     [&](muster::step& step) {
                       const auto batch = loader.next(step.shard());
                       auto backward = sync.begin(step.group());
                       backward.add_samples(batch.samples.size());
                       for (std::size_t tensor = 2; tensor-- > 0;) {
                         const auto weights = arena.parameter(tensor);
                         const auto gradient = backward.gradient(tensor);
                         for (std::size_t i = 0; i < gradient.size(); ++i) {
                           gradient[i] = 0;
                           for (const auto id : batch.samples) gradient[i] += weights[i] - target(id, i + 100 * tensor);
                         }
                         backward.ready(tensor);
                       }
                       backward.wait();
                       optimizer.apply(rate);
                     },
                     {.epochs = epochs})) {
  }
  mode_outcome result;
  result.spread = consensus_distance(world, arena.parameters());
  sync.average(world);
  result.weights.assign(arena.parameters().begin(), arena.parameters().end());
  result.digest = state.digest();
  return result;
}

std::vector<mode_outcome> at_all_ranks(int ranks, const muster::sync_mode& mode, float momentum, std::uint64_t epochs) {
  std::vector<mode_outcome> all(static_cast<std::size_t>(ranks));
  test::run_ranks(ranks, [&](muster::group& world) {
    all[static_cast<std::size_t>(world.rank())] = train(world, mode, momentum, epochs);
  });
  return all;
}

double distance(const mode_outcome& a, const mode_outcome& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.weights.size(); ++i) squares += std::pow(double{a.weights[i]} - b.weights[i], 2);
  return std::sqrt(squares);
}

}  // namespace

TEST_CASE("modes are read as they are written, and others are refused") {
  for (const char* const text : {"allreduce", "allreduce-weights", "local-sgd:8", "local-sgd:1", "gossip:ring",
                                 "gossip:torus", "gossip:exponential", "ps"}) {
    CHECK(muster::to_string(muster::parse_sync_mode(text)) == text);
  }
  CHECK(muster::to_string(muster::parse_sync_mode("gossip")) == "gossip:ring");
  CHECK(muster::to_string(muster::parse_sync_mode("local-sgd")) == "local-sgd:8");
  CHECK_THROWS_WITH(muster::parse_sync_mode("alreduce"), contains("did you mean 'allreduce'?"));
  CHECK_THROWS_WITH(muster::parse_sync_mode("gossip:rign"), contains("did you mean 'ring'?"));
  for (const char* const text : {"", "local-sgd:0", "local-sgd:", "local-sgd:3x", "allreduce:", "gossip:", "ps:2",
                                 "ring", "gossip:ring,a=1", "local-sgd:1,2"}) {
    CHECK_THROWS_AS(muster::parse_sync_mode(text), muster::configuration_error);
  }
}

TEST_CASE("gossip graphs are undirected and connected, and every rank has as many neighbours") {
  for (const auto graph : graphs) {
    for (int world = 1; world <= 40; ++world) {
      CAPTURE(static_cast<int>(graph), world);
      std::set<int> reached = {0};
      std::vector<int> next = {0};
      bool sound = true;
      for (int rank = 0; rank < world; ++rank) {
        const auto neighbours = muster::neighbours(graph, rank, world);
        sound = sound && neighbours.size() == muster::neighbours(graph, 0, world).size();
        for (const int neighbour : neighbours) {
          const auto back = muster::neighbours(graph, neighbour, world);
          sound = sound && neighbour != rank && std::find(back.begin(), back.end(), rank) != back.end();
        }
      }
      while (!next.empty()) {
        const int rank = next.back();
        next.pop_back();
        for (const int neighbour : muster::neighbours(graph, rank, world)) {
          if (reached.insert(neighbour).second) next.push_back(neighbour);
        }
      }
      CHECK(sound);
      CHECK(static_cast<int>(reached.size()) == world);
    }
  }
  CHECK(muster::neighbours(muster::gossip_graph::ring, 0, 5) == std::vector<int>{1, 4});
  CHECK(muster::neighbours(muster::gossip_graph::torus, 0, 12) == std::vector<int>{1, 3, 4, 8});
  CHECK(muster::neighbours(muster::gossip_graph::exponential, 0, 9) == std::vector<int>{1, 2, 4, 5, 7, 8});
  CHECK_THROWS_AS(muster::neighbours(muster::gossip_graph::ring, 3, 3), muster::configuration_error);
}

TEST_CASE("gossip alone brings all ranks to the mean they began with, faster where there are more neighbours") {
  const auto over = GENERATE(test::fabric::threads, test::fabric::shm);
  std::vector<double> final_distance(3);
  for (const auto graph : graphs) {
    test::run_ranks(over, 6, [&](muster::group& world) {
      std::vector<float> values(1000), scratch;
      muster::random_stream random(7, static_cast<std::uint64_t>(world.rank()));
      for (float& value : values) value = static_cast<float>(random.uniform());
      std::vector<float> mean(values.size());
      muster::allreduce(world, std::span<const float>(values), std::span(mean), muster::mean);
      double before = consensus_distance(world, values);
      for (int round = 0; round < 6; ++round) {
        muster::gossip(world, graph, values, scratch);
        const double distance_now = consensus_distance(world, values);
        require(distance_now < before, "the distance falls");
        before = distance_now;
      }
      std::vector<float> after(values.size());
      muster::allreduce(world, std::span<const float>(values), std::span(after), muster::mean);
      for (std::size_t i = 0; i < mean.size(); ++i) require(std::abs(mean[i] - after[i]) < 1e-5f, "the mean stays");
      if (world.rank() == 0) final_distance[static_cast<std::size_t>(graph)] = before;
    });
  }
  CHECK(final_distance[2] < final_distance[0]);
  CHECK(final_distance[1] < final_distance[0]);
}

TEST_CASE("averaged weights of one step without momentum are those of averaged gradients") {
  const int ranks = GENERATE(2, 5);  // 24 samples: equal parts for two ranks, unequal parts for five
  const auto exact = at_all_ranks(ranks, {}, 0.0f, 4);
  const auto weights = at_all_ranks(ranks, {.method = muster::sync_mode::kind::allreduce_weights}, 0.0f, 4);
  for (const auto& outcome : exact) CHECK(outcome.digest == exact.front().digest);
  for (const auto& outcome : weights) {
    CHECK(outcome.spread < 1e-6);  // the mean of equal numbers is rounded
    CHECK(outcome.weights == weights.front().weights);
    CHECK(distance(outcome, exact.front()) < 1e-5);
  }
}

TEST_CASE("local SGD with a period of one averages every step, and with more lets ranks go apart in between") {
  using kind = muster::sync_mode::kind;
  const auto weights = at_all_ranks(3, {.method = kind::allreduce_weights}, 0.5f, 3);
  const auto every = at_all_ranks(3, {.method = kind::local_sgd, .period = 1}, 0.5f, 3);
  CHECK(every.front().weights == weights.front().weights);
  const auto seldom =
      at_all_ranks(3, {.method = kind::local_sgd, .period = 4}, 0.5f, 3);  // 15 steps: 3 since the last average
  CHECK(seldom.front().spread > 1e-3);
  for (const auto& outcome : seldom) CHECK(outcome.weights == seldom.front().weights);
  CHECK(distance(seldom.front(), weights.front()) < 0.2);
}

TEST_CASE("local SGD weighs a rank by all samples since the last average, not by those of the last step") {
  test::run_ranks(2, [](muster::group& world) {
    heap memory;
    muster::arena arena(memory, {{"w", {3}}});
    muster::gradient_sync sync(arena, {.mode = {.method = muster::sync_mode::kind::local_sgd, .period = 2}});
    muster::sgd optimizer(arena, {});
    muster::state state{arena, optimizer};
    auto session = muster::fixed_session(world);
    const std::uint64_t first[] = {3, 1};  // samples of the first of two steps; the second has one
    const float slope[] = {1, 4};
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto train = [&](muster::step& step) {
      auto backward = sync.begin(step.group());
      const std::uint64_t samples = step.number() == 0 ? first[rank] : 1;
      backward.add_samples(samples);
      std::ranges::fill(backward.gradient(0), slope[rank] * static_cast<float>(samples));
      backward.ready(0);
      backward.wait();
      optimizer.apply(1.0);
    };
    while (session.run(state, train, {.steps = 2})) {
    }
    // Each rank takes two steps down the slope, with four samples at one rank and two at the other.
    require(std::abs(arena.parameter(0)[1] - (4 * -2.0f + 2 * -8.0f) / 6) < 1e-5f, "the mean over all samples");
  });
}

TEST_CASE("gossip trains to where exact averaging does, on any graph") {
  const auto exact = at_all_ranks(4, {}, 0.0f, 12);
  for (const auto graph : graphs) {
    const auto mixed = at_all_ranks(4, {.method = muster::sync_mode::kind::gossip, .graph = graph}, 0.0f, 12);
    CHECK(distance(mixed.front(), exact.front()) < 0.05);
    CHECK(mixed.front().spread > 0.0);
    CHECK(mixed.front().spread < 0.5);
  }
}

TEST_CASE("in modes that exchange weights a step that fails after the optimizer has not happened") {
  for (const auto kind : {muster::sync_mode::kind::allreduce_weights, muster::sync_mode::kind::local_sgd,
                          muster::sync_mode::kind::gossip}) {
    heap memory;
    muster::arena arena(memory, {{"w", {33}}});
    muster::gradient_sync sync(arena, {.mode = {.method = kind}});
    muster::sgd optimizer(arena, {.momentum = 0.5f});
    muster::state state{arena, optimizer};
    muster::group self(muster::make_self_transport());
    auto session = muster::fixed_session(self);
    const auto train = [&](muster::step& step) {
      auto backward = sync.begin(step.group());
      backward.add_samples(1);
      std::ranges::fill(backward.gradient(0), 1.0f);
      backward.ready(0);
      backward.wait();
      optimizer.apply(0.5);
      if (step.number() == 2) throw std::runtime_error("a rank died");
    };
    CHECK_THROWS_AS(session.run(state, train, {.steps = 3}), std::runtime_error);
    CHECK(state.steps() == 2);
    CHECK(arena.parameter(0)[5] == -0.5f - 0.75f);
    CHECK(arena.state("velocity")[5] == 1.5f);
  }
}
