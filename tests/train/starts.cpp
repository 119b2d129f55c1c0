// The start of a training: with rank 0's values, and with the same model, options and data at all ranks, or not at all.
#include <muster/train/training.hpp>

#include <algorithm>
#include <mutex>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/train/optimizers/optimizer.hpp>

#include "catch.hpp"
#include "heard_log.hpp"
#include "trained.hpp"

using test::as_ranks;
using test::require;

namespace {

// The difference of the last rank.
struct oddity {
  const char* name;
  std::vector<muster::tensor_shape> shapes = {{"slope", {1}}, {"offset", {1}}};
  std::size_t samples = 40;
  float first = 1;  // first value of the data
  std::uint64_t seed = 1;
  std::uint64_t batch = 8;
  bool drops = false;
  float momentum = 0.9f;
  float clip = 0;
  std::uint64_t epochs = 2;
  bool owns_more = false;
  std::string metric = "loss down";
};

struct ended_rank {
  std::string text;
  int status = 0;
  std::vector<float> parameters;
};

ended_rank train(muster::context& context, const oddity& as, float first_value) {
  auto builder = muster::data::dataset_builder::dense("points", as.samples, 1);
  for (std::size_t i = 0; i < as.samples; ++i) builder.row(i)[0] = as.first + static_cast<float>(i);
  const muster::dataset data = builder.finish();
  auto loader = data | muster::shuffle(as.seed) | muster::batch(as.batch, {.drop_last = as.drops});
  muster::arena arena(context, as.shapes);
  std::ranges::fill(arena.parameter(0), first_value);
  muster::sgd optimizer(arena, {.momentum = as.momentum});
  std::vector<float> statistics(3, first_value);
  std::vector<float> more(2);
  struct owner {
    std::vector<float>* values;
    void describe(muster::state_parts& parts) {
      if (values != nullptr) parts.add("more", std::span(*values));
    }
  };
  auto options = muster::training::sync_of_job(context);
  options.clip = as.clip;
  muster::training training(context, options, arena, optimizer, loader,
                            muster::restored_values{"statistics", std::span(statistics)},
                            owner{as.owns_more ? &more : nullptr});
  ended_rank end;
  try {
    training.run({.epochs = as.epochs, .metric = as.metric, .log = nullptr}, [&](muster::training_step& step) {
      step.backward(step.next(loader), [&](const auto& part, auto& pass) {
        for (std::size_t t = 0; t < as.shapes.size(); ++t)
          std::ranges::fill(pass.gradient(t), static_cast<float>(part.samples.size()));
      });
      step.update(optimizer, 0.125);
    });
    require(statistics[2] == statistics[0], "all of a part");
    end.parameters.assign(arena.parameters().begin(), arena.parameters().end());
    end.parameters.push_back(statistics[0]);
  } catch (const std::exception& thrown) {
    end.text = thrown.what();
    end.status = muster::exit_status_of(std::current_exception());
  }
  return end;
}

std::vector<ended_rank> train_all(int ranks, const oddity& odd, const std::vector<std::string>& flags = {},
                                  float odd_value = 5) {
  std::vector<ended_rank> ends(static_cast<std::size_t>(ranks));
  as_ranks(
      ranks,
      [&](muster::context& context, muster::group& world) {
        const bool is_odd = world.rank() == world.size() - 1;
        ends[static_cast<std::size_t>(world.rank())] =
            train(context, is_odd ? odd : oddity{"none"}, is_odd ? odd_value : 5.0f);
      },
      flags);
  return ends;
}

}  // namespace

TEST_CASE("ranks begin with rank 0's values, and one line names the first that differed") {
  const std::string mode = GENERATE("allreduce", "allreduce-weights", "local-sgd:3", "gossip");
  CAPTURE(mode);
  const test::heard_log captured;
  const auto equal = train_all(3, {"none"}, {"--mode", mode});
  CHECK(captured.text().empty());
  const auto unequal = train_all(3, {"none"}, {"--mode", mode}, 100);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(unequal[rank].text.empty());
    CHECK(unequal[rank].parameters == equal[rank].parameters);
  }
  CHECK_THAT(captured.text(), contains("'parameters' of rank 2 differed from rank 0's at the start"));
  CHECK(std::ranges::count(captured.text(), '\n') == 1);
}

TEST_CASE("ranks of different models, options or data end before the first step, all with what differs first") {
  const std::vector<std::pair<oddity, std::string>> all = {
      {{.name = "order", .shapes = {{"offset", {1}}, {"slope", {1}}}},
       "tensor 0 is slope[1] at rank 0 and offset[1] at rank 2"},
      {{.name = "name", .shapes = {{"slope", {1}}, {"bias", {1}}}},
       "tensor 1 is offset[1] at rank 0 and bias[1] at rank 2"},
      {{.name = "shape", .shapes = {{"slope", {1}}, {"offset", {1, 1}}}},
       "tensor 1 is offset[1] at rank 0 and offset[1x1] at rank 2"},
      {{.name = "more", .shapes = {{"slope", {1}}, {"offset", {1}}, {"extra", {3}}}},
       "rank 2 has tensor 2, which rank 0 has not"},
      {{.name = "part", .owns_more = true}, "rank 2 has part 'more', which rank 0 has not"},
      {{.name = "momentum", .momentum = 0.5f}, "the momentum of the optimizer is 0.9 at rank 0 and 0.5 at rank 2"},
      {{.name = "no momentum", .momentum = 0}, "the momentum of the optimizer is 0.9 at rank 0 and 0 at rank 2"},
      {{.name = "clip", .clip = 1}, "the norm to which gradients are clipped is 0 at rank 0 and 1 at rank 2"},
      {{.name = "seed", .seed = 7}, "the seed of the data is 1 at rank 0 and 7 at rank 2"},
      {{.name = "batch", .batch = 10}, "the global batch of the data is 8 at rank 0 and 10 at rank 2"},
      {{.name = "drop", .drops = true}, "the drop_last of the data is 0 at rank 0 and 1 at rank 2"},
      {{.name = "samples", .samples = 41}, "the number of samples of the data is 40 at rank 0 and 41 at rank 2"},
      {{.name = "data", .first = 2}, "the dataset's digest is "},
      {{.name = "epochs", .epochs = 3}, "the last epoch is 2 at rank 0 and 3 at rank 2"},
      {{.name = "metric", .metric = "loss up"}, "the metric is loss down at rank 0 and loss up at rank 2"}};
  for (const auto& [odd, text] : all) {
    CAPTURE(odd.name);
    for (const auto& end : train_all(3, odd)) {
      CHECK_THAT(end.text, contains(text));
      CHECK(end.status == static_cast<int>(muster::error_kind::mismatch));
    }
  }
}
