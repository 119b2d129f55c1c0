// A rank of an elastic job that can verify that every sample was used exactly once: its state has a checksum of all
// ids that committed steps used, which is a function of the data alone. The test scripts in this folder start it and
// cause faults.
//
// usage: test_elastic_worker [--samples N] [--batch N] [--epochs N] [--values N] [--work MILLISECONDS] [--burn MS]
//                            [--ballast MB] [--steps] [--checkpoint FOLDER] [--disk MB] [--throws STEP]
//                            [--breaks STEP] [--until FILE]
//   --values   number of floats of the model, which are reduced in each step and copied to ranks that join
//   --ballast  further state, which is only copied
//   --work     additional time per step, asleep
//   --burn     additional processor time per step
//   --checkpoint  continues from the checkpoint there, and saves after each epoch: "saves PROCESS", then "saved"
//   --disk     megabytes per second at which files are written and read
//   --throws   from this step on, rank 0 throws a timeout_error that is unrelated to the job's group
//   --breaks   rank 0 aborts its group in this step, twice
//   --until    the epoch in which this file exists is the last, unless --epochs ends the run before
//   --steps    prints when each step is committed: "step NUMBER GENERATION RANKS NANOSECONDS"
//              and "named TEXT" when the log names a rank or a connection as slow
// It prints "ready PROCESS" when it has a group, "rebuilt GENERATION RANK SIZE ORIGINS" for each group, "done CHECKSUM
// STEPS GENERATION" at the end, "ended STATUS TEXT" for other ends, and "wrong TEXT" when the state is not the expected
// one.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/events.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include <muster/data/loader.hpp>
#include <muster/elastic/elastic.hpp>
#include <muster/train/checkpoint.hpp>

#include "elastic/numbers.hpp"

namespace {

double bytes_a_second = 0;  // 0: unlimited

ssize_t take_time(ssize_t bytes) {
  if (bytes > 0 && bytes_a_second > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(bytes) / bytes_a_second));
  return bytes;
}

}  // namespace

// Simulates a slow disk: these functions replace the C library's.
extern "C" ssize_t write(int file, const void* bytes, size_t size) {
  return take_time(::syscall(SYS_write, file, bytes, size));
}
extern "C" ssize_t read(int file, void* bytes, size_t size) {
  return take_time(::syscall(SYS_read, file, bytes, size));
}

namespace {

struct worker_options {
  std::uint64_t samples = 1000;
  std::uint64_t batch = 50;
  std::uint64_t epochs = 4;
  std::size_t values = 200000;
  double work = 10;
  double burn = 0;
  std::size_t ballast = 0;  // bytes
  bool steps = false;
  std::uint64_t throws = ~std::uint64_t{0};
  std::uint64_t breaks = ~std::uint64_t{0};
  std::uint64_t ahead = 0;  // epochs that this rank has trained before the job
  std::string checkpoint;
  std::string until;
};

worker_options parse_options(int argc, char** argv) {
  worker_options parsed;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::strtod(argv[++i], nullptr) : 0.0; };
    if (name == "--samples") parsed.samples = static_cast<std::uint64_t>(number());
    if (name == "--batch") parsed.batch = static_cast<std::uint64_t>(number());
    if (name == "--epochs") parsed.epochs = static_cast<std::uint64_t>(number());
    if (name == "--values") parsed.values = static_cast<std::size_t>(number());
    if (name == "--work") parsed.work = number();
    if (name == "--burn") parsed.burn = number();
    if (name == "--ballast") parsed.ballast = static_cast<std::size_t>(number() * 1e6);
    if (name == "--disk") bytes_a_second = number() * 1e6;
    if (name == "--steps") parsed.steps = true;
    if (name == "--ahead") parsed.ahead = static_cast<std::uint64_t>(number());
    if (name == "--throws") parsed.throws = static_cast<std::uint64_t>(number());
    if (name == "--breaks") parsed.breaks = static_cast<std::uint64_t>(number());
    if (name == "--checkpoint" && i + 1 < argc) parsed.checkpoint = argv[++i];
    if (name == "--until" && i + 1 < argc) parsed.until = argv[++i];
  }
  return parsed;
}

