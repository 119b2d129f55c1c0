// A program that compiles muster itself: -I and threads are all that it needs. It trains on as many ranks as it is told.
#include <cstdio>

#include <muster/implementation.hpp>  // in one file
#include <muster/muster.hpp>

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context, muster::group& world) {
    auto points = muster::dataset_builder::dense("points", 1000, 1);
    for (std::size_t k = 0; k < 1000; ++k) {
      points.row(k)[0] = static_cast<float>(k) / 500 - 1;
      points.labels()[k] = 2 * points.row(k)[0] - 1;
    }
    const muster::dataset data = points.finish();
    auto loader = data | muster::shuffle(1) | muster::batch(20);
    muster::arena arena(context, {{"slope", {1}}, {"offset", {1}}});
    const auto slope = arena.parameter(0), offset = arena.parameter(1);
    muster::sgd optimizer(arena);
    muster::training training(context, arena, optimizer, loader);
    training.run({.epochs = 5, .log = nullptr}, [&](muster::training_step& step) {
      step.backward(step.next(loader), [&](const muster::minibatch& part, muster::backward_pass& pass) {
        pass.clear();
        for (const auto id : part.samples) {
          const float x = data.row(id)[0], error = slope[0] * x + offset[0] - data.label(id);
          pass.gradient(0)[0] += error * x;
          pass.gradient(1)[0] += error;
        }
      });
      step.update(optimizer, 0.3);
    });
    const bool learnt = slope[0] > 1.999f && slope[0] < 2.001f && offset[0] < -0.999f && offset[0] > -1.001f;
    if (muster::allreduce(world, learnt ? 1 : 0, muster::min) != 1)
      throw muster::error(muster::error_kind::other, "it has not learnt the line");
    if (world.rank() == 0)
      std::printf("%d ranks over %s have learnt the line\n", world.size(), context.transport_name().c_str());
  });
}
