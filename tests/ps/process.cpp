// A rank of a job with a parameter server, to which faults.py does things. Each worker adds 1 to an element of its own
// in every range, step after step, and says what it has been told to count; in the end it says what is there.
//
//   test_ps_process --steps N      and muster's own --servers N --replicas R
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <muster/muster.hpp>

namespace ps = muster::ps;

namespace {

constexpr std::size_t stride = 1024;  // elements of a range
constexpr std::size_t ranges = 24;

long number_after(int argc, char** argv, const std::string& flag, long fallback) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == flag) return std::strtol(argv[i + 1], nullptr, 10);
  }
  return fallback;
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// The longest time in which no push of this worker came to count.
class gaps {
 public:
  void counted() {
    const auto now = muster::clock::now();
    longest_ = std::max(longest_, now - last_);
    last_ = now;
  }
  [[nodiscard]] double longest() const { return muster::seconds(longest_).count(); }

 private:
  muster::clock::time_point last_ = muster::clock::now();
  muster::clock::duration longest_{0};
};

void work(ps::job& job, long steps) {
  auto& tables = job.tables();
  const auto own = static_cast<std::size_t>(job.worker());
  const std::vector<float> one = {1.0f};
  gaps seen;
  for (long step = 0; step < steps; ++step) {
    std::vector<ps::pending> under_way;
    for (std::size_t range = 0; range < ranges; ++range)
      under_way.push_back(tables.push_async(0, one, {.offset = range * stride + own}));
    const std::vector<std::uint64_t> keys = {own, own + 1000};
    const std::vector<float> rows = {1.0f, 2.0f};
    under_way.push_back(tables.push_async(1, keys, rows));
    for (auto& push : under_way) push.wait();
    seen.counted();
    tables.next_clock();
    if (step % 50 == 0) say("step " + std::to_string(step));
  }
  tables.flush();
  std::vector<float> found(1);
  for (std::size_t range = 0; range < ranges; ++range) {
    tables.pull(0, found, range * stride + own);
    if (found[0] != static_cast<float>(steps)) {
      throw muster::error(muster::error_kind::other, "range " + std::to_string(range) + " has " +
                                                         std::to_string(found[0]) + " of " + std::to_string(steps) +
                                                         " pushes of worker " + std::to_string(own));
    }
  }
  const std::vector<std::uint64_t> keys = {own, own + 1000};
  std::vector<float> rows(2);
  tables.pull(1, keys, rows);
  if (rows[0] != static_cast<float>(steps) || rows[1] != 2 * static_cast<float>(steps))
    throw muster::error(muster::error_kind::other, "the rows of worker " + std::to_string(own) + " do not add up");
  say("all counts; longest gap " + std::to_string(seen.longest()));
  job.finish();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    muster::context context(argc, argv);
    auto& world = context.world();
    auto options = ps::chosen_options(
        context.configuration(), {{.name = "dense", .size = ranges * stride, .ranges = ranges}, {.name = "sparse"}});
    options.timeout = muster::seconds(20);
    options.retry = muster::seconds(0.1);
    options.silence = muster::seconds(0.5);
    ps::job job(context, world, options);
    say("ready " + std::to_string(::getpid()));
    if (job.is_server())
      job.serve();
    else
      work(job, number_after(argc, argv, "--steps", 300));
    say("done");
    // The group of all ranks is not whole any more: it is left without a word.
    std::fflush(nullptr);
    ::_exit(0);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "rank %s: %s\n", std::getenv("RANK") == nullptr ? "?" : std::getenv("RANK"), failure.what());
    std::fflush(nullptr);
    ::_exit(muster::exit_status_of(std::current_exception()));
  }
}
