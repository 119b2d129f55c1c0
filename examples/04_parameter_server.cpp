// A linear model on a parameter server: each worker pulls the weights, computes a gradient from its own samples and
// pushes it, at its own pace. The last rank is a server unless --servers and --consistency request another setup.
//
//   $ 04_parameter_server --ranks 4
//   3 workers, 1 server: after 600 pushes the weights equal the weights of the data, to 0.001
//
//   $ mpirun -n 3 04_parameter_server --servers 1 --consistency bulk
//   2 workers, 1 server: after 400 pushes the weights equal the weights of the data, to 0.001
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <muster/muster.hpp>

constexpr std::size_t features = 10;
constexpr int clocks = 200, batch = 32;

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context, muster::group& world) {
    std::vector<float> truth(features);
    for (std::size_t k = 0; k < features; ++k) truth[k] = static_cast<float>(k) / 2 - 2;

    // Every rank declares the same tables. The push is a gradient, and the server's update function applies the step.
    const auto options = muster::ps::chosen_options(context.configuration(),
                                                    {{.name = "weights", .size = features, .update = "sgd:0.1"}});
    muster::ps::job job(context, world, options);
    if (job.is_server()) return job.serve();  // returns when the last worker has finished

    auto& tables = job.tables();
    muster::random_stream random(static_cast<std::uint64_t>(job.worker()));
    std::vector<float> weights(features), gradient(features), x(features);
    for (int clock = 0; clock < clocks; ++clock) {
      tables.pull(0, weights);
      gradient.assign(features, 0);
      for (int sample = 0; sample < batch; ++sample) {
        float error = 0;
        for (std::size_t k = 0; k < features; ++k) {
          x[k] = static_cast<float>(random.normal());
          error += x[k] * (weights[k] - truth[k]);
        }
        for (std::size_t k = 0; k < features; ++k) gradient[k] += error * x[k] / batch;
      }
      // is applied exactly once, even if a rank dies
      tables.push(0, gradient, {.scale = 1.0f / static_cast<float>(job.workers())});
      tables.next_clock();
    }

    auto workers = job.connect_workers();
    muster::barrier(workers);  // all workers have pushed
    tables.pull(0, weights);
    float worst = 0;
    for (std::size_t k = 0; k < features; ++k) worst = std::max(worst, std::abs(weights[k] - truth[k]));
    if (worst > 0.001f) throw std::runtime_error("the weights are off by " + std::to_string(worst));
    if (job.worker() == 0)
      std::printf("%d workers, %d server: after %d pushes the weights equal the weights of the data, to 0.001\n",
                  job.workers(), world.size() - job.workers(), clocks * job.workers());
    job.finish();
  });
}
