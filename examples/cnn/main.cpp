// The small convolutional network of the textbooks on MNIST (docs/resnet.md).
//
//   build/release/examples/cnn --data idx:t10k-images-idx3-ubyte.gz,t10k-labels-idx1-ubyte.gz
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "training.hpp"

int main(int argc, char** argv) {
  const images::program which{
      .name = "cnn",
      .about = "A small convolutional network for MNIST and similar data.",
      // The training of the book that describes the network (Tang 2024, Distributed Machine Learning Patterns, chapter
      // 9).
      .defaults = {.data = "cifar-like:2000",
                   .scaled_alone = true,
                   .augment = false,
                   .batch_per_rank = 64,
                   .schedule = "step:0.001,epochs=3+7,factor=0.1",
                   .optimizer = "adam",
                   .stages = {.kept = muster::cache(muster::in_memory), .bad = {}}},
      .add_flags = [](CLI::App& app) -> std::function<std::string()> {
        auto variant = std::make_shared<std::string>("plain");
        app.add_option("--variant", *variant,
                       "plain, dropout (before the third convolution) or batch-norm (and a sigmoid, twice)")
            ->check(CLI::IsMember({"plain", "dropout", "batch-norm"}))
            ->capture_default_str();
        return [variant] { return *variant == "plain" ? std::string("cnn") : "cnn-" + *variant; };
      }};
  return images::run_program(argc, argv, which);
}
