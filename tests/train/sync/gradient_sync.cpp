#include <muster/train/sync/gradient_sync.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <numeric>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/core/random.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/sync/host_gradients.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "require.hpp"
#include "train/heap.hpp"

namespace {

using namespace muster::literals;

using test::require;

std::vector<muster::tensor_shape> some_shapes(std::uint64_t seed) {
  muster::random_stream random(seed);
  std::vector<muster::tensor_shape> shapes;
  const auto count = 1 + random.below(12);
  for (std::uint64_t k = 0; k < count; ++k)
    shapes.push_back({"t" + std::to_string(k), {static_cast<std::size_t>(random.below(900))}});
  return shapes;
}

// Returns a small integer, so that sums are exact in any order.
float value_of(std::uint64_t seed, int rank, int pass, std::size_t tensor, std::size_t i) {
  const auto word = muster::mix(seed + 31 * static_cast<std::uint64_t>(rank) + 1009 * static_cast<std::uint64_t>(pass) +
                                65537 * tensor + 7919 * i);
  return static_cast<float>(word % 17) - 8.0f;
}

// The random choices that differ between ranks.
struct part {
  std::vector<std::uint64_t> samples;           // by pass
  std::vector<std::vector<bool>> written;       // by pass and tensor
  std::vector<std::vector<std::size_t>> order;  // order of readiness, in each pass
};

part part_of(std::uint64_t seed, int rank, int passes, std::size_t tensors) {
  muster::random_stream random(seed, 100 + static_cast<std::uint64_t>(rank));
  part mine;
  const bool idle = random.below(6) == 0;  // no samples at this rank
  for (int pass = 0; pass < passes; ++pass) {
    mine.samples.push_back(idle ? 0 : random.below(5000));
    std::vector<bool> written(tensors);
    for (std::size_t t = 0; t < tensors; ++t) written[t] = !idle && (t == 0 || random.below(5) != 0);
    std::vector<std::size_t> order(tensors);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    mine.written.push_back(written);
    mine.order.push_back(order);
  }
  return mine;
}

}  // namespace

TEST_CASE("gradients are summed over ranks and passes and divided by the true number of samples", "[slow]") {
  const auto over = GENERATE(test::fabric::threads, test::fabric::shm);
  const int ranks = GENERATE(1, 2, 4);
  const bool thread = GENERATE(false, true);
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed, ranks, thread);
    test::run_ranks(
        over, ranks,
        [&](muster::group& world) {
          heap memory;
          muster::random_stream random(seed);
          const auto shapes = some_shapes(seed);
          muster::arena arena(memory, shapes);
          const std::size_t tensors = shapes.size();
          const int passes = 1 + static_cast<int>(random.below(3));
          const bool divides = random.below(2) == 0;
          muster::gradient_sync sync(arena, {.bucket = 64 + random.below(4000), .first_bucket = random.below(1000)});
          for (int repeat = 0; repeat < 3; ++repeat) {
            const std::uint64_t step = seed * 100 + static_cast<std::uint64_t>(repeat);
            const double divisor = divides ? 1024.0 : 1.0;
            const auto mine = part_of(step, world.rank(), passes, tensors);
            std::uint64_t samples = 0;
            {
              auto backward = sync.begin(world, passes);
              if (divides) backward.divided_by(divisor);
              for (int pass = 0; pass < passes; ++pass) {
                const auto p = static_cast<std::size_t>(pass);
                backward.add_samples(mine.samples[p]);
                for (const std::size_t tensor : mine.order[p]) {
                  if (!mine.written[p][tensor]) continue;
                  const bool adds = backward.adds(tensor);
                  const auto gradient = backward.gradient(tensor);
                  for (std::size_t i = 0; i < gradient.size(); ++i) {
                    const float value = value_of(step, world.rank(), pass, tensor, i) / static_cast<float>(divisor);
                    gradient[i] = adds ? gradient[i] + value : value;
                  }
                  backward.ready(tensor);
                }
              }
              backward.wait();
              samples = backward.samples();
            }
            // Computes the expected result from all ranks' choices.
            std::uint64_t all = 0;
            for (int r = 0; r < ranks; ++r) {
              const auto theirs = part_of(step, r, passes, tensors);
              all = std::accumulate(theirs.samples.begin(), theirs.samples.end(), all);
            }
            require(samples == all, "the true number of samples");
            for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
              const auto gradient = arena.gradient(tensor);
              for (std::size_t i = 0; i < gradient.size(); ++i) {
                double sum = 0;
                for (int r = 0; r < ranks; ++r) {
                  const auto theirs = part_of(step, r, passes, tensors);
                  for (int pass = 0; pass < passes; ++pass) {
                    if (theirs.written[static_cast<std::size_t>(pass)][tensor])
                      sum += value_of(step, r, pass, tensor, i);
                  }
                }
                const double expected = all == 0 ? sum : sum / static_cast<double>(all);
                require(std::abs(gradient[i] - expected) <= 1e-6 * std::abs(expected) + 1e-12, "the mean gradient");
                if (i > 8) break;  // the other elements are the same sums
              }
            }
            sync.commit();
          }
        },
        {.timeout = muster::seconds(60), .progress_thread = thread});
  }
}

