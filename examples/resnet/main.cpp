// Residual networks on CIFAR-10: MLBench's task 1a (docs/resnet.md).
//
//   mpirun -n 2 build/release/examples/resnet --data cifar10:FOLDER --preset mlbench-1a-2019 --json out.json
//   build/release/examples/resnet --ranks 2 --data cifar-like:2000 --epochs 2
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "training.hpp"

int main(int argc, char** argv) {
  const images::program which{
      .name = "resnet",
      .about = "Residual networks on small images: MLBench's task 1a.",
      .mlbench = true,
      .add_flags = [](CLI::App& app) -> std::function<std::string()> {
        struct flags {
          int depth = 20;
          std::string variant = "v1", shortcut = "B";
        };
        auto chosen = std::make_shared<flags>();
        muster::add_number(app, "--depth", chosen->depth, {8, 1202},
                           "layers: 20, 32, 44, 56 or another 6 n + 2; or 50 of the kind for large images");
        app.add_option("--variant", chosen->variant, "v1 (He 2015) or v2 (pre-activation, He 2016)")
            ->check(CLI::IsMember({"v1", "v2"}))
            ->capture_default_str();
        app.add_option("--shortcut", chosen->shortcut, "between stages: A pads, B projects")
            ->check(CLI::IsMember({"A", "B"}))
            ->capture_default_str();
        return [chosen] {
          if (chosen->depth == 50) return std::string("resnet50");
          return "resnet" + std::to_string(chosen->depth) + "-" + chosen->variant + "-" + chosen->shortcut;
        };
      }};
  return images::run_program(argc, argv, which);
}
