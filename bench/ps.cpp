// The rate at which a parameter server's job pushes and pulls: rows ps/<what>/<servers>/<workers>/<bytes>
// (docs/benchmarks.md).
//
//   mpirun -n 2 build/release/bench/ps --transport shm
//   mpirun --oversubscribe -n 4 build/release/bench/ps --transport tcp --servers 2 --replicas 0 --only push,pull
//
// Every table is updated by +=. All workers do the same at the same time. A row is the slowest worker's time, the
// median of `--turns`. `--only` selects among latency, push, pull, rate and adam; `--seconds` is the approximate time
// of a turn. Adam's updates of a table of 100 MB are also reported as a share relative to a core's memory limit,
// measured in the same run.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <muster/muster.hpp>

#include "rows.hpp"

namespace ps = muster::ps;

namespace {

struct options {
  std::string only = "latency,push,pull,rate,adam";
  double seconds = 0.3;
  int turns = 5;
  [[nodiscard]] bool has(std::string_view kind) const {
    return ("," + only + ",").find("," + std::string(kind) + ",") != std::string::npos;
  }
};

constexpr std::size_t sizes[] = {64, 4096, std::size_t{1} << 20, std::size_t{16} << 20, std::size_t{100} << 20};
constexpr std::uint32_t tiny = 0, small = 1, medium = 2, large = 3, adam = 4;

std::vector<ps::table_spec> tables(const options& chosen) {
  std::vector<ps::table_spec> tables;
  for (const auto bytes : sizes) {
    const bool is_adam = bytes == sizes[adam];
    ps::table_spec table{.name = std::to_string(bytes) + " bytes", .size = bytes / sizeof(float)};
    if (bytes <= sizes[small]) table.ranges = 1;
    if (is_adam) table.update = "adam:0.001";
    if (is_adam && !chosen.has("adam")) table.size = 16;
    tables.push_back(std::move(table));
  }
  return tables;
}

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

class worker {
 public:
  worker(ps::job& job, muster::group& workers, const options& chosen, bench::row_report& report)
      : job_(job),
        tables_(job.tables()),
        workers_(workers),
        chosen_(chosen),
        report_(report),
        values_(sizes[adam] / sizeof(float), 1e-6f) {}

  void measure() {
    if (chosen_.has("latency")) latency();
    if (chosen_.has("push")) {
      for (const auto table : {small, medium, large})
        stream("push", table, chosen_.seconds, [&] { return push(table); });
    }
    if (chosen_.has("pull")) {
      for (const auto table : {small, medium, large})
        stream("pull", table, chosen_.seconds, [&] { return pull(table); });
    }
    if (chosen_.has("rate")) rate();
    if (chosen_.has("adam")) adam_beside_memory();
  }

