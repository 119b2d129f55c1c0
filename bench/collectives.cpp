// Allreduce, broadcast and reduce over transports and sizes, with plain MPI in the same run.
//   mpirun -n 2 build/release/bench/collectives [--benchmark_filter=... --benchmark_format=json]
//   build/release/bench/collectives --ranks 4          (threads only)
// bench/compare_collectives.py runs it beside other MPIs and prints the ratios.
//
// Rows are <op>/<contender>/<ranks>/<bytes>: in place, float32, sum, root 0. The time is the median over all iterations
// of the slowest rank's time. Rows with equal size are measured together, interleaved in rounds, so that a noisy
// neighbour affects all rows. bus_GB/s is 2(N-1)/N bytes over the time of an allreduce, as in nccl-tests, and 1 times
// the bytes for the other collectives. vs_openmpi is Open MPI's time divided by muster's time.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <regex>
#include <string>
#include <string_view>
#include <utility>

#include "contest.hpp"
#include "ranks.hpp"
#include "turns.hpp"

namespace {

constexpr int mlbench_calls = 100;
// Google Benchmark appends this to the name of every row.
constexpr const char* library_suffix = "/iterations:1/manual_time";

struct flags {
  int rounds = 7;
  bool algorithms = false;
  bool mlbench = false;
  std::string turns;
};

constexpr const char* flags_help =
    "usage: collectives [options]; Google Benchmark's, such as --benchmark_filter=REGEX, and\n"
    "  --rounds=N    how often the rows of a size are measured in turns (default 7)\n"
    "  --algorithms  also a row for each algorithm by name, reproducible sums, and MPI's own under muster\n"
    "  --mlbench     MLBench's task 0a: 1 to 10^8 elements in 80 steps, written and summed 100 times each; the mean "
    "time\n"
    "  --turns=FOLDER  each rank reads its measurements from the named pipe FOLDER/<rank>\n";

// Parses the arguments that Google Benchmark did not consume.
flags take_flags(int& argc, char** argv) {
  flags taken;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    constexpr std::string_view rounds = "--rounds=";
    constexpr std::string_view turns = "--turns=";
    if (word == "--algorithms") {
      taken.algorithms = true;
    } else if (word == "--mlbench") {
      taken.mlbench = true;
    } else if (word.starts_with(turns)) {
      taken.turns = word.substr(turns.size());
    } else if (word.starts_with(rounds)) {
      const auto number = word.substr(rounds.size());
      const auto end = number.data() + number.size();
      if (std::from_chars(number.data(), end, taken.rounds).ptr != end || number.empty() || taken.rounds < 1) {
        throw muster::configuration_error(std::string(word) + " is not a number of rounds (1 or more); omit it for 7");
      }
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return taken;
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The medians (or means) of the rows with one size that pass the filter. They are measured when the first row is
// requested.
class table {
 public:
  table(const bench::contest& contest, muster::context& context, const flags& chosen)
      : contest_(&contest), memory_(context), rounds_(chosen.mlbench ? 1 : chosen.rounds), mlbench_(chosen.mlbench) {
    const std::string filter = benchmark::GetBenchmarkFilter();
    filter_ = filter.empty() || filter == "all" ? ".*" : filter;
  }

  /// Returns seconds by row name.
  const std::map<std::string, double>& of_size(std::size_t bytes) {
    if (bytes == measured_) return seconds_;
    const std::regex wanted(filter_);
    std::map<std::string, std::vector<double>> times;
    memory_.resize(bytes);
    for (int round = -1; round < rounds_; ++round) {  // Round -1 warms up.
      for (const auto& c : contest_->all()) {
        const auto name = bench::row_name(c, bytes);
        if (bytes > c.up_to) continue;
        if (!std::regex_search(name + library_suffix, wanted)) continue;
        const auto calls = mlbench_ ? bench::repeats{mlbench_calls} : bench::repeats_for(c.operation, bytes);
        const auto some = c.measure(memory_, round < 0 ? bench::warm_up_for(c.operation, bytes) : calls);
        if (round >= 0) times[name].insert(times[name].end(), some.begin(), some.end());
      }
    }
    seconds_.clear();
    least_.clear();
    for (auto& [name, all] : times) {
      least_[name] =
          all.empty() ? 0 : *std::min_element(all.begin(), all.end());  // Empty at a rank that does not report.
      seconds_[name] = mlbench_ ? mean(all) : bench::median(std::move(all));
    }
    measured_ = bytes;
    return seconds_;
  }
  /// Returns the least time of a call, undisturbed by other programs, for the size that was requested last.
  double least(const std::string& row) const { return least_.at(row); }

 private:
  const bench::contest* contest_;
  bench::workspace memory_;
  int rounds_;
  bool mlbench_;
  std::string filter_;
  std::size_t measured_ = 0;
  std::map<std::string, double> seconds_, least_;
};

void report(benchmark::State& state, table& results, const bench::contender& c, std::size_t bytes,
            const std::string& peer) {
  const auto& measured = results.of_size(bytes);
  const double seconds = measured.at(bench::row_name(c, bytes));
  for ([[maybe_unused]] auto once : state) state.SetIterationTime(seconds);
  if (seconds <= 0) return;  // This rank does not report.
  state.counters["ranks"] = c.ranks;
  state.counters["least_us"] = results.least(bench::row_name(c, bytes)) * 1e6;
  const double n = c.ranks;
  const double per_byte = bench::called(c.operation) == bench::op::allreduce ? 2 * (n - 1) / n : 1;
  state.counters["bus_GB/s"] = per_byte * static_cast<double>(bytes) / seconds * 1e-9;
  const auto other = measured.find(bench::row_name({c.operation, peer, c.ranks, {}, 0}, bytes));
  if (other != measured.end()) state.counters["vs_" + peer] = other->second / seconds;
}

std::vector<std::size_t> sizes(bool mlbench) {
  std::vector<std::size_t> bytes;
  if (mlbench) {
    constexpr int points = 80;
    for (int i = 0; i < points; ++i) {
      const auto elements = static_cast<std::size_t>(std::pow(10.0, 8.0 * i / (points - 1)));
      if (bytes.empty() || bytes.back() != elements * sizeof(float)) bytes.push_back(elements * sizeof(float));
    }
    return bytes;
  }
  for (std::size_t size = bench::smallest; size <= bench::largest; size *= 4) bytes.push_back(size);
  return bytes;
}

void register_rows(table& results, const bench::contest& contest, bool mlbench) {
  for (const std::size_t bytes : sizes(mlbench)) {
    for (const auto& c : contest.all()) {
      if (bytes > c.up_to) continue;
      benchmark::RegisterBenchmark(bench::row_name(c, bytes).c_str(),
                                   [&results, &c, &contest, bytes](benchmark::State& state) {
                                     report(state, results, c, bytes, contest.peer());
                                   })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

void take_turns(const bench::contest& contest, muster::context& context, int rank, const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& c : contest.all()) {
    if (c.operation == bench::op::allreduce) names.push_back(c.name);
  }
  if (rank == 0) bench::print_ready(names, contest.library());
  bench::workspace memory(context);
  std::size_t size = 0;
  bench::turns turns(folder, rank);
  while (const auto turn = turns.next()) {
    if (turn->bytes != size) memory.resize(turn->bytes);
    size = turn->bytes;
    const auto c = std::find_if(contest.all().begin(), contest.all().end(), [&](const bench::contender& each) {
      return each.operation == turn->operation && each.name == turn->contender;
    });
    if (c == contest.all().end()) throw muster::configuration_error(turn->contender + " is unknown (a turn names it)");
    (void)c->measure(memory, bench::warm_up_for(turn->operation, size));
    const auto times = c->measure(memory, bench::repeats_for(turn->operation, size));
    if (rank == 0) bench::print_result(*turn, times);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::mpi_session mpi;
  const auto body = [&](muster::context& context) {
    benchmark::Initialize(&argc, argv);
    const flags taken = take_flags(argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
      throw muster::configuration_error("a flag is not known (it is named above); --help lists all");
    }
    const int rank = context.transport_name() == "threads" ? 0 : context.world().rank();
    constexpr bench::op written[] = {bench::op::written};
    const bench::contest contest(context, mpi, taken.algorithms,
                                 taken.mlbench         ? std::span(written)
                                 : taken.turns.empty() ? bench::collectives
                                                       : std::span(bench::all_ops));
    if (!taken.turns.empty()) {
      take_turns(contest, context, rank, taken.turns);
      return;
    }
    table results(contest, context, taken);
    register_rows(results, contest, taken.mlbench);
    bench::run_registered(rank);
  };
  const int status = muster::run_main(argc, argv, body, {.help = [] { return std::string(flags_help); }});
  mpi.end(status);
  return status;
}
