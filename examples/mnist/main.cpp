#include <muster/muster.hpp>
#include "mlp.hpp"
int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context, auto&) {  // once a rank, process or thread
    auto loader = muster::open_source("idx:train-images-idx3-ubyte,train-labels-idx1-ubyte") | muster::shuffle(1) |
                  muster::batch(100) | muster::prefetch(4);
    mlp model(784, 128, 10);  // your own: loops, Eigen, anything that computes gradients
    muster::arena arena(context, model.shapes());
    model.initialise(arena);
    muster::sgd optimizer(arena, {.momentum = 0.9f});
    muster::training training(context, arena, optimizer, loader);
    training.run({.epochs = 5, .checkpoint = "checkpoints"}, [&](muster::training_step& step) {
      step.backward(step.next(loader), [&](auto& part, auto& pass) { model.forward_backward(part, pass); });
      step.update(optimizer, 0.05);                        // at every rank, or at none
      step.report("loss", model.loss(), model.samples());  // counted when the step commits
    });
  });
}
