// A rank of a job with a parameter server, as faults.py's subject. Each worker adds 1 to its own element in every
// range, step after step, and prints how many pushes are acknowledged. At the end it prints the final values.
//
//   test_ps_process --steps N [--until FILE] [--scale SERVERS,SERVERS,...] [--save FOLDER] [--resume]
//                                  and muster's own --servers N --standby N --replicas R
//
// --until: steps continue until this file exists, and then for a few more steps, so that faults happen during training.
// --scale: the first worker requests these numbers of servers, one after the other. --save: all tables are saved
// repeatedly, and the last save is loaded at the end: the save of the step before if a worker died during the last
// save. --resume: the process starts from the previous save.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <muster/muster.hpp>

namespace ps = muster::ps;

namespace {

constexpr std::size_t stride = 1024;  // elements in a range
constexpr std::size_t ranges = 24;

long number_after(int argc, char** argv, const std::string& flag, long fallback) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == flag) return std::strtol(argv[i + 1], nullptr, 10);
  }
  return fallback;
}

std::string text_after(int argc, char** argv, const std::string& flag) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == flag) return argv[i + 1];
  }
  return "";
}

std::vector<std::size_t> numbers_in(const std::string& text) {
  std::vector<std::size_t> found;
  for (std::istringstream in(text); in.good();) {
    std::string number;
    if (std::getline(in, number, ',') && !number.empty()) found.push_back(std::stoul(number));
  }
  return found;
}

