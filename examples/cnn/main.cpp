// The small convolutional network of the textbooks on MNIST (docs/resnet.md).
//
//   build/release/examples/cnn --data idx:t10k-images-idx3-ubyte.gz,t10k-labels-idx1-ubyte.gz --augment off
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "training.hpp"

int main(int argc, char** argv) {
  const images::program which{
      .name = "cnn",
      .about = "A small convolutional network for MNIST and similar data.",
      .data = "cifar-like:2000",
      .schedule = "step:0.03,epochs=2,factor=0.1",  // nothing is normalised: 0.1 diverges
      .mlbench = false,
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
