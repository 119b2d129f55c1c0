// A model without layers, on a device and on the host with the same bits. For each sample x its parameters p are pulled
// towards x * c, with constants c. The gradient of the sum of |p - x * c|^2 / 2 is n * p - (sum of x) * c.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <muster/core/device/kernels.hpp>
#include <muster/data/minibatch.hpp>
#include <muster/train/device/device_arena.hpp>
#include <muster/train/sync/gradient_sync.hpp>

namespace test {

struct quadratic {
  [[nodiscard]] static std::vector<muster::tensor_shape> shapes() {
    return {{"a", {40, 300}}, {"b", {17}}, {"c", {}}, {"d", {10, 1000}}, {"e", {301}}};
  }
  static constexpr std::size_t largest = 12000;

  explicit quadratic(std::optional<muster::device_stream_ref> on = {}) : constants(largest) {
    for (std::size_t i = 0; i < largest; ++i) constants[i] = static_cast<float>(i % 13) / 7.0f - 0.8f;
    if (!on) return;
    device_constants = muster::device_buffer<float>(largest);
    muster::copy(std::span<const float>(constants), device_constants.span(), *on);
  }

  void backward(muster::arena& arena, const muster::minibatch& part, muster::backward_pass& pass, std::size_t tensor) {
    const auto parameter = arena.parameter(tensor);
    const auto gradient = arena.gradient(tensor);
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = parameter[i] * static_cast<float>(part.samples.size());
    muster::update(pull_of(part), gradient, std::span<const float>(constants).first(gradient.size()), {});
    pass.ready(tensor);
  }
  void backward(muster::device_arena& arena, const muster::minibatch& part, muster::backward_pass& pass,
                std::size_t tensor) {
    const auto gradient = arena.gradient(tensor);
    muster::copy(arena.parameter(tensor), gradient, arena.stream());
    muster::scale(gradient, static_cast<float>(part.samples.size()), arena.stream());
    muster::update(pull_of(part), gradient, device_constants.span().first(gradient.size()), {}, arena.stream());
    pass.ready(tensor);
  }
  template <class Arena>
  void backward(Arena& arena, const muster::minibatch& part, muster::backward_pass& pass) {
    for (std::size_t tensor = shapes().size(); tensor-- > 0;) backward(arena, part, pass, tensor);
  }

  static muster::sgd_step<float> pull_of(const muster::minibatch& part) {
    float all = 0;
    for (const float x : part.values<float>()) all += x;
    return {.learning_rate = all};
  }

  std::vector<float> constants;
  muster::device_buffer<float> device_constants;
};

/// Returns a copy of the parameters on a device.
inline std::vector<float> on_host(muster::device_arena& arena) {
  std::vector<float> copied(arena.parameters().size());
  muster::copy(arena.parameters(), std::span(copied), arena.stream());
  muster::wait_for(arena.stream(), muster::deadline_after(muster::seconds(60)));
  return copied;
}

}  // namespace test
