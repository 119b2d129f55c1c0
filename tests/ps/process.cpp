// A rank of a job with a parameter server, to which faults.py does things. Each worker adds 1 to an element of its own
// in every range, step after step, and says what it has been told to count; in the end it says what is there.
//
//   test_ps_process --steps N [--scale SERVERS,SERVERS,...] [--save FOLDER]
//                                  and muster's own --servers N --standby N --replicas R
//
// --scale: the first worker wants so many servers, one number after the other. --save: all tables are saved again and
// again, and the last save is loaded in the end.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <muster/muster.hpp>
#include <muster/ps/table_files.hpp>

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

std::string word_after(int argc, char** argv, const std::string& flag) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == flag) return argv[i + 1];
  }
  return "";
}

std::vector<std::size_t> numbers_in(const std::string& text) {
  std::vector<std::size_t> found;
  for (std::istringstream in(text); in.good();) {
    std::string one;
    if (std::getline(in, one, ',') && !one.empty()) found.push_back(std::stoul(one));
  }
  return found;
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

struct plan {
  long steps = 300;
  std::vector<std::size_t> scale;
  std::string save;
};

// Until the servers are as many as the first worker wanted last.
void await_servers(ps::client& tables, std::size_t wanted) {
  const auto until = muster::clock::now() + std::chrono::seconds(20);
  while (tables.map().servers.size() != wanted && muster::clock::now() < until) tables.progress();
  say("servers " + std::to_string(tables.map().servers.size()) + " of " + std::to_string(wanted));
}

void work(ps::job& job, muster::group& workers, const plan& chosen) {
  const long steps = chosen.steps;
  long saved = 0;
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
    if (const long every = steps / static_cast<long>(chosen.scale.size() + 1);
        own == 0 && step > 0 && step % every == 0 && static_cast<std::size_t>(step / every) <= chosen.scale.size()) {
      const auto wanted = chosen.scale[static_cast<std::size_t>(step / every) - 1];
      say("scales to " + std::to_string(wanted));
      tables.serve_by(wanted);
    }
    if (!chosen.save.empty() && step % 10 == 9) {
      if (step == 9) say("saves");
      ps::save_tables(job, workers, chosen.save);
      saved = step + 1;
    }
  }
  if (own == 0 && !chosen.scale.empty()) await_servers(tables, chosen.scale.back());
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
  if (saved > 0) {
    muster::barrier(workers);
    if (ps::load_tables(job, workers, chosen.save) != static_cast<std::uint64_t>(saved))
      throw muster::error(muster::error_kind::other, "the last save is not of step " + std::to_string(saved));
    tables.pull(1, keys, rows);
    tables.pull(0, found, own);
    if (found[0] != static_cast<float>(saved) || rows[1] != 2 * static_cast<float>(saved))
      throw muster::error(muster::error_kind::other, "what was saved is not what there was then");
  }
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
    auto workers = world.split(job.is_server() ? 1 : 0);
    say("ready " + std::to_string(::getpid()));
    if (job.is_server())
      job.serve();
    else
      work(job, workers,
           {number_after(argc, argv, "--steps", 300), numbers_in(word_after(argc, argv, "--scale")),
            word_after(argc, argv, "--save")});
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