TEST_CASE("with virtual shards the bits of gradients do not depend on the number of ranks", "[slow]") {
  const int shards = GENERATE(1, 2, 3, 5, 8, 13);
  const std::uint64_t seed = GENERATE(1, 2, 3);
  const auto over = GENERATE(test::fabric::threads, test::fabric::shm);
  CAPTURE(shards, seed);
  std::vector<float> alone;  // the result of a single rank
  for (const int ranks : {1, 2, 3, 4, 7}) {
    test::run_ranks(ranks == 1 ? test::fabric::threads : over, ranks, [&](muster::group& world) {
      heap memory;
      muster::random_stream choices(seed);
      muster::arena arena(memory, some_shapes(seed));
      muster::gradient_sync sync(arena, {.bucket = 64 + choices.below(4000), .virtual_shards = shards});
      const auto own = muster::part_of(static_cast<std::uint64_t>(shards), {world.rank(), world.size()});
      std::vector<float> found;
      for (std::uint64_t step = 0; step < 3; ++step) {
        auto backward = sync.begin(world, std::max(1, static_cast<int>(own.size())));
        for (auto shard = own.first; shard < own.last; ++shard) {
          // The written values depend on the shard alone. The order of writing is random, and not all tensors are
          // written.
          muster::random_stream random(seed, 100 * step + shard);
          backward.add_samples(random.below(100));
          for (std::size_t tensor = 0; tensor < arena.shapes().size(); ++tensor) {
            if (random.below(4) == 0 && tensor > 0) continue;
            require(!backward.adds(tensor), "each shard has a pass of its own");
            for (float& value : backward.gradient(tensor))
              value = static_cast<float>(random.normal() * std::pow(10.0, 12 * random.uniform() - 6));
          }
          backward.end_pass();
        }
        backward.wait();
        found.insert(found.end(), arena.gradients().begin(), arena.gradients().end());
        found.push_back(static_cast<float>(backward.samples()));
        sync.commit();
      }
      if (world.size() == 1) {
        alone = found;
        return;
      }
      require(std::ranges::equal(std::as_bytes(std::span(found)), std::as_bytes(std::span(alone))),
              "the bits of a rank that is alone");
    });
  }
}

TEST_CASE("reproducible gradients do not depend on ranks, algorithms, transports and buckets", "[slow]") {
  const auto over = GENERATE(test::fabric::threads, test::fabric::shm);
  const auto name = GENERATE(muster::algorithm::ring, muster::algorithm::tree, muster::algorithm::automatic);
  const std::size_t bucket = GENERATE(64u, 1000u, 4096u, 1048576u);
  static std::vector<float> first;
  for (const int ranks : {3, 5, 8}) {
    INFO(over << ", " << ranks << " ranks, bucket " << bucket << ", " << to_string(name));
    muster::group_settings settings;
    if (name != muster::algorithm::automatic) settings.algorithm = muster::algorithm_rules(name);
    std::vector<float> found;
    test::run_ranks(
        over, ranks,
        [&](muster::group& world) {
          heap memory;
          muster::arena arena(memory, some_shapes(4));
          muster::gradient_sync sync(arena, {.bucket = bucket, .reproducible = true});
          auto backward = sync.begin(world);
          const int writer =
              (world.rank() + static_cast<int>(bucket % 5)) % ranks;  // three ranks have gradients, in any order
          muster::random_stream random(9, static_cast<std::uint64_t>(writer));
          backward.add_samples(writer < 3 ? 7 : 0);
          for (std::size_t tensor = 0; tensor < arena.shapes().size() && writer < 3; ++tensor) {
            for (float& value : backward.gradient(tensor))
              value = static_cast<float>(random.normal() * std::pow(10.0, 12 * random.uniform() - 6));
          }
          backward.end_pass();
          backward.wait();
          if (world.rank() == 0) found.assign(arena.gradients().begin(), arena.gradients().end());
        },
        settings);
    if (first.empty()) first = found;
    CHECK(std::ranges::equal(std::as_bytes(std::span(found)), std::as_bytes(std::span(first))));
  }
}

