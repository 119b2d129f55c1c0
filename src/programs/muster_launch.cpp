// muster-launch: starts the ranks of a job on this host, restarts ranks that die, and reports how the job ended.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/bootstrap/tcp_store.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>
#include <muster/ps/job.hpp>

#include <muster/comm/net/address.hpp>
#include <muster/comm/net/socket.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/outer_job.hpp>
#include <muster/core/random_bytes.hpp>
#include <muster/core/text.hpp>
#include "control_socket.hpp"
#include "flight_report.hpp"
#include "launch_guard.hpp"
#include "launch_plan.hpp"
#include "run_program.hpp"

namespace {

constexpr int tables_lost = muster::ps::tables_lost::status;
constexpr int configuration = static_cast<int>(muster::error_kind::configuration);
constexpr int mismatch = static_cast<int>(muster::error_kind::mismatch);
constexpr int source_away = static_cast<int>(muster::error_kind::source);

// Returns the pointers that exec requires.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// A terminal sends these signals to all processes of the job. Ranks ignore them: muster-launch receives them, and sends
// SIGTERM to its ranks.
constexpr int terminal_signals[] = {SIGINT, SIGQUIT, SIGHUP};

// Returns an address at which the ranks of this host reach this program: the loopback, of IPv4 if it has one. Ranks
// without elasticity that share memory need none.
muster::detail::address address_for_ranks(bool is_needed) {
  const auto v4 = muster::detail::address::parse("127.0.0.1:0");
  try {
    const auto all = muster::detail::own_addresses("here", "muster-launch");
    return std::ranges::count(all, v4) > 0 ? v4 : all.front();
  } catch (const muster::error&) {
    if (is_needed) throw;
    return v4;
  }
}

class launcher {
 public:
  launcher(launch_plan plan, launch_guard guard) : plan_(std::move(plan)), guard_(std::move(guard)) {
    ::signal(SIGCHLD, SIG_DFL);  // A parent may have set it to ignore, which makes waiting for a process impossible.
    sigset_t ours;
    ::sigemptyset(&ours);
    for (const int signal : {SIGCHLD, SIGTERM, SIGUSR1, SIGUSR2}) ::sigaddset(&ours, signal);
    for (const int signal : terminal_signals) {
      struct sigaction present {};
      (void)::sigaction(signal, nullptr, &present);
      if (present.sa_handler != SIG_IGN) ::sigaddset(&ours, signal);  // nohup ignores SIGHUP.
    }
    ::sigprocmask(SIG_BLOCK, &ours, nullptr);
    signals_ = muster::detail::descriptor(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_)
      throw muster::configuration_error("signals cannot be read (" + std::string(std::strerror(errno)) +
                                        "); check the limit of files (ulimit -n)");
    if (!plan_.control.empty()) control_.emplace(plan_.control);
    serve();  // Runs on a thread that receives no signals.
  }

  ~launcher() {
    std::error_code ignored;
    if (!records_.empty()) std::filesystem::remove_all(records_, ignored);
  }

  int run() {
    start_all();
    std::optional<std::chrono::steady_clock::time_point> until;
    while (!running_.empty() || !to_start_.empty() || restart_job() || restart_without_source()) {
      report_hang(false);
      const int got = wait();
      if (got == SIGTERM || got == SIGINT || got == SIGHUP) {
        ending_ = true;
        signal_all(SIGTERM);  // A training saves its state on SIGTERM.
        if (!until) until = muster::deadline_after(muster::seconds(plan_.grace));
      }
      if (got == SIGQUIT) signal_ranks_that_catch(SIGUSR2);
      if (got == SIGUSR1) signal_ranks_that_catch(SIGUSR1);
      if (got == SIGUSR2 && plan_.elastic && !finished_ && !ending_ && size() < plan_.max) resize(size() + 1);
      reap();
      start_due_ones();
      end_late_ones();
      if (until && std::chrono::steady_clock::now() > *until) signal_all(SIGKILL);
    }
    end_remaining_processes(until.value_or(muster::deadline_after(muster::seconds(plan_.grace))));
    report_hang(true);
    if (finished_ && (deaths_ > 0 || started_ > plan_.ranks))
      print(std::to_string(started_) + " processes were started, " + std::to_string(deaths_) +
            " died, and the job is done");
    return lost_ ? tables_lost : refused_ ? configuration : finished_ ? 0 : last_status_;
  }