void print_line(const std::string& line) {
  const std::string text = line + "\n";
  (void)!::write(STDOUT_FILENO, text.data(), text.size());
}

// Returns the thread's processor time, in milliseconds.
double processor_time() {
  timespec time{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

// Prints the slow ranks and connections between the steps, so that a reader can count these.
void print_slow_ranks() {
  muster::set_log_callback([](const muster::log_message& message) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(message.text.size()), message.text.data());
    if (message.text.find(" slow: ") != std::string_view::npos) print_line("named " + std::string(message.text));
  });
}

std::uint64_t mark_of(std::uint64_t id, std::uint64_t epoch) { return muster::mix(id * 1000003 + epoch * 7 + 1); }

// Returns the sum of the marks that these epochs use.
std::uint64_t marks_of(std::uint64_t samples, std::uint64_t epochs) {
  std::uint64_t sum = 0;
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    for (std::uint64_t id = 0; id < samples; ++id) sum += mark_of(id, epoch);
  }
  return sum;
}

struct model {
  model(muster::context& context, std::size_t values, std::size_t more)
      : weights(context.allocate<float>(values)),
        gradient(context.allocate<float>(values)),
        ballast(context.allocate<std::uint8_t>(more)) {
    for (std::size_t k = 0; k < more; ++k) ballast[k] = static_cast<std::uint8_t>(k * 7 + k / 251);
  }

  void describe(muster::state_parts& parts) {
    parts.add("checksum", std::span(&used, 1));
    parts.add("count", std::span(&count, 1));
    parts.add("enough", std::span(&enough, 1));
    parts.add("weights", weights.span());
    parts.add("ballast", ballast.span());
  }

  void learn() {
    for (std::size_t k = 0; k < weights.size(); ++k) weights[k] += gradient[k];
    used += last_sums[0];
    count += last_sums[1];
    enough += last_sums[2];
  }

  std::uint64_t used = 0;
  std::uint64_t count = 0;
  std::uint64_t enough = 0;         // number of ranks that saw the file of --until, summed over all steps
  std::uint64_t last_sums[3] = {};  // sums of the last step for each of the three totals
  muster::buffer<float> weights;
  muster::buffer<float> gradient;
  muster::buffer<std::uint8_t> ballast;
};

// Counts the generations that the events report.
class generations final : public muster::event_sink {
 public:
  void record(const muster::event& measured) noexcept override {
    if (measured.kind != muster::activity::rebuild || measured.bytes <= last || measured.end < measured.begin) return;
    last = measured.bytes;
    ++count;
  }
  std::uint64_t last = 0;
  std::uint64_t count = 0;

 private:
  muster::scoped_event_sink installed_{*this};
};

// Compares a reported change with the group and the state after it.
void check_change(const muster::elastic::change& change, const muster::group& ranks, const muster::state& state) {
  const auto at = state.position();
  const bool was_member = change.rank_before >= 0, is_first = change.generation == 1;
  const double times[] = {change.detect, change.agree, change.connect, change.state};
  const auto rank = static_cast<std::size_t>(change.rank);
  const std::pair<const char*, bool> facts[] = {
      {"rank", change.rank == ranks.rank() && change.size == ranks.size()},
      {"origin", std::cmp_equal(change.origin.size(), change.size) && change.origin[rank] == change.rank_before},
      {"size before", std::ranges::all_of(change.origin, [&](int before) { return before < change.size_before; })},
      {"step", at.steps == change.step},
      {"steps again", change.again <= 1},
      {"copied", was_member || is_first || change.copied},
      {"reason", is_first || !change.reason.empty()},
      {"times", !was_member || std::ranges::all_of(times, [](double part) { return part > 0; })},
  };
  for (const auto& [name, holds] : facts) {
    if (holds) continue;
    print_line(std::string("wrong ") + name + " of a change");
    std::_Exit(70);
  }
}

