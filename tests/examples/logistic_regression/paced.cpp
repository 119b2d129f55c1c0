// The example with a minimum duration for each step, like the steps of a larger model: for jobs that must outlast
// injected faults on any machine, and for workers of unequal speed (bench/ps_slow_worker.py).
//
//   paced_logistic_regression --step-time 0.002 --slow-rank 3 --slow-times 10 ...  (flags of the example)
#include <thread>

#include <muster/muster.hpp>

#include "command_line.hpp"
#include "job.hpp"
#include "logistic_regression/options.hpp"
#include "logistic_regression/problem.hpp"
#include "logistic_regression/training.hpp"

namespace {

/// Sleeps after a pass over a batch until the minimum duration has passed.
class pace final : public muster::event_sink {
 public:
  explicit pace(double seconds)
      : least_(std::chrono::duration_cast<muster::clock::duration>(muster::seconds(seconds))) {}
  void record(const muster::event& event) noexcept override {
    if (event.kind == muster::activity::phase && event.name == to_string(muster::phase::backward))
      std::this_thread::sleep_until(event.begin + least_);
  }

 private:
  muster::clock::duration least_;
  muster::scoped_event_sink installed_{*this};
};

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    double seconds = 0, factor = 1;
    int slow = -1;
    CLI::App own;
    muster::add_number(own, "--step-time", seconds, {0, 3600}, "minimum seconds of the arithmetic of a step");
    muster::add_number(own, "--slow-rank", slow, {0, 4096}, "rank whose steps take --slow-times times as long");
    muster::add_number(own, "--slow-times", factor, {1, 1e6}, "factor of --slow-rank");
    own.allow_extras();
    examples::parse(own, argc, argv);
    auto words = own.remaining();
    words.insert(words.begin(), argv[0]);
    std::vector<char*> left;
    for (auto& word : words) left.push_back(word.data());
    const auto chosen =
        logistic::parse_options(static_cast<int>(left.size()), left.data(), examples::ranks_of(context));
    const auto data = logistic::open_problem(chosen);  // ranks that are threads share the data
    context.run([&](muster::group& world) {
      const pace slowed(world.rank() == slow ? seconds * factor : seconds);
      logistic::train(context, world, data, chosen);
    });
  });
}
