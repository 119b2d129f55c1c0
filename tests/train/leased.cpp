// A training that can tell how often it used each sample. Its model has an element for each sample, and a sample's
// gradient is one there: so in the end each element is as many steps of the rate as the sample has epochs. By default
// these are rows that the workers of servers pull and push; with --hidden there is a small network beside them, for any
// mode and for elastic jobs.
//
// usage: test_leased [--samples N] [--epochs N] [--batch N] [--hidden N] [--sample-time MILLISECONDS]
//   [--step-time MILLISECONDS] [--tables FOLDER] [--die-at-end FILE]
//   --step-time    what a step takes beside its arithmetic: a rank then waits, and needs no processor (2)
//   --sample-time  the same for a sample, instead
//   --tables       checkpoints, every 40 steps
//   --die-at-end   the first process that comes to the end makes this file and is killed
// It says "ready" when it has its data, "begins NANOSECONDS" at its first step, "step N" now and then, and in the end
// how often samples were used, and the accuracy of the network.
#include <muster/train/training.hpp>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/dataset_builder.hpp>

#include "train/small_model.hpp"

namespace {

constexpr float rate = 0.25f;
constexpr std::size_t inputs = 32;

struct words {
  std::size_t samples = 3000;
  std::uint64_t epochs = 3;
  std::uint64_t batch = 20;
  std::size_t hidden = 0;
  double sample_time = 0;  // milliseconds
  double step_time = 2;
  std::string tables;
  std::string die_at_end;
};

words read_words(int argc, char** argv) {
  words read;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string name = argv[i];
    const double number = std::strtod(argv[i + 1], nullptr);
    if (name == "--samples") read.samples = static_cast<std::size_t>(number);
    if (name == "--epochs") read.epochs = static_cast<std::uint64_t>(number);
    if (name == "--batch") read.batch = static_cast<std::uint64_t>(number);
    if (name == "--hidden") read.hidden = static_cast<std::size_t>(number);
    if (name == "--sample-time") read.sample_time = number;
    if (name == "--step-time") read.step_time = number;
    if (name == "--tables") read.tables = argv[i + 1];
    if (name == "--die-at-end") read.die_at_end = argv[i + 1];
  }
  return read;
}

void say(const std::string& line) { std::printf("%s\n", line.c_str()), std::fflush(stdout); }

void count_uses(std::span<const float> table, std::uint64_t epochs) {
  std::size_t wrong = 0;
  double used = 0, lost = 0, doubled = 0;
  for (std::size_t id = 0; id < table.size(); ++id) {
    const double uses = double{-table[id]} / rate;
    const double more = uses - static_cast<double>(epochs);
    used += uses;
    more > 0 ? doubled += more : lost -= more;
    if (more != 0 && wrong++ < 5) say("sample " + std::to_string(id) + " was used " + std::to_string(uses) + " times");
  }
  say(wrong == 0 ? "each sample was used once an epoch"
                 : std::to_string(wrong) + " samples were not, and all " + std::to_string(used) +
                       " times: " + std::to_string(lost) + " uses lost, " + std::to_string(doubled) + " doubled");
}

// What the network learns from: the batches of the loader have ids alone.
class drawn_data {
 public:
  explicit drawn_data(std::size_t samples) : values_(samples * inputs), labels_(samples) {
    muster::random_stream draw(5);
    for (float& value : values_) value = static_cast<float>(draw.normal());
    // Not to be learnt wholly, so that its accuracy tells how well it was trained.
    for (std::size_t id = 0; id < samples; ++id)
      labels_[id] = values_[id * inputs] + 0.5 * draw.normal() > 0 ? 1.0f : 0.0f;
  }
  [[nodiscard]] double accuracy(const test::small_model& network, muster::arena& arena) const {
    return network.accuracy(arena, values_, labels_);
  }
  // Valid until the next call.
  [[nodiscard]] muster::minibatch with_values(muster::minibatch batch) {
    rows_.clear();
    of_rows_.clear();
    for (const auto id : batch.samples) {
      const auto from = values_.begin() + static_cast<std::ptrdiff_t>(id * inputs);
      rows_.insert(rows_.end(), from, from + inputs);
      of_rows_.push_back(labels_[id]);
    }
    batch.labels = of_rows_;
    batch.bytes = std::as_bytes(std::span(rows_));
    batch.schema = &schema_;
    return batch;
  }

 private:
  std::vector<float> values_, labels_, rows_, of_rows_;
  muster::record_schema schema_{.fields = {{.name = "row", .shape = {inputs}}}, .labels = {"label"}};
};

void train(muster::context& context, const words& asked) {
  auto made = muster::dataset_builder::dense("numbers", asked.samples, 1);
  const auto data = made.finish();
  drawn_data drawn(asked.samples);
  auto loader = data | muster::shuffle(3) | muster::batch(asked.batch);
  test::small_model network(asked.hidden, inputs, 2);
  auto shapes = asked.hidden == 0 ? std::vector<muster::tensor_shape>{} : network.shapes();
  const auto table = shapes.size();
  shapes.push_back({"uses", {asked.samples}});
  muster::arena arena(context, shapes);
  if (asked.hidden > 0) network.initialise(arena, 7);
  muster::sgd optimizer(arena);
  auto how = muster::training::sync_of_job(context);
  how.sparse = asked.hidden == 0;
  muster::training training(context, how, arena, optimizer, loader, network.batch_norm());
  say("ready");
  std::vector<std::uint64_t> elements;
  std::uint64_t taken = 0;
  training.run(
      {.epochs = asked.epochs,
       .checkpoint = asked.tables,
       .checkpoint_every = "40 steps",
       .at_end =
           [&](muster::training_step& step) {
             if (!asked.die_at_end.empty() && ::open(asked.die_at_end.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0666) >= 0)
               ::raise(SIGKILL);
             elements.resize(asked.samples);
             std::iota(elements.begin(), elements.end(), 0);
             if (how.sparse) step.pull(elements);
             if (asked.hidden > 0) say("accuracy " + std::to_string(drawn.accuracy(network, arena)));
             count_uses(arena.parameter(table), asked.epochs);
           },
       .log = nullptr},
      [&](muster::training_step& step) {
        if (taken == 0) say("begins " + std::to_string(muster::clock::now().time_since_epoch().count()));
        const auto batch = step.next(loader);
        elements.assign(batch.samples.begin(), batch.samples.end());
        std::sort(elements.begin(), elements.end());
        if (how.sparse) step.pull(elements);
        step.backward(batch, [&](const auto& part, auto& to) {
          if (!how.sparse) {
            std::ranges::fill(to.gradient(table), 0.0f);
            network.forward_backward(drawn.with_values(part), to);
          }
          to.divided_by(static_cast<double>(part.global_size));
          for (const auto element : elements) to.gradient(table)[element] += 1.0f;
        });
        step.update(optimizer, rate);
        if (taken++ % 50 == 0) say("step " + std::to_string(taken - 1));
        const double time = asked.sample_time * static_cast<double>(elements.size());
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(time > 0 ? time : asked.step_time));
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
    train(context, read_words(argc, argv));
    say("done");
    std::fflush(nullptr);
    ::_exit(0);  // the group of all ranks may not be whole any more
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "rank %s: %s\n", std::getenv("RANK") == nullptr ? "?" : std::getenv("RANK"), failure.what());
    std::fflush(nullptr);
    ::_exit(muster::exit_status_of(std::current_exception()));
  }
}
