#include <muster/muster.hpp>
#include "mlp.hpp"
int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context, auto&) {  // once a rank, process or thread
    auto loader = muster::open_source("mnist:.") | muster::shuffle(1) | muster::batch(100) | muster::prefetch(4);
    mlp model(context, 784, 128, 10);  // your own: its tensors are in a muster::arena, and it computes their gradients
    muster::sgd optimizer(model.arena, {.momentum = 0.9f});
    muster::training training(context, model.arena, optimizer, loader);
    training.run({.epochs = 5, .checkpoint = "checkpoints"}, [&](muster::training_step& step) {
      step.backward(step.next(loader), [&](auto& part, auto& pass) { model.forward_backward(part, pass); });
      step.update(optimizer, 0.05);                        // at every rank, or at none
      step.report("loss", model.loss(), model.samples());  // counted when the step commits
    });
  });
}