 private:
  [[nodiscard]] std::span<const float> values(std::uint32_t table) const {
    return std::span(values_).first(sizes[table] / sizeof(float));
  }
  [[nodiscard]] ps::pending push(std::uint32_t table) { return tables_.push_async(table, values(table)); }
  [[nodiscard]] ps::pending pull(std::uint32_t table) {
    return tables_.pull_async(table, std::span(values_).first(sizes[table] / sizeof(float)));
  }
  // Returns the slowest worker's time.
  [[nodiscard]] double slowest(double mine) {
    double all[] = {mine};
    muster::allreduce(workers_, std::span(all), muster::max);
    return all[0];
  }
  // Adds a row with the time of a call, and a value in a readable unit.
  void row(const char* kind, std::uint32_t table, double seconds, double value, const char* unit) {
    const auto name = std::string("ps/") + kind + "/" + std::to_string(tables_.servers()) + "/" +
                      std::to_string(workers_.size()) + "/" + std::to_string(sizes[table]);
    report_.print("%s  %.4g %s\n", name.c_str(), value, unit);
    report_.add(name, seconds, workers_.size() / seconds);
  }
  // Makes calls one after the other, for about `span` seconds in each turn, with up to `under_way` calls in progress.
  // Returns the slowest worker's median seconds for each call.
  template <class Start>
  double per_call(std::size_t under_way, double span, const Start& start) {
    std::deque<ps::pending> open;
    const auto run = [&](std::size_t calls) {
      const auto begun = muster::clock::now();
      for (std::size_t i = 0; i < calls; ++i) {
        if (open.size() == under_way) {
          open.front().wait();
          open.pop_front();
        }
        open.push_back(start());
      }
      for (auto& call : open) call.wait();
      open.clear();
      return muster::seconds_since(begun);
    };
    const double once = slowest(run(2 * under_way)) / static_cast<double>(2 * under_way);
    const auto calls = std::max<std::size_t>(2 * under_way, static_cast<std::size_t>(span / once));
    std::vector<double> times;
    for (int turn = 0; turn < chosen_.turns; ++turn) {
      muster::barrier(workers_);
      times.push_back(slowest(run(calls)) / static_cast<double>(calls));
    }
    return median(times);
  }
  template <class Start>
  double stream(const char* kind, std::uint32_t table, double span, const Start& start) {
    const std::size_t under_way = table == small ? 64 : table == medium ? 8 : 2;
    const double seconds = per_call(under_way, span, start);
    row(kind, table, seconds, static_cast<double>(sizes[table]) / seconds / 1e9, "GB/s a worker");
    return seconds;
  }
  // Measures the memory accesses of an update: the gradient is read, the values and both moments of Adam are read and
  // written. One thread does only this, while the servers are idle.
  double memory_limit() {
    const std::size_t count = sizes[adam] / sizeof(float);
    std::vector<float> gradient(count, 1e-6f), values(count), first(count), second(count);
    std::vector<double> times;
    for (int turn = 0; turn <= chosen_.turns; ++turn) {
      const auto begun = muster::clock::now();
      for (std::size_t i = 0; i < count; ++i) {
        values[i] += gradient[i];
        first[i] += gradient[i];
        second[i] += gradient[i];
      }
      if (turn > 0) times.push_back(muster::seconds_since(begun));  // The first pass touches the memory.
      gradient[static_cast<std::size_t>(turn)] += values[0] + first[0] + second[0];
    }
    return median(times);
  }
  void adam_beside_memory() {
    const double seconds = stream("adam", adam, 4 * chosen_.seconds, [&] { return push(adam); });
    muster::barrier(workers_);
    double limit[] = {workers_.rank() == 0 ? memory_limit() : 0};  // Only one worker measures; the others wait.
    muster::broadcast(workers_, std::span(limit), 0);
    row("adam-limit", adam, limit[0], static_cast<double>(sizes[adam]) / limit[0] / 1e9, "GB/s by one core's memory");
    // All workers' updates at all servers, divided by the limit of as many cores.
    const auto servers = static_cast<double>(tables_.servers());
    const auto share = workers_.size() * limit[0] / seconds / servers;
    report_.print("ps/adam-share/%d/%d/%zu  %.3g of the memory limit\n", static_cast<int>(servers), workers_.size(),
                  sizes[adam], share);
  }
  void latency() {
    std::vector<double> times;
    muster::barrier(workers_);
    for (int i = 0; i < 4000; ++i) {
      const auto begun = muster::clock::now();
      tables_.push(small, values(small));
      times.push_back(muster::seconds_since(begun));
    }
    const double seconds = slowest(median(times));
    row("latency", small, seconds, seconds * 1e6, "microseconds p50");
  }
  void rate() {
    const double seconds = per_call(64, chosen_.seconds, [&] { return push(tiny); });
    row("rate", tiny, seconds, 1e-6 / seconds, "million a second and worker");
  }

  ps::job& job_;
  ps::client& tables_;
  muster::group& workers_;
  const options& chosen_;
  bench::row_report& report_;
  std::vector<float> values_;
};

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  CLI::App app("Pushes and pulls of a parameter server's job.", "ps");
  app.set_help_flag();  // run_main handles --help.
  app.add_option("--only", chosen.only, "rows to measure: latency, push, pull, rate, adam; separated by commas")
      ->capture_default_str();
  app.add_option("--seconds", chosen.seconds, "approximate seconds of a turn")->capture_default_str();
  app.add_option("--turns", chosen.turns, "number of turns of each row")->capture_default_str();
  const auto body = [&](muster::context& context) {
    const auto flags = bench::take_report_flags(argc, argv);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& wrong) {
      throw muster::configuration_error(std::string(wrong.what()) + "; --help lists all flags");
    }
    context.run([&](muster::group& world) {
      bench::row_report report(flags, world);
      ps::job job(context, world, ps::chosen_options(context.configuration(), tables(chosen)));
      auto workers = world.split(job.is_server() ? 1 : 0);
      if (job.is_server()) return job.serve();
      worker(job, workers, chosen, report).measure();
      job.finish();
      report.write();
    });
  };
  return muster::run_main(argc, argv, body, {.help = [&] { return app.help(); }});
}
