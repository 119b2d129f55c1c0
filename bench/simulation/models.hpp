// The tensors of the models that the examples train, without the models.
#pragma once

#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/train/arena.hpp>

namespace simulation {

namespace detail {

inline void convolution(std::vector<muster::tensor_shape>& to, std::size_t in, std::size_t out, std::size_t kernel,
                        bool bias) {
  const std::string name = "layer " + std::to_string(to.size());
  to.push_back({name, {kernel, kernel, in, out}});
  if (bias) to.push_back({name + " bias", {out}});
}

inline void scale_and_shift(std::vector<muster::tensor_shape>& to, std::size_t channels) {
  const std::string name = "normalisation " + std::to_string(to.size());
  to.push_back({name + " scale", {channels}});
  to.push_back({name + " shift", {channels}});
}

}  // namespace detail

/// Returns the tensors of ResNet-20 with projections: 272,474 parameters.
inline std::vector<muster::tensor_shape> resnet20() {
  std::vector<muster::tensor_shape> shapes;
  const auto layer = [&](std::size_t in, std::size_t out, std::size_t kernel) {
    detail::convolution(shapes, in, out, kernel, false);
    detail::scale_and_shift(shapes, out);
  };
  layer(3, 16, 3);
  std::size_t in = 16;
  for (const std::size_t out : {16u, 32u, 64u}) {
    for (int block = 0; block < 3; ++block) {
      if (in != out) detail::convolution(shapes, in, out, 1, false);
      if (in != out) detail::scale_and_shift(shapes, out);
      layer(in, out, 3);
      layer(out, out, 3);
      in = out;
    }
  }
  shapes.push_back({"classes", {64, 10}});
  shapes.push_back({"classes bias", {10}});
  return shapes;
}

/// Returns the tensors of VGG16 with batch normalisation and two hidden layers of 512: 15,253,578 parameters.
inline std::vector<muster::tensor_shape> vgg16() {
  std::vector<muster::tensor_shape> shapes;
  std::size_t in = 3;
  for (const std::size_t out : {64u, 64u, 128u, 128u, 256u, 256u, 256u, 512u, 512u, 512u, 512u, 512u, 512u}) {
    detail::convolution(shapes, in, out, 3, true);
    detail::scale_and_shift(shapes, out);
    in = out;
  }
  for (const std::size_t out : {512u, 512u, 10u}) {
    shapes.push_back({"dense " + std::to_string(shapes.size()), {in, out}});
    shapes.push_back({"dense bias " + std::to_string(shapes.size()), {out}});
    in = out;
  }
  return shapes;
}

/// Returns the tensors of MLBench's 2a on epsilon: 2,000 weights and an intercept.
inline std::vector<muster::tensor_shape> logistic() { return {{"weights", {2000}}, {"intercept", {1}}}; }

/// Returns the tensors of a model by name. Throws configuration_error for an unknown name.
inline std::vector<muster::tensor_shape> tensors_of(const std::string& model) {
  if (model == "resnet20") return resnet20();
  if (model == "vgg16") return vgg16();
  if (model == "logistic") return logistic();
  throw muster::configuration_error("unknown model '" + model +
                                    "' (known: resnet20, vgg16, logistic); use a known name");
}

}  // namespace simulation
