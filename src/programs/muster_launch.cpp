// muster-launch: starts the ranks of a job on this host, starts those again that die, and says how all ended.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/ps/job.hpp>

namespace {

constexpr muster::number_range<int> ranks{1, muster::most_ranks};
constexpr muster::number_range<int> restarts{0, 1'000'000};
constexpr muster::number_range<double> grace{0, 86'400};

constexpr int tables_lost = muster::ps::tables_lost::status;

std::string usage() {
  const auto within = [](const auto& range) { return " (" + to_string(range) + ") "; };
  return "usage: muster-launch [options] program [arguments]\n"
         "  -n N            ranks to start" +
         within(ranks) +
         "[1]\n"
         "  --min N         with fewer ranks the job waits until more join" +
         within(ranks) +
         "[1]\n"
         "  --max N         most ranks of the job; more are not admitted" +
         within(ranks) +
         "[N of -n]\n"
         "  --restart N     how many ranks that died are restarted" +
         within(restarts) +
         "[0]\n"
         "  --elastic WHEN  on, or off: ranks connect once, and --restart is for the whole job, when it ends with " +
         std::to_string(tables_lost) +
         "\n"
         "                  (a parameter server has lost tables) [on]\n"
         "  --grace SECONDS from a SIGTERM to this program until the ranks are killed" +
         within(grace) +
         "[10]\n"
         "  --quiet         prints nothing about ranks that die or are restarted\n"
         "  --version       prints the version of muster\n"
         "\n"
         "Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MUSTER_ELASTIC, MUSTER_JOB, MUSTER_MIN_RANKS,\n"
         "MUSTER_MAX_RANKS for each rank, and serves the store of the job unless MUSTER_RENDEZVOUS is set. SIGUSR2\n"
         "starts one more rank; SIGTERM and SIGINT go to all ranks.\n"
         "Exit status: 0 when the job is complete (a rank ended with 0, and none is left), else that of the last rank\n"
         "that ended (128 + signal if a signal killed it). With --elastic off only the status of rank 0 counts.\n";
}

struct plan {
  int ranks = 1;
  int min = 1;
  int max = 0;
  int restarts = 0;
  bool elastic = true;
  double grace = 10;
  bool quiet = false;
  std::vector<char*> command;
};

[[noreturn]] void refuse(const std::string& text) { throw muster::configuration_error(text); }

plan read_plan(int argc, char** argv) {
  plan read;
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    const std::string_view flag(argv[i]);
    const auto word = [&] {
      if (i + 1 == argc) refuse(std::string(flag) + " needs a value (it is the last word); see muster-launch --help");
      return argv[++i];
    };
    const auto number = [&](const auto& range) { return muster::number_from(flag, word(), range); };
    if (flag == "-n") {
      read.ranks = number(ranks);
    } else if (flag == "--min") {
      read.min = number(ranks);
    } else if (flag == "--max") {
      read.max = number(ranks);
    } else if (flag == "--restart") {
      read.restarts = number(restarts);
    } else if (flag == "--elastic") {
      const std::string_view when = word();
      if (when != "on" && when != "off")
        refuse("--elastic cannot be '" + std::string(when) + "' (it is on or off); choose one");
      read.elastic = when == "on";
    } else if (flag == "--grace") {
      read.grace = number(grace);
    } else if (flag == "--quiet") {
      read.quiet = true;
    } else if (flag == "--help" || flag == "-h") {
      std::fputs(usage().c_str(), stdout);
      std::exit(0);
    } else if (flag == "--version") {
      std::fputs(muster::answer_to(muster::settings::question::version, {}).c_str(), stdout);
      std::exit(0);
    } else if (flag == "--") {
      ++i;
      break;
    } else {
      refuse("muster-launch does not know '" + std::string(flag) +
             "' (flags of the program come after its name); see "
             "muster-launch --help");
    }
  }
  for (; i < argc; ++i) read.command.push_back(argv[i]);
  if (read.command.empty())
    refuse("muster-launch has nothing to start (no program is named); see muster-launch --help");
  if (read.max == 0) read.max = read.ranks;
  if (read.min > read.ranks || read.ranks > read.max) {
    refuse("muster-launch cannot start " + std::to_string(read.ranks) + " ranks (--min is " + std::to_string(read.min) +
           " and --max " + std::to_string(read.max) + "); choose -n between them");
  }
  read.command.push_back(nullptr);
  return read;
}

// No other user of this host is to know it.
std::string draw_token() {
  std::random_device draw;
  std::string text;
  for (int i = 0; i < 8; ++i) text += std::to_string(draw());
  return text;
}

class launcher {
 public:
  explicit launcher(plan what) : plan_(std::move(what)) {
    sigset_t ours;
    ::sigemptyset(&ours);
    for (const int one : {SIGCHLD, SIGTERM, SIGINT, SIGUSR2, SIGHUP}) ::sigaddset(&ours, one);
    ::sigprocmask(SIG_BLOCK, &ours, &before_);
    waited_ = ours;
    serve();  // on a thread that takes no signals
  }

  int run() {
    start_all();
    std::optional<std::chrono::steady_clock::time_point> until;
    while (!running_.empty() || begin_again()) {
      const timespec turn{0, 200'000'000};
      const int got = ::sigtimedwait(&waited_, nullptr, &turn);
      if (got == SIGTERM || got == SIGINT || got == SIGHUP) {
        ending_ = true;
        tell_all(got);
        if (!until) {
          until = std::chrono::steady_clock::now() +
                  std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(plan_.grace));
        }
      }
      if (got == SIGUSR2 && plan_.elastic && static_cast<int>(running_.size()) < plan_.max) start(next_rank_++);
      reap();
      if (until && std::chrono::steady_clock::now() > *until) tell_all(SIGKILL);
    }
    if (finished_ && (deaths_ > 0 || started_ > plan_.ranks))
      say(std::to_string(started_) + " processes were started, " + std::to_string(deaths_) +
          " died, and the job is done");
    return lost_ ? tables_lost : finished_ ? 0 : last_status_;
  }