void print_line(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// The longest time without an acknowledged push.
class gaps {
 public:
  void on_acknowledged() {
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
  std::string until;
  std::vector<std::size_t> scale;
  std::string save;
  bool resumes = false;
};

// Returns true if the process that started the job will inject further faults.
bool awaits_more(const plan& chosen) { return !chosen.until.empty() && ::access(chosen.until.c_str(), F_OK) != 0; }

// Waits until the number of servers is the number that the first worker requested last.
void await_servers(ps::client& tables, std::size_t target) {
  const auto until = muster::clock::now() + std::chrono::seconds(20);
  while (tables.servers() != target && muster::clock::now() < until) tables.progress();
  print_line("servers " + std::to_string(tables.servers()) + " of " + std::to_string(target));
}

[[noreturn]] void fail(const std::string& reason) { throw muster::error(muster::error_kind::other, reason); }

// Saves by all workers, while all live.
class saves {
 public:
  saves(ps::job& job, std::string folder) : job_(job), folder_(std::move(folder)) {
    if (!folder_.empty()) workers_.emplace(job.connect_workers());
  }
  // Returns the step of the last save of tables and cursor.
  long resume() {
    const auto found = ps::load_tables(job_, *workers_, folder_);
    if (!found) return 0;
    saved_ = static_cast<long>(found->position.steps);
    print_line("goes on at step " + std::to_string(saved_));
    return saved_;
  }
  void after(long step, const plan& chosen) {
    if (!workers_ || (step + 1) % 10 != 0) return;
    const bool is_first = !std::exchange(announced_, true);
    if (is_first) print_line("saves");
    try {
      ps::save_tables(job_, *workers_, folder_, {.steps = static_cast<std::uint64_t>(step + 1)});
      saved_ = step + 1;
      if (is_first) print_line("saved");
      std::int64_t more[] = {awaits_more(chosen) ? 1 : 0};
      muster::broadcast(*workers_, std::span(more), 0);
      awaits_ = more[0] != 0;
    } catch (const ps::tables_lost&) {
      throw;
    } catch (const muster::error& cut_short) {
      print_line(std::string("saves no more: ") + cut_short.what());
      workers_.reset();
    }
  }
  // Workers that save together take equally many steps.
  [[nodiscard]] bool awaits(const plan& chosen) const { return workers_ ? awaits_ : awaits_more(chosen); }
  // Checks that the saved tables are the tables after a common step: the last saved step, or the next save's step if
  // only the end of the save was interrupted.
  void check_last() {
    if (saved_ == 0) return;
    auto& tables = job_.tables();
    const bool all_live = workers_.has_value();
    if (!all_live && !is_alone())
      return print_line("the last save is not looked at: other workers live that do not meet");
    if (!all_live) workers_.emplace(muster::make_self_transport());
    muster::barrier(*workers_);
    const auto clock = static_cast<long>(ps::load_tables(job_, *workers_, folder_).value().position.steps);
    if (clock != saved_ && (all_live || clock != saved_ + 10))
      fail("the last save is of step " + std::to_string(clock) + ", not of " + std::to_string(saved_));
    for (int worker = 0; worker < job_.workers(); ++worker) {
      const auto own = static_cast<std::size_t>(worker);
      std::vector<float> found(1);
      std::vector<float> rows(2);
      tables.pull(0, found, own);
      tables.pull(1, std::vector<std::uint64_t>{own, own + 1000}, rows);
      if (found[0] != static_cast<float>(clock) || rows[1] != 2 * static_cast<float>(clock))
        fail("what was saved of worker " + std::to_string(worker) + " is not what there was then");
    }
  }

 private:
  // Returns soon, because the other ranks notice a dead rank.
  bool is_alone() {
    auto& tables = job_.tables();
    const auto until = muster::clock::now() + std::chrono::seconds(5);
    while (tables.workers() > 1 && muster::clock::now() < until) tables.progress();
    return tables.workers() == 1;
  }

  ps::job& job_;
  std::string folder_;
  std::optional<muster::group> workers_;
  long saved_ = 0;
  bool announced_ = false;
  bool awaits_ = true;
};

void scale(ps::client& tables, const plan& chosen, long step) {
  const long every = chosen.steps / static_cast<long>(chosen.scale.size() + 1);
  if (step == 0 || step % every != 0 || static_cast<std::size_t>(step / every) > chosen.scale.size()) return;
  const auto target = chosen.scale[static_cast<std::size_t>(step / every) - 1];
  print_line("scales to " + std::to_string(target));
  tables.request_servers(target);
}

void check_sums(ps::client& tables, std::size_t own, long steps) {
  std::vector<float> found(1);
  for (std::size_t range = 0; range < ranges; ++range) {
    tables.pull(0, found, range * stride + own);
    if (found[0] != static_cast<float>(steps)) {
      fail("range " + std::to_string(range) + " has " + std::to_string(found[0]) + " of " + std::to_string(steps) +
           " pushes of worker " + std::to_string(own));
    }
  }
  std::vector<float> rows(2);
  tables.pull(1, std::vector<std::uint64_t>{own, own + 1000}, rows);
  if (rows[0] != static_cast<float>(steps) || rows[1] != 2 * static_cast<float>(steps))
    fail("the rows of worker " + std::to_string(own) + " do not add up");
}

void work(ps::job& job, const plan& chosen) {
  auto& tables = job.tables();
  const auto own = static_cast<std::size_t>(job.worker());
  const std::vector<float> ones = {1.0f};
  const std::vector<std::uint64_t> keys = {own, own + 1000};
  const std::vector<float> rows = {1.0f, 2.0f};
  saves saved(job, chosen.save);
  gaps push_gaps;
  const long first = chosen.resumes ? saved.resume() : 0;
  long steps = first + chosen.steps;
  for (long step = first; step < steps; ++step) {
    if (saved.awaits(chosen)) steps = std::max(steps, step + 20);
    std::vector<ps::pending> pushes;
    for (std::size_t range = 0; range < ranges; ++range)
      pushes.push_back(tables.push_async(0, ones, {.offset = range * stride + own}));
    pushes.push_back(tables.push_async(1, keys, rows));
    for (auto& push : pushes) push.wait();
    push_gaps.on_acknowledged();
    tables.next_clock();
    if (step % 50 == 0) print_line("step " + std::to_string(step));
    if (own == 0 && !chosen.scale.empty()) scale(tables, chosen, step);
    saved.after(step, chosen);
  }
  if (own == 0 && !chosen.scale.empty()) await_servers(tables, chosen.scale.back());
  tables.flush();
  check_sums(tables, own, steps);
  saved.check_last();
  print_line("all counts; longest gap " + std::to_string(push_gaps.longest()));
  job.finish();
}

}  // namespace

// The process ends by _exit while other threads run, which is no leak.
extern "C" const char* __tsan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0"; }  // NOLINT

int main(int argc, char** argv) {
  try {
    muster::context context(argc, argv);
    auto& world = context.world();
    auto options = ps::chosen_options(
        context.configuration(), {{.name = "dense", .size = ranges * stride, .ranges = ranges}, {.name = "sparse"}});
    options.timeout = muster::seconds(20);
    options.retry = muster::seconds(0.1);
    options.server_silence = muster::seconds(2);  // a busy machine is no dead server
    ps::job job(context, world, options);
    print_line("ready " + std::to_string(::getpid()) + (job.is_server() ? " to serve" : " to work"));
    if (job.is_server())
      job.serve();
    else
      work(job, {number_after(argc, argv, "--steps", 300), text_after(argc, argv, "--until"),
                 numbers_in(text_after(argc, argv, "--scale")), text_after(argc, argv, "--save"),
                 std::find(argv, argv + argc, std::string_view("--resume")) != argv + argc});
    print_line("done");
    // The group is incomplete: the process leaves it without a message.
    std::fflush(nullptr);
    ::_exit(0);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "rank %s: %s\n", std::getenv("RANK") == nullptr ? "?" : std::getenv("RANK"), failure.what());
    std::fflush(nullptr);
    ::_exit(muster::exit_status_of(std::current_exception()));
  }
}
