// VGG16 with batch normalisation on CIFAR-10 (docs/resnet.md).
//
//   mpirun -n 2 build/release/examples/vgg16 --data cifar10:FOLDER --schedule step:0.05,epochs=60+120,factor=0.1
#include "training.hpp"

int main(int argc, char** argv) {
  const images::program which{
      .name = "vgg16",
      .about = "VGG16 with batch normalisation on images of CIFAR-10's form.",
      .defaults = {.data = "cifar-like:1000"},
      .mlbench = false,
      .add_flags = [](CLI::App&) -> std::function<std::string()> { return [] { return "vgg16"; }; }};
  return images::run_program(argc, argv, which);
}