 private:
  // The store of the job, and what its ranks have of it in their environment.
  void serve() {
    std::string token = muster::environment("MUSTER_TOKEN").value_or("");
    if (token.empty()) token = draw_token();
    common_ = {{"MUSTER_ELASTIC", plan_.elastic ? "on" : "off"}, {"MUSTER_JOB", job_},
               {"WORLD_SIZE", std::to_string(plan_.ranks)},      {"LOCAL_WORLD_SIZE", std::to_string(plan_.ranks)},
               {"MUSTER_MIN_RANKS", std::to_string(plan_.min)},  {"MUSTER_MAX_RANKS", std::to_string(plan_.max)}};
    if (muster::environment("MUSTER_RENDEZVOUS")) return;
    store_.emplace("127.0.0.1:0", token);
    common_["MUSTER_RENDEZVOUS"] = "tcp://" + store_->address();
    common_["MUSTER_TOKEN"] = token;
  }

  // Made before the fork: after it only what is safe in a copy of a process with threads is done.
  [[nodiscard]] std::vector<std::string> environment_of(int rank) const {
    auto its = common_;
    its["RANK"] = its["LOCAL_RANK"] = std::to_string(rank % plan_.ranks);
    std::vector<std::string> all;
    for (char** one = environ; *one != nullptr; ++one) {
      const std::string_view entry(*one);
      if (!its.contains(std::string(entry.substr(0, entry.find('='))))) all.emplace_back(entry);
    }
    for (const auto& [name, value] : its) all.push_back(name + "=" + value);
    return all;
  }

  void start_all() {
    for (int rank = 0; rank < plan_.ranks; ++rank) start(rank);
  }

  // All ranks that were left have said by their status that the job can only go on from what it saved. It has another
  // name then: what the ranks before left in the store is none of theirs.
  bool begin_again() {
    if (!lost_ || ending_ || plan_.restarts == 0) return false;
    say("the job has lost tables; it is restarted");
    --plan_.restarts;
    lost_ = finished_ = false;
    common_["MUSTER_JOB"] = job_ + "-" + std::to_string(++again_);
    start_all();
    return true;
  }

  void start(int rank) {
    next_rank_ = std::max(next_rank_, rank + 1);
    auto texts = environment_of(rank);
    std::vector<char*> variables;
    for (auto& text : texts) variables.push_back(text.data());
    variables.push_back(nullptr);
    const auto parent = ::getpid();
    const auto child = ::fork();
    if (child < 0)
      refuse("no process can be started (" + std::string(std::strerror(errno)) +
             "); check the limit of processes (ulimit -u)");
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nothing is left behind when this program is killed
      if (::getppid() != parent) ::_exit(1);
      ::sigprocmask(SIG_SETMASK, &before_, nullptr);
      ::execvpe(plan_.command[0], plan_.command.data(), variables.data());
      std::fprintf(stderr, "muster-launch: error: %s cannot be started (%s)\n", plan_.command[0], std::strerror(errno));
      ::_exit(errno == ENOENT ? 127 : 126);
    }
    running_[child] = rank;
    ++started_;
  }

  void reap() {
    for (int status = 0;;) {
      const auto child = ::waitpid(-1, &status, WNOHANG);
      if (child <= 0) return;
      const auto found = running_.find(child);
      if (found == running_.end()) continue;
      const int rank = found->second;
      running_.erase(found);
      const int ended = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      const bool counts = plan_.elastic || rank == 0;  // of ranks that meet once rank 0 says how the job ended
      if (counts) last_status_ = ended;
      if (ended == 0) {
        finished_ = finished_ || counts;
        continue;
      }
      ++deaths_;
      const bool cannot_be = ended == 2 || ended == 126 || ended == 127;  // it would end the same way again
      lost_ = lost_ || (!plan_.elastic && ended == tables_lost);
      const bool again = plan_.elastic && !ending_ && !finished_ && !cannot_be && plan_.restarts > 0;
      say("process " + std::to_string(child) + " (started as rank " + std::to_string(rank) + ") " +
          (WIFSIGNALED(status) ? std::string("was killed by signal ") + std::to_string(WTERMSIG(status))
                               : "ended with " + std::to_string(ended)) +
          (again ? "; it is restarted" : ""));
      if (!again) continue;
      --plan_.restarts;
      start(rank);
    }
  }

  void tell_all(int signal) const {
    for (const auto& [process, rank] : running_) ::kill(process, signal);
  }
  void say(const std::string& text) const {
    if (!plan_.quiet) std::fprintf(stderr, "muster-launch: %s\n", text.c_str());
  }

  plan plan_;
  std::string job_ = muster::environment("MUSTER_JOB").value_or("muster-launch-" + std::to_string(::getpid()));
  std::map<std::string, std::string> common_;
  std::optional<muster::store_server> store_;
  sigset_t before_{};
  sigset_t waited_{};
  std::map<pid_t, int> running_;
  int next_rank_ = 0;
  int started_ = 0;
  int deaths_ = 0;
  int last_status_ = 1;
  int again_ = 0;
  bool finished_ = false;
  bool lost_ = false;
  bool ending_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    return launcher(read_plan(argc, argv)).run();
  } catch (const std::exception& failed) {
    std::fprintf(stderr, "muster-launch: error: %s\n", failed.what());
    return muster::exit_status_of(std::current_exception());
  }
}
