// A training that counts each sample's uses. Its model has an element for each sample, and the gradient of a
// sample is 1 at its element. At the end each element is therefore the rate times the number of steps in which its
// sample was used. By default these elements are rows that the workers of servers pull and push. With --hidden the
// model also has a small network, for any mode and for elastic jobs.
//
// usage: test_leased [--samples N] [--epochs N] [--batch N] [--hidden N] [--sample-time MILLISECONDS]
//   [--step-time MILLISECONDS] [--tables FOLDER] [--die-at-end FILE]
//   --step-time    duration of a step besides its arithmetic: the rank waits without using a processor (2)
//   --sample-time  the same for each sample, instead
//   --tables       checkpoints, every 40 steps
//   --die-at-end   the first process that reaches the end creates this file and is killed
// It prints "ready" when it has its data, "begins NANOSECONDS" at its first step, "step N" now and then, and at the end
// the number of uses of samples, and the accuracy of the network.
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

void print_line(const std::string& line) { std::printf("%s\n", line.c_str()), std::fflush(stdout); }

void count_uses(std::span<const float> table, std::uint64_t epochs) {
  std::size_t wrong = 0;
  double used = 0, lost = 0, doubled = 0;
  for (std::size_t id = 0; id < table.size(); ++id) {
    const double uses = double{-table[id]} / rate;
    const double more = uses - static_cast<double>(epochs);
    used += uses;
    more > 0 ? doubled += more : lost -= more;
    if (more != 0 && wrong++ < 5)
      print_line("sample " + std::to_string(id) + " was used " + std::to_string(uses) + " times");
  }
  print_line(wrong == 0 ? "each sample was used once an epoch"
                        : std::to_string(wrong) + " samples were not, and all " + std::to_string(used) + " times: " +
                              std::to_string(lost) + " uses lost, " + std::to_string(doubled) + " doubled");
}

// The data of the network, since the loader's batches contain ids only.
class drawn_data {
 public:
  explicit drawn_data(std::size_t samples) : values_(samples * inputs), labels_(samples) {
    muster::random_stream draw(5);
    for (float& value : values_) value = static_cast<float>(draw.normal());
    // The labels contain noise, so that the accuracy depends on the quality of the training.
    for (std::size_t id = 0; id < samples; ++id)
      labels_[id] = values_[id * inputs] + 0.5 * draw.normal() > 0 ? 1.0f : 0.0f;
  }
  [[nodiscard]] double accuracy(const test::small_model& network, muster::arena& arena) const {
    return network.accuracy(arena, values_, labels_);
  }
  // Adds the values to a batch. The result is valid until the next call.
  [[nodiscard]] muster::minibatch with_values(muster::minibatch batch) {
    rows_.clear();
    of_rows_.clear();
    for (const auto id : batch.samples) {
      const auto first = values_.begin() + static_cast<std::ptrdiff_t>(id * inputs);
      rows_.insert(rows_.end(), first, first + inputs);
      of_rows_.push_back(labels_[id]);
    }
    batch.labels = of_rows_;
    batch.bytes = std::as_bytes(std::span(rows_));
    batch.schema = &schema_;
    return batch;
  }

 private:
  std::vector<float> values_, labels_, rows_, of_rows_;
  muster::data::record_schema schema_{.fields = {{.name = "row", .shape = {inputs}}}, .labels = {"label"}};
};

void train(muster::context& context, const words& arguments) {
  auto builder = muster::data::dataset_builder::dense("numbers", arguments.samples, 1);
  const auto data = builder.finish();
  drawn_data drawn(arguments.samples);
  auto loader = data | muster::shuffle(3) | muster::batch(arguments.batch);
  test::small_model network(arguments.hidden, inputs, 2);
  auto shapes = arguments.hidden == 0 ? std::vector<muster::tensor_shape>{} : network.shapes();
  const auto table = shapes.size();
  shapes.push_back({"uses", {arguments.samples}});
  muster::arena arena(context, shapes);
  if (arguments.hidden > 0) network.initialise(arena, 7);
  muster::sgd optimizer(arena);
  auto sync_options = muster::training::sync_of_job(context);
  sync_options.sparse = arguments.hidden == 0;
  muster::training training(context, sync_options, arena, optimizer, loader, network.batch_norm());
  print_line("ready");
  std::vector<std::uint64_t> elements;
  std::uint64_t steps_taken = 0;
  training.run(
      {.epochs = arguments.epochs,
       .checkpoint = arguments.tables,
       .checkpoint_every = "40 steps",
       .at_end =
           [&](muster::training_step& step) {
             if (!arguments.die_at_end.empty() &&
                 ::open(arguments.die_at_end.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0666) >= 0)
               ::raise(SIGKILL);
             elements.resize(arguments.samples);
             std::iota(elements.begin(), elements.end(), 0);
             if (sync_options.sparse) step.pull(elements);
             if (arguments.hidden > 0) print_line("accuracy " + std::to_string(drawn.accuracy(network, arena)));
             count_uses(arena.parameter(table), arguments.epochs);
           },
       .log = nullptr},
      [&](muster::training_step& step) {
        if (steps_taken == 0) print_line("begins " + std::to_string(muster::clock::now().time_since_epoch().count()));
        const auto batch = step.next(loader);
        elements.assign(batch.samples.begin(), batch.samples.end());
        std::sort(elements.begin(), elements.end());
        if (sync_options.sparse) step.pull(elements);
        step.backward(batch, [&](const auto& part, auto& backward) {
          if (!sync_options.sparse) {
            std::ranges::fill(backward.gradient(table), 0.0f);
            network.forward_backward(drawn.with_values(part), backward);
          }
          backward.divided_by(static_cast<double>(part.global_size));
          for (const auto element : elements) backward.gradient(table)[element] += 1.0f;
        });
        step.update(optimizer, rate);
        if (steps_taken++ % 50 == 0) print_line("step " + std::to_string(steps_taken - 1));
        const double time = arguments.sample_time * static_cast<double>(elements.size());
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(time > 0 ? time : arguments.step_time));
      });
  print_line("trained " + std::to_string(steps_taken));
}

}  // namespace

// The program ends by _exit while threads run that would be joined, which is not a leak.
extern "C" const char* __tsan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0"; }  // NOLINT

int main(int argc, char** argv) {
  try {
    muster::context context(argc, argv);
    train(context, read_words(argc, argv));
    print_line("done");
    std::fflush(nullptr);
    ::_exit(0);  // the world group may be incomplete
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "rank %s: %s\n", std::getenv("RANK") == nullptr ? "?" : std::getenv("RANK"), failure.what());
    std::fflush(nullptr);
    ::_exit(muster::exit_status_of(std::current_exception()));
  }
}
