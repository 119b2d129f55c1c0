// A training that is small enough to be saved many times, and the calls that save and load it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/random.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/sync/gradient_sync.hpp>

#include "elastic/numbers.hpp"
#include "require.hpp"
#include "train/heap.hpp"

namespace test {

inline std::vector<std::filesystem::path> files_in(const std::string& folder, std::string_view end = "") {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().ends_with(end)) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

template <class Store>
bool load(Store&& store, muster::group& world, muster::state& saved_state) {
  auto session = muster::fixed_session(world);
  return store.load(session, saved_state);
}

template <class Store>
void save(Store&& store, muster::group& world, muster::state& saved_state,
          double metric = std::numeric_limits<double>::quiet_NaN()) {
  auto session = muster::fixed_session(world);
  store.save(session, saved_state, metric);
}

inline void save_in_background(muster::checkpoint& store, muster::group& world, muster::state& saved_state) {
  auto session = muster::fixed_session(world);
  store.save(session, saved_state, 0.5, [](muster::step&) { return muster::save_kind::in_background; });
}

// A training whose results depend on the samples, their order, random numbers, and the earlier steps.
struct training {
  explicit training(std::uint64_t samples = 200, std::size_t width = 50, const muster::sync_mode& mode = {})
      : arena(memory, {{"w", {width}}, {"b", {}}}),
        sync(arena, {.first_bucket = 64, .mode = mode}),
        optimizer(arena, {.momentum = 0.75f}),
        loader(numbers{samples} | muster::shuffle(17) | muster::batch(10)),
        state{arena, optimizer, muster::restored_values{"mean", std::span(mean), muster::state_kind::rank_local},
              muster::restored_values{"dropout", std::span(&chance, 1), muster::state_kind::rank_local},
              loader.cursor()} {}

  void run_to(muster::group& world, std::uint64_t steps) {
    auto session = muster::fixed_session(world);
    const auto step = [&](muster::step& current) {
      const auto batch = loader.next(current.shard());
      for (const auto id : batch.samples) used.push_back(id);
      auto backward = sync.begin(current.group());
      backward.add_samples(batch.samples.size());
      for (const std::size_t tensor : {std::size_t{1}, std::size_t{0}}) {
        for (float& value : backward.gradient(tensor)) {
          value = static_cast<float>(chance.uniform());
          for (const auto id : batch.samples) value += static_cast<float>(id) / 100.0f;
        }
        backward.ready(tensor);
      }
      backward.wait();
      mean[0] = 0.9f * mean[0] + 0.1f * arena.gradient(0)[0];
      optimizer.apply(0.125);
    };
    while (session.run(state, step, {.steps = steps})) {
    }
  }

  heap memory;
  std::vector<float> mean = std::vector<float>(3);
  muster::random_stream chance{3};
  muster::arena arena;
  muster::gradient_sync sync;
  muster::sgd optimizer;
  muster::loader loader;
  muster::state state;
  std::vector<muster::sample_id> used;
};

}  // namespace test