void train(muster::context& context, const worker_options& options) {
  if (options.steps) print_slow_ranks();
  auto loader = numbers{options.samples} | muster::shuffle(7) | muster::batch(options.batch);
  model learned(context, options.values, options.ballast);
  muster::state state{learned, loader.cursor()};
  if (options.ahead > 0) {
    learned.used = marks_of(options.samples, options.ahead);
    learned.count = options.samples * options.ahead;
    std::ranges::fill(learned.weights, static_cast<float>(learned.count));
    auto position = state.position();
    position.steps = learned.count / options.batch;
    position.data.epoch = options.ahead;
    state.move_to(position);
  }
  const generations events;
  std::uint64_t rebuilt = 0;
  std::optional<muster::checkpoint> store;
  if (!options.checkpoint.empty()) store.emplace(options.checkpoint);
  muster::elastic::session_options session_options;
  session_options.on_rebuild = [&](muster::group& ranks, const muster::elastic::change& change) {
    ++rebuilt;
    check_change(change, ranks, state);
    std::string origins;
    for (const int rank : change.origin) origins += (origins.empty() ? "" : ",") + std::to_string(rank);
    print_line("rebuilt " + std::to_string(change.generation) + " " + std::to_string(change.rank) + " " +
               std::to_string(change.size) + " " + origins);
  };
  auto session = muster::elastic::session(context, session_options);
  const auto check = [&] {
    // Every weight equals the number of samples, which a lost or repeated step would change.
    for (const float weight : learned.weights) {
      if (weight != static_cast<float>(learned.count)) {
        print_line("wrong weight " + std::to_string(weight) + " after " + std::to_string(learned.count) + " samples");
        std::_Exit(70);
      }
    }
  };
  bool first = true;
  int breaks_left = 2;
  const auto step = [&](muster::step& current) {
    if (std::exchange(first, false)) print_line("ready " + std::to_string(::getpid()));
    const auto batch = loader.next(current.shard());
    if (current.number() >= options.throws && current.group().rank() == 0)
      throw muster::timeout_error("results", {}, "the program's own store did not answer");
    if (current.number() == options.breaks && breaks_left > 0 && current.group().rank() == 0) {
      --breaks_left;
      current.group().abort("the test breaks the group");
    }
    std::uint64_t mine = 0;
    for (const auto id : batch.samples) mine += mark_of(id, current.epoch());
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(options.work));
    for (const double until = options.burn > 0 ? processor_time() + options.burn : 0; processor_time() < until;) {
    }
    for (float& g : learned.gradient) g = static_cast<float>(batch.samples.size());
    muster::allreduce(current.group(), learned.gradient.span(), muster::sum);
    learned.last_sums[0] = mine;
    learned.last_sums[1] = batch.samples.size();
    learned.last_sums[2] = !options.until.empty() && ::access(options.until.c_str(), F_OK) == 0 ? 1 : 0;
    muster::allreduce(current.group(), learned.last_sums, muster::sum);
    learned.learn();
    if (options.steps) {
      const auto at = std::chrono::nanoseconds(muster::clock::now().time_since_epoch()).count();
      print_line("step " + std::to_string(current.number()) + " " + std::to_string(current.generation()) + " " +
                 std::to_string(current.group().size()) + " " + std::to_string(at));
    }
  };
  if (store && store->load(session, state)) print_line("goes on after " + std::to_string(state.steps()));
  const auto epochs = [&] {
    return learned.enough == 0 ? options.epochs : (learned.count + options.samples - 1) / options.samples;
  };
  while (session.run(state, step, {.epochs = epochs()})) {
    check();
    if (!store) continue;
    print_line("saves " + std::to_string(state.steps()));
    store->save(session, state);
    print_line("saved");
  }
  if (learned.used != marks_of(options.samples, epochs()) || learned.count != options.samples * epochs()) {
    print_line("wrong samples: " + std::to_string(learned.count) + " used of " +
               std::to_string(options.samples * epochs()));
    std::_Exit(70);
  }
  if (events.last != session.generation() || events.count > rebuilt) {
    print_line("wrong events: " + std::to_string(events.count) + " generations, the last " +
               std::to_string(events.last));
    std::_Exit(70);
  }
  print_line("done " + std::to_string(learned.used) + " " + std::to_string(state.steps()) + " " +
             std::to_string(session.generation()));
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    try {
      train(context, parse_options(argc, argv));
    } catch (const muster::error& failure) {
      print_line("ended " + std::to_string(failure.exit_status()) + " " + failure.what());
      throw;
    }
  });
}