TEST_CASE("virtual shards are summed in pairs, pairs of pairs, and so on") {
  const std::array<float, 6> values = {1e8f, 3.0f, -1e8f, 2.5f, 7.0f, 1e-3f};
  for (const int ranks : {1, 2, 3, 4, 5, 6}) {
    test::run_ranks(ranks, [&](muster::group& world) {
      heap memory;
      muster::arena arena(memory, {{"a", {1}}});
      muster::gradient_sync sync(arena, {.virtual_shards = 6});
      const auto own = muster::part_of(6, {world.rank(), world.size()});
      auto backward = sync.begin(world, static_cast<int>(own.size()));
      backward.add_samples(1);
      backward.divided_by(ranks);
      for (auto shard = own.first; shard < own.last; ++shard) {
        backward.gradient(0)[0] = values[shard];
        backward.end_pass();
      }
      backward.wait();
      const auto& v = values;
      require(arena.gradient(0)[0] == ((v[0] + v[1]) + (v[2] + v[3])) + (v[4] + v[5]), "the sum of the tree");
    });
  }
}

TEST_CASE("gradients that cannot be summed reproducibly are refused") {
  heap memory;
  muster::arena arena(memory, {{"a", {10}}});
  CHECK_THROWS_WITH(muster::gradient_sync(arena, {.codec = muster::compress("topk:0.1"), .reproducible = true}),
                    "gradients cannot be summed reproducibly (a codec's messages depend on the ranks); use no codec");
  CHECK_THROWS_WITH(
      muster::gradient_sync(arena, {.mode = muster::parse_sync_mode("gossip:ring"), .reproducible = true}),
      "gradients cannot be summed reproducibly (ranks exchange weights); use mode allreduce");
}

TEST_CASE("a sum by virtual shards that cannot be is refused") {
  heap memory;
  muster::arena arena(memory, {{"a", {10}}});
  const auto buckets_with = [&](const muster::sync_options& options) {
    return muster::gradient_sync(arena, options).buckets().size();
  };
  CHECK_THROWS_WITH(
      buckets_with({.virtual_shards = -1}),
      "a batch cannot be cut into -1 virtual shards (the number of parts is negative); give 1 or more, or "
      "0");
  CHECK_THROWS_WITH(buckets_with({.codec = muster::compress("topk:0.1"), .virtual_shards = 2}),
                    "a batch cannot be cut into 2 virtual shards (a codec's messages and residuals depend on the "
                    "ranks); use no codec");
  CHECK_THROWS_WITH(buckets_with({.mode = muster::parse_sync_mode("local-sgd"), .virtual_shards = 2}),
                    "a batch cannot be cut into 2 virtual shards (ranks exchange weights); use mode allreduce");
  test::run_ranks(1, [&](muster::group& world) {
    muster::gradient_sync sync(arena, {.virtual_shards = 2});
    auto backward = sync.begin(world, 1);
    backward.add_samples(1);
    (void)backward.gradient(0);
    CHECK_THROWS_WITH(backward.wait(),
                      "the gradients of a step cannot be summed by virtual shards (its passes do not match this rank's "
                      "shards); call begin() with as many passes as the rank has shards");
  });
}

TEST_CASE("buckets are cut from what becomes ready together, the first one small") {
  heap memory;
  muster::arena arena(memory, {{"a", {100}}, {"b", {1000}}, {"c", {16}}, {"d", {16}}, {"e", {40}}});
  CHECK(arena.places()[4] == muster::block{0, 48});
  CHECK(arena.places()[3] == muster::block{48, 16});
  CHECK(arena.places()[0] == muster::block{48 + 16 + 16 + 1008, 112});
  const muster::gradient_sync sync(arena, {.bucket = 256, .first_bucket = 256});
  std::vector<std::vector<std::size_t>> tensors;
  std::size_t elements = 0;
  std::size_t end = 0;
  for (const auto& bucket : sync.buckets()) {
    tensors.push_back(bucket.tensors);
    CHECK(bucket.elements.first == end);
    end = bucket.elements.first + bucket.elements.count;
    elements += bucket.elements.count;
  }
  CHECK(tensors == std::vector<std::vector<std::size_t>>{{4, 3}, {2}, {1}, {0}});
  CHECK(elements == arena.gradients().size());
}

