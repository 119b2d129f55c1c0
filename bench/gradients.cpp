// The cost of reducing gradients by buckets, and the share that a backward pass hides.
//
//   mpirun -n 2 build/release/bench/gradients overhead    # beside one allreduce of the same bytes
//   mpirun -n 2 build/release/bench/gradients overlap     # with a backward pass that is longer than the allreduce
//   bench/overlap.py --program build/release/bench/gradients    # the same over a slow link between two hosts
//
// [--megabytes 25] [--buckets KIB,KIB...] [--rounds 51] [--longer 1.25]; --trace FILE writes a timeline.
//
// The contenders are measured in turns, one round after the other. A round's time is the slowest rank's time, and
// the report has the median over all rounds.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <muster/muster.hpp>

#include "outer_products.hpp"
#include "rows.hpp"

namespace {

using namespace muster::literals;

using layer = bench::outer_products;

struct chosen {
  std::string mode = "overhead";
  std::size_t megabytes = 25;
  std::vector<std::size_t> buckets = {4096};  // In KiB.
  int rounds = 51;
  double longer = 1.25;  // Duration of the backward pass as a multiple of the allreduce.
};

chosen parse(int argc, char** argv) {
  chosen options;
  for (int i = 1; i < argc; ++i) {
    const std::string word(argv[i]);
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw muster::configuration_error(word + " needs a value (it is the last word); give one");
      return argv[++i];
    };
    if (word == "overhead" || word == "overlap") {
      options.mode = word;
    } else if (word == "--megabytes") {
      options.megabytes = std::stoul(value());
    } else if (word == "--rounds") {
      options.rounds = std::stoi(value());
    } else if (word == "--longer") {
      options.longer = std::stod(value());
    } else if (word == "--buckets") {
      options.buckets.clear();
      std::string list = value() + ",";
      for (std::size_t end = 0; (end = list.find(',')) != std::string::npos; list.erase(0, end + 1))
        options.buckets.push_back(std::stoul(list.substr(0, end)));
    } else {
      throw muster::configuration_error("unknown argument '" + word +
                                        "' (see the top of bench/gradients.cpp); drop it");
    }
  }
  return options;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// The backward pass: real arithmetic, layer after layer from the last to the first.
class network {
 public:
  explicit network(std::size_t layers) : layers_(layers) {}
  [[nodiscard]] std::vector<muster::tensor_shape> shapes() const {
    std::vector<muster::tensor_shape> shapes;
    for (std::size_t k = 0; k < layers_; ++k)
      shapes.push_back({"layer " + std::to_string(k), {layer::outputs, layer::inputs}});
    return shapes;
  }
  void backward(muster::backward_pass& pass, std::size_t rows) const {
    pass.add_samples(std::max<std::size_t>(rows, 1));
    pass.divided_by(static_cast<double>(std::max<std::size_t>(rows, 1)) * divisor);
    for (std::size_t k = layers_; k-- > 0;) {
      if (rows > 0) products_.gradient(pass.gradient(k), rows);
      pass.ready(k);
    }
  }
  double divisor = 1;  // Number of ranks.

 private:
  std::size_t layers_;
  bench::outer_products products_;
};

/// Returns the seconds of a call at the slowest rank.
double timed(muster::group& world, const std::function<void()>& call) {
  muster::barrier(world);
  const auto begin = muster::clock::now();
  call();
  return muster::allreduce(world, muster::seconds_since(begin), muster::max);
}

void measure(muster::context& context, muster::group& world, const chosen& options, std::size_t bucket,
             bench::row_report& report) {
  network model(options.megabytes * 1000000 / (layer::outputs * layer::inputs * sizeof(float)));
  model.divisor = world.size();
  muster::arena arena(context, model.shapes());
  muster::gradient_sync sync(arena, {.bucket = bucket});
  muster::group alone(muster::make_self_transport());
  const auto step = [&](muster::group& ranks, std::size_t rows) {
    auto backward = sync.begin(ranks);
    {
      const muster::scoped_event phase(muster::activity::phase, "backward", 0);
      model.backward(backward, rows);
    }
    const muster::scoped_event phase(muster::activity::phase, "wait", 0);
    backward.wait();
  };
  const auto plain = [&] { muster::allreduce(world, arena.gradients(), muster::sum); };
  const auto buckets = [&] { step(world, 0); };
  for (int k = 0; k < 2; ++k) {
    plain();
    buckets();
  }
  std::vector<double> times[4];
  std::size_t rows = 0;
  if (options.mode == "overlap") {  // Finds the rows of a batch that takes `longer` times as long as the allreduce.
    std::vector<double> sums;
    for (int k = 0; k < 5; ++k) sums.push_back(timed(world, plain));
    // Measured twice, since the first rows of a batch cost more than the others.
    rows = 10;
    for (int guess = 0; guess < 2; ++guess) {
      std::vector<double> passes;
      for (int k = 0; k < 5; ++k) passes.push_back(timed(world, [&] { step(alone, rows); }));
      rows = static_cast<std::size_t>(options.longer * static_cast<double>(rows) * median(sums) / median(passes)) + 1;
    }
  }
  for (int round = 0; round < options.rounds; ++round) {
    // The second contender uses the caches as the first contender left them.
    const bool other_way_round = round % 2 != 0;
    if (other_way_round) times[1].push_back(timed(world, buckets));
    times[0].push_back(timed(world, plain));
    if (!other_way_round) times[1].push_back(timed(world, buckets));
    if (rows == 0) continue;
    times[2].push_back(timed(world, [&] { step(alone, rows); }));
    times[3].push_back(timed(world, [&] { step(world, rows); }));
  }
  const double whole = median(times[0]), parts = median(times[1]);
  std::vector<double> ratios;
  for (std::size_t k = 0; k < times[0].size(); ++k) ratios.push_back(times[1][k] / times[0][k]);
  const double overhead = 100 * (median(ratios) - 1);
  const double pass = rows > 0 ? median(times[2]) : 0, both = rows > 0 ? median(times[3]) : 0;
  const double hidden = rows > 0 ? 100 * (pass + parts - both) / parts : 0;
  report.add(options.mode + "/" + std::to_string(bucket), parts, world.size() / parts,
             {{"allreduce_seconds", whole},
              {"overhead_percent", overhead},
              {"backward_seconds", pass},
              {"together_seconds", both},
              {"hidden_percent", hidden}});
  report.print("%6zu KiB  %4zu buckets  allreduce %8.2f ms  by buckets %8.2f ms  overhead %+6.1f %%", bucket >> 10,
               sync.buckets().size(), 1e3 * whole, 1e3 * parts, overhead);
  if (rows > 0) report.print("  backward %8.2f ms  together %8.2f ms  hidden %5.1f %%", 1e3 * pass, 1e3 * both, hidden);
  report.print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    const auto flags = bench::take_report_flags(argc, argv);
    auto options = parse(argc, argv);
    if (flags.quick) options.rounds = 1;
    context.run([&](muster::group& world) {
      muster::timeline timeline(context);
      bench::row_report report(flags, world);
      report.print("%s of %zu MB of gradients, %d ranks (%s), progress thread %s\n", options.mode.c_str(),
                   options.megabytes, world.size(), std::string(world.abilities().name).c_str(),
                   world.settings().progress_thread ? "on" : "off");
      for (const std::size_t bucket : options.buckets) measure(context, world, options, bucket << 10, report);
      report.write();
      timeline.write(world);
    });
  });
}
