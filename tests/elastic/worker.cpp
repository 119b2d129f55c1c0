// One rank of an elastic job that can tell whether every sample was used exactly once: its state has a checksum of all
// ids that committed steps used, which is a function of the data alone. The tests beside it start it and do things to
// it.
//
// usage: test_elastic_worker [--samples N] [--batch N] [--epochs N] [--values N] [--work MILLISECONDS] [--burn MS]
//                            [--ballast MB] [--steps] [--checkpoint FOLDER] [--disk MB] [--throws STEP]
//                            [--breaks STEP] [--until FILE]
//   --values   floats of the model, which are reduced in each step and copied to those that join
//   --ballast  more of the state, which is copied alone
//   --work     what each step takes beside that, asleep
//   --burn     and of a processor
//   --checkpoint  goes on from what is saved there, and saves after each epoch: "saves PROCESS", then "saved"
//   --disk     megabytes a second that files are written and read at
//   --throws   from this step on its rank 0 throws a timeout_error that is of nothing of the job's
//   --breaks   its rank 0 ends its group in this step, two times
//   --until    the epoch in which this file is there is the last, if --epochs does not end before
//   --steps    says when each step is committed: "step NUMBER GENERATION RANKS NANOSECONDS"
//              and "named TEXT" when the log names a rank or a connection as slow
// It says "ready PROCESS" when it has a group, "rebuilt GENERATION RANK SIZE ORIGINS" for each, "done CHECKSUM STEPS
// GENERATION" at the end, "ended STATUS TEXT" for other ends; "wrong TEXT" when the state is not what it must be.
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

double bytes_a_second = 0;  // 0: as fast as it is

ssize_t take_time(ssize_t bytes) {
  if (bytes > 0 && bytes_a_second > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(bytes) / bytes_a_second));
  return bytes;
}

}  // namespace

// A slow disk: these stand in front of the C library's.
extern "C" ssize_t write(int file, const void* bytes, size_t size) {
  return take_time(::syscall(SYS_write, file, bytes, size));
}
extern "C" ssize_t read(int file, void* bytes, size_t size) {
  return take_time(::syscall(SYS_read, file, bytes, size));
}

namespace {

struct words {
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
  std::string checkpoint;
  std::string until;
};

words read_words(int argc, char** argv) {
  words read;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::strtod(argv[++i], nullptr) : 0.0; };
    if (name == "--samples") read.samples = static_cast<std::uint64_t>(number());
    if (name == "--batch") read.batch = static_cast<std::uint64_t>(number());
    if (name == "--epochs") read.epochs = static_cast<std::uint64_t>(number());
    if (name == "--values") read.values = static_cast<std::size_t>(number());
    if (name == "--work") read.work = number();
    if (name == "--burn") read.burn = number();
    if (name == "--ballast") read.ballast = static_cast<std::size_t>(number() * 1e6);
    if (name == "--disk") bytes_a_second = number() * 1e6;
    if (name == "--steps") read.steps = true;
    if (name == "--throws") read.throws = static_cast<std::uint64_t>(number());
    if (name == "--breaks") read.breaks = static_cast<std::uint64_t>(number());
    if (name == "--checkpoint" && i + 1 < argc) read.checkpoint = argv[++i];
    if (name == "--until" && i + 1 < argc) read.until = argv[++i];
  }
  return read;
}

void say(const std::string& line) {
  const std::string whole = line + "\n";
  (void)!::write(STDOUT_FILENO, whole.data(), whole.size());
}

// Milliseconds of a processor that this thread had.
double processor_time() {
  timespec had{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &had);
  return 1e3 * static_cast<double>(had.tv_sec) + 1e-6 * static_cast<double>(had.tv_nsec);
}

// Between the steps, so that a reader can count them.
void name_what_is_slow() {
  muster::set_log_callback([](const muster::log_message& message) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(message.text.size()), message.text.data());
    if (message.text.find(" slow: ") != std::string_view::npos) say("named " + std::string(message.text));
  });
}

std::uint64_t mark_of(std::uint64_t id, std::uint64_t epoch) { return muster::mix(id * 1000003 + epoch * 7 + 1); }

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
    used += brought[0];
    count += brought[1];
    enough += brought[2];
  }

  std::uint64_t used = 0;
  std::uint64_t count = 0;
  std::uint64_t enough = 0;       // ranks that saw the file of --until, all steps together
  std::uint64_t brought[3] = {};  // by the last step: to each
  muster::buffer<float> weights;
  muster::buffer<float> gradient;
  muster::buffer<std::uint8_t> ballast;
};

// The generations that the events tell of.
class generations final : public muster::event_sink {
 public:
  void record(const muster::event& seen) noexcept override {
    if (seen.what != muster::activity::rebuild || seen.bytes <= last || seen.end < seen.begin) return;
    last = seen.bytes;
    ++count;
  }
  std::uint64_t last = 0;
  std::uint64_t count = 0;

 private:
  muster::scoped_event_sink installed_{*this};
};

