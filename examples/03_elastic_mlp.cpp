// Ranks die and join while a model trains. The last of three ranks kills itself after 100 steps. muster-launch starts a
// new rank in its place, which receives the state from the other ranks. Each sample is still used once in every epoch.
//
//   $ muster-launch -n 3 --restart 1 03_elastic_mlp
//   epoch 1: loss ..., 400000 samples in ... s
//   epoch 2: loss ..., 400000 samples in ... s
//   epoch 3: loss ..., 400000 samples in ... s
//   after 24000 steps 3 ranks estimate an accuracy of ...
//
// The same program without faults: 03_elastic_mlp --ranks 3, or under mpirun.
#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <vector>

#include <muster/muster.hpp>

// Returns points of a square. The label states whether both coordinates have the same sign, which no linear model can
// separate.
muster::dataset points(std::size_t count) {
  auto builder = muster::dataset_builder::dense("points", count, 2);
  muster::random_stream random(3);
  for (std::size_t k = 0; k < count; ++k) {
    auto point = builder.row(k);
    for (float& x : point) x = static_cast<float>(2 * random.uniform() - 1);
    builder.labels()[k] = point[0] * point[1] > 0 ? 1.0f : 0.0f;
  }
  return builder.finish();
}

constexpr std::size_t hidden = 16;

struct mlp {
  double loss = 0, right = 0;

  static std::vector<muster::tensor_shape> shapes() {
    return {{"w1", {hidden, 2}}, {"b1", {hidden}}, {"w2", {hidden}}, {"b2", {1}}};
  }

  void forward_backward(const muster::dataset& data, const muster::minibatch& batch, muster::backward_pass& pass) {
    const auto w1 = pass.parameter(0), b1 = pass.parameter(1), w2 = pass.parameter(2), b2 = pass.parameter(3);
    const auto g1 = pass.gradient(0), gb1 = pass.gradient(1), g2 = pass.gradient(2), gb2 = pass.gradient(3);
    pass.clear();
    loss = right = 0;
    for (const auto id : batch.samples) {
      const auto x = data.row(id);
      const float label = data.label(id);
      std::array<float, hidden> h{};
      float z = b2[0];
      for (std::size_t k = 0; k < hidden; ++k) {
        h[k] = std::tanh(b1[k] + w1[2 * k] * x[0] + w1[2 * k + 1] * x[1]);
        z += w2[k] * h[k];
      }
      const float p = 1 / (1 + std::exp(-z)), slope = p - label;
      loss -= std::log(std::max(label > 0 ? p : 1 - p, 1e-30f));
      right += (p > 0.5f) == (label > 0) ? 1 : 0;
      gb2[0] += slope;
      for (std::size_t k = 0; k < hidden; ++k) {
        const float back = slope * w2[k] * (1 - h[k] * h[k]);
        g2[k] += slope * h[k];
        gb1[k] += back;
        g1[2 * k] += back * x[0];
        g1[2 * k + 1] += back * x[1];
      }
    }
  }
};

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context, auto&) {
    const muster::dataset data = points(400000);
    auto loader = data | muster::shuffle(1) | muster::batch(50);
    mlp model;
    muster::arena arena(context, mlp::shapes());
    muster::random_stream random(1);
    for (const std::size_t weights : {std::size_t{0}, std::size_t{2}})
      for (float& weight : arena.parameter(weights)) weight = static_cast<float>(random.normal());
    muster::adam optimizer(arena);
    muster::training training(context, arena, optimizer, loader);
    double right = 0;
    training.run({.epochs = 3}, [&](muster::training_step& step) {
      const bool is_last = step.group().size() > 1 && step.group().rank() == step.group().size() - 1;
      if (step.number() == 100 && step.generation() == 1 && is_last) std::raise(SIGKILL);
      const auto batch = step.next(loader);  // this rank's part, whatever the current ranks are
      step.backward(batch, [&](auto& part, auto& pass) { model.forward_backward(data, part, pass); });
      step.update(optimizer, 0.01);  // is repeated with the remaining ranks if a rank dies in this step
      step.report("loss", model.loss / static_cast<double>(batch.samples.size()), batch.samples.size());
      right = model.right;
    });
    training.evaluate([&](muster::step& step) {
      const double all = muster::allreduce(step.group(), right, muster::sum);
      if (step.group().rank() == 0)
        std::printf("after %llu steps %d ranks estimate an accuracy of %.3f\n",
                    static_cast<unsigned long long>(training.state().steps()), step.group().size(), all / 50);
    });
  });
}
