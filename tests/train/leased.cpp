// A training on servers, with a table that counts how often each sample was used. Its model has an element for each
// sample, and a sample's gradient is one there: so in the end each element is as many steps of the rate as the sample
// has epochs.
#include <muster/train/training.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>

#include <muster/core/error.hpp>
#include <muster/data/dataset_builder.hpp>

namespace {

constexpr std::size_t samples = 3000;
constexpr std::uint64_t epochs = 3;
constexpr float rate = 0.25f;

void say(const std::string& line) { std::printf("%s\n", line.c_str()), std::fflush(stdout); }

void count_uses(const muster::arena& arena) {
  std::size_t wrong = 0;
  float used = 0;
  for (std::size_t id = 0; id < samples; ++id) {
    const float uses = -arena.parameters()[id] / rate;
    used += uses;
    if (uses != static_cast<float>(epochs) && wrong++ < 5)
      say("sample " + std::to_string(id) + " was used " + std::to_string(uses) + " times");
  }
  say(wrong == 0 ? "each sample was used once an epoch"
                 : std::to_string(wrong) + " samples were not, and all " + std::to_string(used) + " times");
}

void train(muster::context& context) {
  auto made = muster::dataset_builder::dense("numbers", samples, 1);
  const auto data = made.finish();
  auto loader = data | muster::shuffle(3) | muster::batch(20);
  muster::arena arena(context, {{"uses", {samples}}});
  muster::sgd optimizer(arena);
  auto how = muster::training::sync_of_job(context);
  how.sparse = true;
  muster::training training(context, how, arena, optimizer, loader);
  say("ready");
  std::vector<std::uint64_t> elements;
  std::uint64_t taken = 0;
  const char* const folder = std::getenv("CHECKPOINT");
  training.run({.epochs = epochs,
                .checkpoint = folder == nullptr ? "" : folder,
                .checkpoint_every = "40 steps",
                .at_end =
                    [&](muster::training_step& step) {
                      elements.resize(samples);
                      std::iota(elements.begin(), elements.end(), 0);
                      step.pull(elements);
                      count_uses(arena);
                    },
                .log = nullptr},
               [&](muster::training_step& step) {
                 const auto batch = step.next(loader);
                 elements.assign(batch.samples.begin(), batch.samples.end());
                 std::sort(elements.begin(), elements.end());
                 step.pull(elements);
                 step.backward(batch, [&](const auto&, auto& to) {
                   to.divided_by(static_cast<double>(batch.global_size));
                   for (const auto element : elements) to.gradient(0)[element] += 1.0f;
                 });
                 step.update(optimizer, rate);
                 if (taken++ % 50 == 0) say("step " + std::to_string(taken - 1));
                 const char* const pause = std::getenv("STEP_MILLISECONDS");
                 std::this_thread::sleep_for(std::chrono::milliseconds(pause == nullptr ? 2 : std::atoi(pause)));
               });
  say("trained " + std::to_string(taken));
}

}  // namespace

// It ends by _exit, amid threads that would be joined: that is no leak.
extern "C" const char* __tsan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0"; }  // NOLINT

int main(int argc, char** argv) {
  try {
    muster::context context(argc, argv);
    train(context);
    say("done");
    std::fflush(nullptr);
    ::_exit(0);  // the group of all ranks may not be whole any more
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "rank %s: %s\n", std::getenv("RANK") == nullptr ? "?" : std::getenv("RANK"), failure.what());
    std::fflush(nullptr);
    ::_exit(muster::exit_status_of(std::current_exception()));
  }
}