TEST_CASE("the last buckets are small, since nothing hides them") {
  heap memory;
  std::vector<muster::tensor_shape> shapes;
  for (int k = 0; k < 200; ++k) shapes.push_back({"t" + std::to_string(k), {16}});
  muster::arena arena(memory, shapes);
  const muster::gradient_sync sync(arena, {.bucket = 2048, .first_bucket = 64});
  std::size_t remaining = arena.gradients().size();
  for (std::size_t k = 0; k < sync.buckets().size(); ++k) {
    const std::size_t size = sync.buckets()[k].elements.count;
    CHECK(size ==
          (k == 0 ? 16 : std::clamp<std::size_t>(remaining / 3 / 16 * 16, 64, std::min<std::size_t>(remaining, 512))));
    remaining -= size;
  }
  CHECK(remaining == 0);
}

TEST_CASE("gradients are clipped by their global norm, alike at all ranks") {
  test::run_ranks(3, [](muster::group& world) {
    heap memory;
    muster::arena arena(memory, {{"a", {100}}, {"b", {30}}});
    muster::gradient_sync sync(arena, {.first_bucket = 64, .clip = 2.0f});
    for (const float size : {0.01f, 1.0f}) {
      auto backward = sync.begin(world);
      backward.add_samples(1);
      for (const std::size_t tensor : {std::size_t{1}, std::size_t{0}}) {
        for (float& value : backward.gradient(tensor)) value = size;
        backward.ready(tensor);
      }
      backward.wait();
      const double before = size * std::sqrt(130.0);
      require(std::abs(backward.norm() - before) < 1e-5 * before, "the norm before clipping");
      double squares = 0;
      for (const float value : arena.gradients()) squares += double{value} * double{value};
      require(std::abs(std::sqrt(squares) - std::min(2.0, before)) < 1e-5, "the norm after it");
    }
  });
}

TEST_CASE("a backward pass that cannot be is refused") {
  heap memory;
  muster::arena arena(memory, {{"a", {10}}, {"b", {10}}});
  muster::group self(muster::make_self_transport());
  {
    muster::gradient_sync sync(arena);
    CHECK_THROWS_WITH(muster::gradient_sync(arena), contains("cannot have two gradient_syncs"));
    CHECK_THROWS_AS(sync.begin(self, 0), muster::configuration_error);
    {
      auto backward = sync.begin(self);
      CHECK_THROWS_WITH(sync.begin(self), contains("the last pass is unfinished"));
      CHECK_THROWS_AS(backward.divided_by(0), muster::configuration_error);
      CHECK_THROWS_AS(backward.ready(2), muster::configuration_error);
      backward.ready(1);
      CHECK_THROWS_WITH(backward.ready(1), contains("'b' was written more often than there are passes"));
      backward.ready(0);
      CHECK_THROWS_WITH(backward.add_samples(3), contains("counted too late"));
      CHECK_THROWS_WITH(backward.wait(), contains("no sample was counted"));
    }
    auto backward = sync.begin(self);  // the previous pass was abandoned
    backward.wait();
    CHECK(backward.samples() == 0);
  }
  CHECK_THROWS_AS(muster::gradient_sync(arena, {.clip = -1.0f}), muster::configuration_error);
  muster::gradient_sync again(arena);  // the first gradient_sync is destroyed
}

TEST_CASE("a step that fails with buckets under way leaves the group usable and the state unchanged") {
  test::run_ranks(2, [](muster::group& world) {
    heap memory;
    muster::arena arena(memory, {{"a", {5000}}, {"b", {5000}}});
    muster::gradient_sync sync(arena, {.bucket = 64, .first_bucket = 64});
    muster::sgd optimizer(arena, {.momentum = 0.5f});
    muster::state state{arena, optimizer};
    const auto before = state.digest();
    for (int attempt = 0; attempt < 2; ++attempt) {
      state.begin_step();
      try {
        auto backward = sync.begin(world);
        backward.add_samples(1);
        for (float& value : backward.gradient(1)) value = 1.0f;
        backward.ready(1);
        throw std::runtime_error("the model failed");  // at both ranks
      } catch (const std::runtime_error&) {
        state.roll_back();
      }
    }
    require(state.digest() == before, "the state is as before");
    auto backward = sync.begin(world);
    backward.add_samples(2);
    for (const std::size_t tensor : {std::size_t{1}, std::size_t{0}}) {
      for (float& value : backward.gradient(tensor)) value = 2.0f;
      backward.ready(tensor);
    }
    backward.wait();
    require(arena.gradient(0)[4999] == 1.0f && arena.gradient(1)[0] == 1.0f, "the mean");
  });
}