 private:
  using moment = std::chrono::steady_clock::time_point;
  struct child {
    int rank = 0;    // Initial rank.
    int number = 0;  // Number of processes that were started before.
    moment began;
    std::optional<moment> leave_deadline;  // Deadline of a process that was asked to leave.
  };

  // Waits at most 200 ms for a signal or a request, and replies to requests. Returns the number of a signal that has
  // arrived; 0 for none.
  int wait() {
    std::array<pollfd, 2> on{{{signals_.get(), POLLIN, 0}, {control_ ? control_->descriptor() : -1, POLLIN, 0}}};
    (void)::poll(on.data(), on.size(), 200);
    if (control_) control_->turn([this](const std::string& request) { return answer(request); });
    signalfd_siginfo got{};
    return ::read(signals_.get(), &got, sizeof got) == sizeof got ? static_cast<int>(got.ssi_signo) : 0;
  }

  // Returns the number of ranks that run or are to be started, without ranks that were asked to leave.
  [[nodiscard]] int size() const {
    return static_cast<int>(
        std::ranges::count_if(running_, [](const auto& entry) { return !entry.second.leave_deadline; }) +
        std::ssize(to_start_));
  }

  std::string answer(const std::string& request) {
    if (const auto wanted =
            request.starts_with("size ") ? muster::parse_number<int>(request.substr(5)) : std::nullopt) {
      if (*wanted < plan_.min || *wanted > plan_.max) {
        return R"({"error": "size cannot be )" + std::to_string(*wanted) + " (it is " + std::to_string(plan_.min) +
               " to " + std::to_string(plan_.max) + R"(, by --min and --max); ask for another"})";
      }
      if (finished_ || ending_ || lost_) return R"({"error": "size cannot be changed (the job ends); leave it"})";
      resize(*wanted);
    } else if (request != "status") {
      return R"({"error": "this is no request (known: status, size N); send a known request"})";
    }
    return R"({"ranks": )" + std::to_string(running_.size()) + R"(, "size": )" + std::to_string(size()) +
           R"(, "min": )" + std::to_string(plan_.min) + R"(, "max": )" + std::to_string(plan_.max) + "}";
  }

  // Returns the order in which ranks are asked to leave. Added ranks leave first, the newest before the others. Then
  // the initial ranks leave from the lowest on, except rank 0, which writes and prints. With parameter servers, the
  // last ranks are servers.
  [[nodiscard]] std::pair<int, int> leave_order(const child& candidate) const {
    if (candidate.rank >= plan_.ranks) return {0, -candidate.number};
    return {candidate.rank == 0 ? 2 : 1, candidate.rank};
  }

  // Starts ranks, or asks ranks to leave, until `size` is `wanted`.
  void resize(int wanted) {
    while (size() < wanted) start(next_rank_++);
    while (size() > wanted) {
      if (!to_start_.empty()) {
        to_start_.pop_back();
        continue;
      }
      auto next = running_.end();
      for (auto candidate = running_.begin(); candidate != running_.end(); ++candidate) {
        if (candidate->second.leave_deadline) continue;
        if (next == running_.end() || leave_order(candidate->second) < leave_order(next->second)) next = candidate;
      }
      next->second.leave_deadline = muster::deadline_after(muster::seconds(plan_.grace));
      ::kill(next->first, SIGTERM);
    }
  }

  // Kills ranks that were asked to leave and have not left in time.
  void end_late_ones() const {
    const auto now = std::chrono::steady_clock::now();
    for (const auto& [process, running] : running_) {
      if (running.leave_deadline && now > *running.leave_deadline) ::kill(process, SIGKILL);
    }
  }

  // Ends the processes that ranks have started and that still run, such as the programs of ranks that are scripts: by
  // SIGTERM, and by SIGKILL after `until`.
  void end_remaining_processes(moment until) {
    const auto given_up = until + patience_after_kill;
    for (int signal = SIGTERM; guard_.signal_all(signal) > 0;) {
      const auto now = std::chrono::steady_clock::now();
      if (now > given_up) return print("a process of the job does not end although it was killed");
      signal = now > until ? SIGKILL : 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      reap();
    }
  }

  // Starts the store of the job, and sets the variables by which its ranks find the store.
  void serve() {
    std::string token = muster::environment("MUSTER_TOKEN").value_or("");
    if (token.empty()) token = muster::detail::random_token();  // Other users on this host must not know the token.
    common_ = {{"MUSTER_ELASTIC", plan_.elastic ? "on" : "off"}, {"MUSTER_JOB", job_},
               {"WORLD_SIZE", std::to_string(plan_.ranks)},      {"LOCAL_WORLD_SIZE", std::to_string(plan_.ranks)},
               {"MUSTER_MIN_RANKS", std::to_string(plan_.min)},  {"MUSTER_MAX_RANKS", std::to_string(plan_.max)}};
    // Variables for programs of torch.distributed.
    if (!muster::environment("MASTER_ADDR")) common_["MASTER_ADDR"] = host_.host();
    if (!muster::environment("MASTER_PORT"))
      common_["MASTER_PORT"] = std::to_string(muster::detail::tcp_socket::listen(host_).local().port());
    if (!muster::environment("MUSTER_FLIGHT_RECORDER")) make_record_folder();
    if (const auto given = muster::environment("MUSTER_RENDEZVOUS")) {
      // The ranks of several muster-launch meet at such a store. Without a job name they form one job.
      if (given->starts_with("tcp://") && !muster::environment("MUSTER_JOB")) common_.erase("MUSTER_JOB");
      return;
    }
    store_.emplace(host_.to_string(), token);
    common_["MUSTER_TOKEN"] = token;
    announce_store();
  }
  void announce_store() {
    common_["MUSTER_RENDEZVOUS"] = "tcp://" + store_->address();
    try {  // Used by muster-info top.
      store_->announce(muster::temporary_folder() + "/" + muster::detail::store_name(job_));
    } catch (const muster::configuration_error&) {  // The folder does not exist; the ranks do not need it.
    }
  }

  // Creates the folder in which waiting ranks write flight records; there is none if the folder cannot be created.
  void make_record_folder() {
    try {
      records_ = muster::temporary_folder() + "/muster-launch-XXXXXX";
      if (::mkdtemp(records_.data()) == nullptr) records_.clear();
    } catch (const muster::configuration_error&) {
    }
    if (!records_.empty()) common_["MUSTER_FLIGHT_RECORDER"] = records_;
  }

  // Sends the signal only to processes that catch it. A process without a context would be killed by this signal.
  void signal_ranks_that_catch(int signal) const {
    for (const auto& [process, running] : running_) {
      std::ifstream status("/proc/" + std::to_string(process) + "/status");
      std::string word;
      while (status >> word && word != "SigCgt:") {
      }
      std::uint64_t caught = 0;
      status >> std::hex >> caught;
      if ((caught >> (signal - 1) & 1) != 0) ::kill(process, signal);
    }
  }

  // Prints an analysis of the flight records that waiting ranks have written, and removes the records. Waits with the
  // analysis until all running ranks have written a record, at most two seconds, unless `is_last`: a rank without a
  // record by then is suspicious.
  void report_hang(bool is_last) {
    const auto read = read_flight_records(records_);
    if (read.empty()) return;
    const auto now = std::chrono::steady_clock::now();
    if (!first_record_) first_record_ = now;
    const auto has_record = [&](const auto& running) {
      return std::ranges::any_of(read, [&](const flight_record& record) { return record.process == running.first; });
    };
    const bool all_wrote = std::ranges::all_of(running_, has_record);
    if (!is_last && !all_wrote && now - *first_record_ < patience_with_records) return;
    first_record_.reset();
    std::error_code ignored;
    for (const auto& record : read) std::filesystem::remove(record.file, ignored);
    const auto is_hang = [](const flight_record& record) {
      return record.status == 0 || record.status == static_cast<int>(muster::error_kind::timeout);
    };
    if (std::ranges::none_of(read, is_hang)) return;
    for (const auto& line : explain_hang(read)) print(line);
    for (const auto& running : running_) {
      if (has_record(running)) continue;
      print("process " + std::to_string(running.first) + " (started as rank " + std::to_string(running.second.rank) +
            ") wrote no record; its stacks:\n" + stacks_of(running.first));
    }
  }

  // Returns the environment of a new rank. Called before the fork: after the fork only async-signal-safe functions may
  // be called.
  [[nodiscard]] std::vector<std::string> environment_of(int rank) const {
    auto own = common_;
    own["RANK"] = own["LOCAL_RANK"] = std::to_string(rank % plan_.ranks);
    own[std::string(launch_guard::variable)] = guard_.value_for(started_);
    own[muster::detail::name_of_outer_job] = own.contains("MUSTER_JOB") ? own["MUSTER_JOB"] : "-";
    std::vector<std::string> all;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view entry(*variable);
      const std::string name(entry.substr(0, entry.find('=')));
      const bool is_of_other = std::ranges::count(muster::detail::variables_of_other_launchers, name) > 0;
      if (!is_of_other && !own.contains(name)) all.emplace_back(entry);
    }
    for (const auto& [name, value] : own) all.push_back(name + "=" + value);
    return all;
  }

  void start_all() {
    for (int rank = 0; rank < plan_.ranks; ++rank) start(rank);
  }

  // Restarts a job that has lost tables of a parameter server, and can therefore only continue from its saved state.
  // Returns false if there is no such loss, or no further restart. A job with elasticity gets a new store; without, it
  // gets a new name, so that the restarted ranks ignore the old entries in the store.
  bool restart_job() {
    if (!lost_ || ending_) return false;
    const auto now = std::chrono::steady_clock::now();
    quick_losses_ = now - std::exchange(began_, now) < quick_loss ? quick_losses_ + 1 : 0;
    // A new name would not be enough for an elastic job: its keys do not depend on the name.
    if (plan_.elastic ? !store_ || quick_losses_ > most_quick_losses : plan_.restarts-- == 0) return false;
    if (plan_.elastic) {
      store_.emplace(host_.to_string(), common_["MUSTER_TOKEN"]);
      announce_store();
    }
    print("the job has lost tables; it is restarted");
    lost_ = finished_ = refused_ = false;
    if (!plan_.elastic) common_["MUSTER_JOB"] = job_ + "-" + std::to_string(++again_);
    start_all();
    return true;
  }

  // Plans the next start of a job without elasticity that ended because a source was away. Returns false otherwise.
  bool restart_without_source() {
    if (plan_.elastic || ending_ || finished_ || last_status_ != source_away || !allows_restarts_) return false;
    common_["MUSTER_JOB"] = job_ + "-" + std::to_string(++again_);
    const auto pause = pause_for_source(began_);
    print("a source of data is away; the job is started again in " + std::to_string(pause.count()) + " s");
    began_ = std::chrono::steady_clock::now() + pause;
    last_status_ = 1;
    for (int rank = 0; rank < plan_.ranks; ++rank) to_start_.push_back({rank, began_});
    return true;
  }

  // Returns the pause before a start because a source was away: twice the pause before, unless the process that began
  // at `began` has run for long. Ranks that end during a pause wait for its end.
  std::chrono::seconds pause_for_source(moment began) {
    const auto now = std::chrono::steady_clock::now();
    if (now < paused_until_) return std::chrono::ceil<std::chrono::seconds>(paused_until_ - now);
    if (now - began > long_run) source_pause_ = first_source_pause;
    const auto pause = std::exchange(source_pause_, std::min(2 * source_pause_, last_source_pause));
    paused_until_ = now + pause;
    return pause;
  }

  void start(int rank) {
    next_rank_ = std::max(next_rank_, rank + 1);
    auto texts = environment_of(rank);
    const auto variables = pointers_to(texts);
    const auto command = pointers_to(plan_.command);
    const std::string name = muster::detail::on_one_line(plan_.command.front());
    const auto parent = ::getpid();
    const auto process = ::fork();
    if (process < 0)
      throw muster::configuration_error("no process can be started (" + std::string(std::strerror(errno)) +
                                        "); check the limit of processes (ulimit -u)");
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // The rank is killed when this program is killed.
      if (::getppid() != parent) ::_exit(1);
      for (const int signal : terminal_signals) ::signal(signal, SIG_IGN);
      sigset_t none;
      ::sigemptyset(&none);
      ::sigprocmask(SIG_SETMASK, &none, nullptr);
      ::execvpe(command[0], command.data(), variables.data());
      std::fprintf(stderr, "muster-launch: error: %s cannot be started (%s)\n", name.c_str(), std::strerror(errno));
      ::_exit(errno == ENOENT ? 127 : 126);
    }
    running_[process] = {
        .rank = rank, .number = started_++, .began = std::chrono::steady_clock::now(), .leave_deadline = {}};
  }

  // Restarts a rank. A program that fails at its start fails again and would soon use up its restarts. Therefore each
  // pause is twice as long as the pause before. A rank that was killed from outside restarts at once.
  void restart_rank(const child& was, bool is_killed) {
    const auto now = std::chrono::steady_clock::now();
    quick_failures_ = is_killed || now - was.began > quick_failure ? 0 : quick_failures_ + 1;
    const auto pause = quick_failures_ == 0
                           ? std::chrono::milliseconds(0)
                           : std::min(first_pause * (1 << std::min(quick_failures_ - 1, 10)), last_pause);
    to_start_.push_back({was.rank, now + pause});
  }

  void start_due_ones() {
    if (ending_ || finished_ || lost_) to_start_.clear();
    const auto now = std::chrono::steady_clock::now();
    for (const auto& next : std::exchange(to_start_, {})) {
      if (next.at <= now)
        start(next.rank);
      else
        to_start_.push_back(next);
    }
  }

  // Collects the exit statuses of processes that have ended.
  void reap() {
    for (int status = 0;;) {
      const auto process = ::waitpid(-1, &status, WNOHANG);
      if (process <= 0) return;
      const auto found = running_.find(process);
      if (found == running_.end()) continue;
      const child was = found->second;
      running_.erase(found);
      const int ended = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      // If the rank is a script, its program would continue beside the rank's replacement.
      if (ended != 0) guard_.signal_started_by(was.number, ending_ || was.leave_deadline ? SIGTERM : SIGKILL);
      if (was.leave_deadline && ended == 128 + SIGTERM) continue;  // It left as requested.
      note_end(was, ended);
      if (ended != 0) restart_or_give_up(was, process, status, ended);
    }
  }

  // Notes the effect of a process's end on the status of the job. Without elasticity, rank 0 determines that status.
  void note_end(const child& was, int ended) {
    const bool counts = plan_.elastic || was.rank == 0;
    if (counts) last_status_ = ended;
    if (ended == 0) {
      finished_ = finished_ || counts;
      return;
    }
    ++deaths_;
    // Also if the job is done: the last save may have failed for lack of disk space.
    refused_ = refused_ || (counts && ended == configuration);
    lost_ = lost_ || (ended == tables_lost && !(plan_.elastic && finished_));
  }

  // Returns true if a rank that died may be restarted. With some statuses it would end in the same way again.
  [[nodiscard]] bool may_restart(const child& was, int ended) const {
    const bool cannot_be = ended == configuration || ended == mismatch || ended == 126 || ended == 127;
    return plan_.elastic && !ending_ && !finished_ && !cannot_be && !lost_ && !was.leave_deadline;
  }

  // Prints the end of a rank that died, and plans its restart.
  void restart_or_give_up(const child& was, pid_t process, int status, int ended) {
    const bool may_continue = may_restart(was, ended);
    const bool is_away = may_continue && ended == source_away && allows_restarts_;  // not the job's fault
    const bool again = is_away || (may_continue && plan_.restarts > 0);
    const auto pause = is_away ? pause_for_source(was.began) : std::chrono::seconds(0);
    print("process " + std::to_string(process) + " (started as rank " + std::to_string(was.rank) + ") " +
          (WIFSIGNALED(status) ? std::string("was killed by signal ") + std::to_string(WTERMSIG(status))
                               : "ended with " + std::to_string(ended)) +
          (is_away ? "; a source of data is away, and it is restarted in " + std::to_string(pause.count()) + " s"
           : again ? "; it is restarted"
                   : ""));
    if (is_away) {
      to_start_.push_back({was.rank, std::chrono::steady_clock::now() + pause});
    } else if (again) {
      --plan_.restarts;
      restart_rank(was, ended == 128 + SIGKILL);
    }
  }

  void signal_all(int signal) const {
    for (const auto& [process, running] : running_) ::kill(process, signal);
  }
  void print(const std::string& text) const {
    if (!plan_.quiet) std::fprintf(stderr, "muster-launch: %s\n", text.c_str());
  }

  static constexpr std::chrono::seconds patience_with_records{2}, patience_after_kill{5};
  // An elastic job that loses its tables this soon after each of several starts has a persistent fault.
  static constexpr std::chrono::seconds quick_loss{60};
  static constexpr int most_quick_losses = 5;
  // Limit of an early failure, and the first pause before a restart.
  static constexpr std::chrono::seconds quick_failure{5};
  static constexpr std::chrono::milliseconds first_pause{100};
  static constexpr std::chrono::milliseconds last_pause{10'000};
  // Pauses before a restart because a source of data was away, and the run after which they begin anew.
  static constexpr std::chrono::seconds first_source_pause{1}, last_source_pause{60}, long_run{600};

  struct planned_start {
    int rank = 0;
    moment at;
  };

  launch_plan plan_;
  launch_guard guard_;
  muster::detail::address host_ = address_for_ranks(plan_.elastic);
  std::string job_ = muster::environment("MUSTER_JOB").value_or("muster-launch-" + std::to_string(::getpid()));
  std::map<std::string, std::string> common_;  // Environment variables of all ranks.
  std::optional<muster::store_server> store_;
  std::string records_;  // Folder of the flight records.
  // Time of the first record that was not reported yet.
  std::optional<std::chrono::steady_clock::time_point> first_record_;
  muster::detail::descriptor signals_;  // Readable when a signal has arrived.
  std::optional<control_socket> control_;
  std::map<pid_t, child> running_;
  std::vector<planned_start> to_start_;
  int quick_failures_ = 0;                                  // Number of consecutive early failures.
  std::chrono::seconds source_pause_ = first_source_pause;  // The next pause because a source is away.
  moment paused_until_{};                                   // End of the last such pause.
  bool allows_restarts_ = plan_.restarts > 0;               // At the start; such a pause uses up no restart.
  int next_rank_ = 0;
  int started_ = 0;       // Number of started processes.
  int deaths_ = 0;        // Number of processes that ended with another status than 0.
  int last_status_ = 1;   // Exit status of the last rank that counts.
  int again_ = 0;         // Number of restarts of the job without elasticity.
  int quick_losses_ = 0;  // Number of consecutive starts of the job that soon lost tables.
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();  // Start of the present job.
  bool finished_ = false;  // True once a rank that counts has ended with 0.
  bool refused_ = false;   // True once a rank that counts has reported a configuration_error.
  bool lost_ = false;      // True once a rank has reported the loss of tables.
  bool ending_ = false;    // True once a signal has ended the job.
};

}  // namespace

int main(int argc, char** argv) {
  return run_program("muster-launch: error", [&] {
    auto read = read_launch_plan(argc, argv);
    muster::detail::leave_outer_job(true);
    return read ? launcher(std::move(*read), launch_guard(argc, argv)).run() : 0;
  });
}