// Compares what a change says with the group and the state behind it.
void check_change(const muster::elastic::change& what, const muster::group& ranks, const muster::state& state) {
  const auto at = state.position();
  const bool was_member = what.rank_before >= 0, is_first = what.generation == 1;
  const double times[] = {what.detect, what.agree, what.connect, what.state};
  const auto rank = static_cast<std::size_t>(what.rank);
  const std::pair<const char*, bool> facts[] = {
      {"rank", what.rank == ranks.rank() && what.size == ranks.size()},
      {"origin", std::cmp_equal(what.origin.size(), what.size) && what.origin[rank] == what.rank_before},
      {"size before", std::ranges::all_of(what.origin, [&](int before) { return before < what.size_before; })},
      {"step", at.steps + at.evaluations + at.runs == what.step},
      {"steps again", what.again <= 1},
      {"copied", was_member || is_first || what.copied},
      {"reason", is_first || !what.why.empty()},
      {"times", !was_member || std::ranges::all_of(times, [](double part) { return part > 0; })},
  };
  for (const auto& [name, holds] : facts) {
    if (holds) continue;
    say(std::string("wrong ") + name + " of a change");
    std::_Exit(70);
  }
}

void train(muster::context& context, const words& asked) {
  if (asked.steps) name_what_is_slow();
  auto loader = numbers{asked.samples} | muster::shuffle(7) | muster::batch(asked.batch);
  model learned(context, asked.values, asked.ballast);
  muster::state state{learned, loader.cursor()};
  const generations told;
  std::uint64_t rebuilt = 0;
  std::optional<muster::checkpoint> store;
  if (!asked.checkpoint.empty()) store.emplace(asked.checkpoint);
  muster::elastic::session_options options;
  options.on_rebuild = [&](muster::group& ranks, const muster::elastic::change& what) {
    ++rebuilt;
    check_change(what, ranks, state);
    std::string origins;
    for (const int rank : what.origin) origins += (origins.empty() ? "" : ",") + std::to_string(rank);
    say("rebuilt " + std::to_string(what.generation) + " " + std::to_string(what.rank) + " " +
        std::to_string(what.size) + " " + origins);
  };
  auto session = muster::elastic::session(context, options);
  const auto check = [&] {
    // Every weight has been moved by the number of samples: what a lost or doubled step would change.
    for (const float weight : learned.weights) {
      if (weight != static_cast<float>(learned.count)) {
        say("wrong weight " + std::to_string(weight) + " after " + std::to_string(learned.count) + " samples");
        std::_Exit(70);
      }
    }
  };
  bool first = true;
  int breaks_left = 2;
  const auto step = [&](muster::step& now) {
    if (std::exchange(first, false)) say("ready " + std::to_string(::getpid()));
    const auto batch = loader.next(now.shard());
    if (now.number() >= asked.throws && now.group().rank() == 0)
      throw muster::timeout_error("results", {}, "the program's own store did not answer");
    if (now.number() == asked.breaks && breaks_left > 0 && now.group().rank() == 0) {
      --breaks_left;
      now.group().abort("the test breaks it");
    }
    std::uint64_t mine = 0;
    for (const auto id : batch.samples) mine += mark_of(id, now.epoch());
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(asked.work));
    for (const double until = asked.burn > 0 ? processor_time() + asked.burn : 0; processor_time() < until;) {
    }
    for (float& g : learned.gradient) g = static_cast<float>(batch.samples.size());
    muster::allreduce(now.group(), learned.gradient.span(), muster::sum);
    learned.brought[0] = mine;
    learned.brought[1] = batch.samples.size();
    learned.brought[2] = !asked.until.empty() && ::access(asked.until.c_str(), F_OK) == 0 ? 1 : 0;
    muster::allreduce(now.group(), learned.brought, muster::sum);
    learned.learn();
    if (asked.steps) {
      const auto at = std::chrono::nanoseconds(muster::clock::now().time_since_epoch()).count();
      say("step " + std::to_string(now.number()) + " " + std::to_string(now.generation()) + " " +
          std::to_string(now.group().size()) + " " + std::to_string(at));
    }
  };
  if (store && store->load(session, state)) say("goes on after " + std::to_string(state.steps()));
  const auto epochs = [&] {
    return learned.enough == 0 ? asked.epochs : (learned.count + asked.samples - 1) / asked.samples;
  };
  while (session.run(state, step, {.epochs = epochs()})) {
    check();
    if (!store) continue;
    say("saves " + std::to_string(state.steps()));
    store->save(session, state);
    say("saved");
  }
  std::uint64_t wanted = 0;
  for (std::uint64_t epoch = 0; epoch < epochs(); ++epoch) {
    for (std::uint64_t id = 0; id < asked.samples; ++id) wanted += mark_of(id, epoch);
  }
  if (learned.used != wanted || learned.count != asked.samples * epochs()) {
    say("wrong samples: " + std::to_string(learned.count) + " used of " + std::to_string(asked.samples * epochs()));
    std::_Exit(70);
  }
  if (told.last != session.generation() || told.count > rebuilt) {
    say("wrong events: " + std::to_string(told.count) + " generations, the last " + std::to_string(told.last));
    std::_Exit(70);
  }
  say("done " + std::to_string(learned.used) + " " + std::to_string(state.steps()) + " " +
      std::to_string(session.generation()));
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    try {
      train(context, read_words(argc, argv));
    } catch (const muster::error& failure) {
      say("ended " + std::to_string(failure.exit_status()) + " " + failure.what());
      throw;
    }
  });
}
