#include "network.hpp"

#include <algorithm>
#include <cmath>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

namespace nn {

template <class T>
network<T>::network(const extent& input, const execution& execution)
    : execution_(execution), team_(execution.threads), kernels_(&find_kernels<T>(execution.kernels)) {
  make(input).from_outside();
}

template <class T>
activation<T>& network<T>::make(const extent& shape) {
  return *activations_.emplace_back(std::make_unique<activation<T>>(shape, *kernels_));
}

template <class T>
parameter<T>& network<T>::make_parameter(std::string name, std::vector<std::size_t> extents, start initialisation,
                                         double fan) {
  return parameters_.emplace_back(
      parameter<T>{std::move(name), std::move(extents), parameters_.size(), initialisation, fan});
}

template <class T>
batch_norm<T>& network<T>::make_norm(std::size_t channels) {
  const std::string name = "norm" + std::to_string(norms_.size() + 1);
  auto& scale = make_parameter(name + ".scale", {channels}, start::ones);
  auto& shift = make_parameter(name + ".shift", {channels}, start::zeros);
  statistics_.insert(statistics_.end(), channels, T{0});
  statistics_.insert(statistics_.end(), channels, T{1});
  return *norms_.emplace_back(std::make_unique<batch_norm<T>>(channels, scale, shift, *kernels_));
}

template <class T>
template <class Layer, class... Arguments>
Layer& network<T>::add_layer(Arguments&&... arguments) {
  auto added = std::make_unique<Layer>(team_, std::forward<Arguments>(arguments)...);
  Layer& result = *added;
  layers_.push_back(std::move(added));
  return result;
}

template <class T>
activation<T>& network<T>::convolve(activation<T>& in, const convolve_options& options) {
  const convolution_shape shape{in.shape(), options.channels, options.kernel, options.stride, options.padding};
  const std::string name = "conv" + std::to_string(++convolutions_);
  const double fan_in = static_cast<double>(options.kernel * options.kernel * in.shape().channels);
  // This variance preserves the scale of the gradients, as in similar models of PyTorch.
  const double fan_out = static_cast<double>(options.kernel * options.kernel * options.channels);
  auto& weights =
      make_parameter(name + ".weight", {options.kernel, options.kernel, in.shape().channels, options.channels},
                     start::kaiming, options.bias ? fan_in : fan_out);
  parameter<T>* const bias = options.bias ? &make_parameter(name + ".bias", {options.channels}, start::zeros) : nullptr;
  auto& out = make(shape.out());
  std::vector<std::unique_ptr<convolution<T>>> ways;
  while (work_.size() < team_.threads()) work_.push_back(std::make_shared<workspace<T>>());
  for (const auto& work : work_) ways.push_back(make_convolution<T>(execution_.backend, shape, *kernels_, work));
  add_layer<convolution_layer<T>>(in, out, weights, bias, std::move(ways), gradient_sums_);
  operations_ += shape.operations() * (in.wants_gradient() ? 3 : 2);
  return out;
}

template <class T>
activation<T>& network<T>::dense(activation<T>& in, std::size_t size) {
  const std::string name = "dense" + std::to_string(++denses_);
  const double fan = static_cast<double>(in.shape().size());
  auto& weights = make_parameter(name + ".weight", {in.shape().size(), size}, start::uniform, fan);
  auto& bias = make_parameter(name + ".bias", {size}, start::uniform, fan);
  auto& out = make({1, 1, size});
  add_layer<dense_layer<T>>(in, out, weights, bias);
  return out;
}

template <class T>
activation<T>& network<T>::normalise(activation<T>& in) {
  in.normalise(make_norm(in.shape().channels));
  return in;
}

template <class T>
activation<T>& network<T>::relu(activation<T>& in) noexcept {
  in.rectify();
  return in;
}

template <class T>
activation<T>& network<T>::normalised_view(activation<T>& in) {
  auto& out = make(in.shape());
  add_layer<view_layer<T>>(in, out);
  return relu(normalise(out));
}

template <class T>
activation<T>& network<T>::add(activation<T>& a, activation<T>& b) {
  auto& out = make(a.shape());
  sums_.push_back(&add_layer<sum_layer<T>>(a, b, out));
  return out;
}

template <class T>
activation<T>& network<T>::pad_shortcut(activation<T>& in, std::size_t channels, std::size_t stride) {
  const auto cut = [&](std::size_t side) { return (side + stride - 1) / stride; };
  auto& out = make({cut(in.shape().height), cut(in.shape().width), channels});
  add_layer<padded_shortcut<T>>(in, out, stride);
  return out;
}

template <class T>
activation<T>& network<T>::max(activation<T>& in, const pool_window& window) {
  const auto cut = [&](std::size_t side) { return (side + 2 * window.padding - window.kernel) / window.stride + 1; };
  auto& out = make({cut(in.shape().height), cut(in.shape().width), in.shape().channels});
  add_layer<max_pool<T>>(in, out, window);
  return out;
}

template <class T>
activation<T>& network<T>::average(activation<T>& in) {
  auto& out = make({1, 1, in.shape().channels});
  add_layer<average_pool<T>>(in, out);
  return out;
}

template <class T>
activation<T>& network<T>::sigmoid(activation<T>& in) {
  auto& out = make(in.shape());
  add_layer<sigmoid_layer<T>>(in, out);
  return out;
}

template <class T>
activation<T>& network<T>::drop(activation<T>& in, double probability) {
  auto& out = make(in.shape());
  add_layer<dropout<T>>(in, out, probability, ++dropouts_);
  return out;
}

template <class T>
void network<T>::finish(activation<T>& out) {
  output_ = &out;
  for (auto* const sum : sums_) sum->connect();
  std::size_t at = 0;
  for (auto& norm : norms_) {
    const std::size_t size = 2 * norm->channels();
    norm->bind(std::span(statistics_).subspan(at, size));
    at += size;
  }
}

template <class T>
std::size_t network<T>::parameter_count() const noexcept {
  std::size_t count = 0;
  for (const auto& shape : shapes()) count += shape.size();
  return count;
}

template <class T>
std::vector<muster::tensor_shape> network<T>::shapes() const {
  std::vector<muster::tensor_shape> all;
  for (const auto& each : parameters_) all.push_back({each.name, each.extents});
  return all;
}

template <class T>
void network<T>::bind(std::size_t index, std::span<T> values, std::span<T> gradient) {
  parameters_[index].values = values;
  parameters_[index].gradient = gradient;
}

template <class T>
void network<T>::bind(muster::arena& arena) requires std::same_as<T, float> {
  if constexpr (std::same_as<T, float>)  // Clang also instantiates this code for double.
    for (const auto& each : parameters_) bind(each.index, arena.parameter(each.name), arena.gradient(each.name));
}

template <class T>
void network<T>::initialise(std::uint64_t seed) {
  for (auto& each : parameters_) {
    muster::random_stream random(seed, each.index);
    const double normal = std::sqrt(2 / each.fan), uniform = 1 / std::sqrt(each.fan);
    for (T& value : each.values) {
      switch (each.initialisation) {
        case start::zeros:
          value = T{0};
          break;
        case start::ones:
          value = T{1};
          break;
        case start::kaiming:
          value = static_cast<T>(normal * random.normal());
          break;
        case start::uniform:
          value = static_cast<T>(uniform * (2 * random.uniform() - 1));
          break;
      }
    }
  }
}

template <class T>
void network<T>::reserve(std::size_t images) {
  if (images <= reserved_) return;
  // A sum provides the gradient memory of the activations with which it shares its gradient. These precede the sum.
  for (auto at = activations_.rbegin(); at != activations_.rend(); ++at) (*at)->reserve(images);
  for (auto& each : layers_) each->reserve(images);
  reserved_ = images;
}

template <class T>
std::span<const T> network<T>::forward(std::span<const T> images, const pass& now) {
  if (images.size() != now.images * input_shape().size()) {
    throw muster::configuration_error("the network got " + std::to_string(images.size()) + " numbers for " +
                                      std::to_string(now.images) + " images of " +
                                      std::to_string(input_shape().size()) + " (they differ); check the data's shape");
  }
  reserve(std::max<std::size_t>(now.images, 1));
  input().set_outside(images.data());
  for (auto& norm : norms_) norm->begin(now);
  for (auto& each : layers_) each->forward(now);
  return {output_->values(0), now.images * classes()};
}

template <class T>
void network<T>::backward(std::span<const T> logits_gradient, const pass& now) {
  std::copy(logits_gradient.begin(), logits_gradient.end(), output_->gradient(0));
  for (auto at = layers_.rbegin(); at != layers_.rend(); ++at) (*at)->backward(now);
}

template class network<float>;
template class network<double>;

}  // namespace nn
