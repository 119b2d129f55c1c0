#include "launch_plan.hpp"

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>
#include <muster/ps/job.hpp>

#include "command_line.hpp"

namespace {

constexpr muster::number_range<int> ranks{1, muster::most_ranks};
constexpr muster::number_range<int> restarts{0, 1'000'000};
constexpr muster::number_range<double> grace{0, 86'400};

constexpr const char* footer =
    "Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MUSTER_ELASTIC, MUSTER_JOB, MUSTER_MIN_RANKS,\n"
    "MUSTER_MAX_RANKS for each rank, also MASTER_ADDR and MASTER_PORT unless they are set, and serves the store of "
    "the\n"
    "job unless MUSTER_RENDEZVOUS is set. SIGUSR2 starts one more rank. SIGTERM, SIGINT (Ctrl-C) and SIGHUP (unless\n"
    "nohup ignores it) end all ranks by SIGTERM. SIGUSR1 is forwarded to ranks that catch it. When ranks wait until\n"
    "a deadline, or on SIGQUIT, muster-launch reports the missing rank, and its stack if eu-stack is installed.\n"
    "A muster-launch or mpirun that is a rank of a muster-launch starts a job of its own, unless MUSTER_JOB is "
    "changed.\n"
    "A rank that fails within 5 seconds of its start is restarted after a pause of at most 10 seconds.\n"
    "Status 8 (a source of data is away) uses up no restart: unless --restart is 0, the rank, or with --elastic off\n"
    "the job, is started again after growing pauses of at most a minute, until the source is back.\n"
    "At the socket of --control, \"size N\" starts ranks, or stops the newest ranks at their next step boundary,\n"
    "until there are N. The answer, also to \"status\", has the running ranks and the target size of the job.\n"
    "Exit status: 0 when the job is complete (a rank ended with 0, and none is left), else the status of the last\n"
    "rank to end (128 + signal if a signal killed it). With --elastic off only the status of rank 0 counts.\n"
    "2: invalid command line, or the program cannot be started. 16: a parameter server has lost tables (see "
    "--restart).";

[[noreturn]] void refuse(const std::string& text) { throw muster::configuration_error(text); }

}  // namespace

std::optional<launch_plan> read_launch_plan(int argc, char** argv) {
  launch_plan read;
  std::string elastic = "on";
  CLI::App app("Starts the ranks of a job on this host: muster-launch [OPTIONS] program [arguments]", "muster-launch");
  app.prefix_command();  // Arguments from the program's name on belong to the program.
  app.footer(footer);
  app.set_version_flag("--version", "muster " + muster::library_version(), "of muster");
  muster::add_number(app, "-n", read.ranks, ranks, "ranks to start");
  muster::add_number(app, "--min", read.min, ranks, "with fewer ranks the job waits until more join");
  muster::add_number(app, "--max", read.max, ranks, "maximum number of ranks; further ranks are not admitted")
      ->default_str("N of -n");
  muster::add_number(app, "--restart", read.restarts, restarts, "number of restarts of ranks that died");
  app.add_option(
         "--elastic", elastic,
         "on: ranks may leave, fail and join; off: ranks connect once, and --restart counts restarts of the whole "
         "job, after status " +
             std::to_string(muster::ps::tables_lost::status) + " (a parameter server has lost tables)")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off"}));
  muster::add_number(app, "--grace", read.grace, grace, "seconds from a SIGTERM until the ranks are killed");
  app.add_option("--control", read.control, "Unix socket that accepts requests for another number of ranks")
      ->type_name("PATH");
  app.add_flag("--quiet", read.quiet, "print nothing about ranks that die or are restarted");
  if (is_answered(app, argc, argv)) return std::nullopt;
  read.elastic = elastic == "on";
  read.command = app.remaining();
  if (!read.command.empty() && read.command.front() == "--") read.command.erase(read.command.begin());
  if (read.command.empty())
    refuse("muster-launch has nothing to start (no program is named); see muster-launch --help");
  if (read.command.front().starts_with('-')) {
    refuse("muster-launch does not know '" + read.command.front() +
           "' (flags of the program come after its name); see muster-launch --help");
  }
  if (!read.control.empty() && !read.elastic)
    refuse("--control cannot be used (the ranks of a job with --elastic off do not change); drop either flag");
  if (read.max == 0) read.max = read.ranks;
  if (read.min > read.ranks || read.ranks > read.max) {
    refuse("muster-launch cannot start " + std::to_string(read.ranks) + " ranks (--min is " + std::to_string(read.min) +
           " and --max " + std::to_string(read.max) + "); choose -n between them");
  }
  return read;
}