namespace {

// A backend that sends integers only, in two rounds, and keeps the remainder for the next step.
class rounding final : public muster::host_gradients {
 public:
  rounding(muster::arena& values, std::vector<std::uint64_t>& steps)
      : host_gradients(values), residual_(values.gradients().size()), next_(residual_), steps_(steps) {}

  void begin(muster::group* ranks, std::uint64_t step) override {
    host_gradients::begin(ranks, step);
    step_ = step;
    sent_.clear();
    finished_ = 0;
  }
  std::size_t start(std::size_t bucket) override {
    if (bucket == 0)
      head_ = muster::allreduce_async(ranks(), on_host().gradients_with_head().first(muster::arena::head), muster::sum);
    steps_.push_back(step_);
    require(bucket == sent_.size(), "buckets begin in their order");
    const auto [first, count] = buckets()[bucket].elements;
    auto& sent = sent_.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = on_host().gradients()[first + i] + residual_[first + i];
      sent[i] = static_cast<int>(std::floor(value));
      next_[first + i] = value - std::floor(value);
    }
    under_way().push_back(muster::allreduce_async(ranks(), std::span(sent), muster::sum));
    return 20;
  }
  bool test(std::size_t /*bucket*/) override { return false; }
  std::size_t wait(std::size_t bucket) override {
    require(sent_.size() == buckets().size() && bucket == finished_++, "all begin before the first is finished");
    head_.wait();
    (void)host_gradients::wait(bucket);
    (void)muster::allreduce(ranks(), 1, muster::sum);  // a second round
    std::ranges::copy(sent_[bucket], part_of(buckets()[bucket].elements).begin());
    return 4;
  }
  void commit() noexcept override { residual_ = next_; }
  void describe(muster::state_parts& parts) override {
    parts.add("residual", std::span(residual_), muster::state_kind::rank_local,
              muster::rollback_policy::keep_on_failure);
  }

 private:
  std::vector<float> residual_, next_;
  std::vector<std::uint64_t>& steps_;  // the step at each start
  std::deque<std::vector<int>> sent_;
  std::size_t finished_ = 0;
  std::uint64_t step_ = 0;
  muster::work head_;
};

}  // namespace

TEST_CASE("a codec sums buckets its own way, and what it keeps counts when the step does") {
  test::run_ranks(3, [](muster::group& world) {
    heap memory;
    muster::arena arena(memory, {{"a", {100}}, {"b", {100}}, {"c", {100}}});
    std::vector<std::uint64_t> steps;
    const auto codec = [&](muster::arena& values) { return std::make_unique<rounding>(values, steps); };
    muster::gradient_sync sync(arena, {.bucket = 64, .first_bucket = 64, .codec = codec});
    muster::sgd optimizer(arena);
    muster::state state{arena, optimizer};
    double total = 0;
    for (int step = 0; step < 8; ++step) {
      state.begin_step();
      auto backward = sync.begin(world);
      backward.add_samples(2);
      for (std::size_t tensor = 3; tensor-- > 0;) {
        for (float& value : backward.gradient(tensor)) value = 0.75f;
        backward.ready(tensor);
      }
      backward.wait();
      require(backward.samples() == 6, "the samples are not rounded");
      if (step % 2 == 1) {
        state.roll_back();
        continue;
      }
      total += double{arena.gradient("b")[50]} * 6;
      state.commit_step();
    }
    require(std::abs(total - 3 * 3.0) < 1e-5, "four steps of 0.75 each, whatever failed");  // 0 + 1 + 1 + 1, 3 ranks
    require(steps == std::vector<std::uint64_t>{0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4},
            "a step that is run again has the same number");
    require(sync.bytes_sent() == 3 * 24, "what the codec says");
  });
}
