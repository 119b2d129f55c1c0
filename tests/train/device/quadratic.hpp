// A model without layers, on a device and on the host to the same bits: parameters p that are pulled towards x * c for
// each sample x, where c are constants. The gradient of the sum of |p - x * c|^2 / 2 is n * p - (sum of x) * c.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <muster/core/device/kernels.hpp>
#include <muster/data/minibatch.hpp>
#include <muster/train/device/arena.hpp>
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
    const auto from = arena.parameter(tensor);
    const auto to = arena.gradient(tensor);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i] * static_cast<float>(part.samples.size());
    muster::update(pull_of(part), to, std::span<const float>(constants).first(to.size()), {});
    pass.ready(tensor);
  }
  void backward(muster::device_arena& arena, const muster::minibatch& part, muster::backward_pass& pass,
                std::size_t tensor) {
    const auto to = arena.gradient(tensor);
    muster::copy(arena.parameter(tensor), to, arena.stream());
    muster::scale(to, static_cast<float>(part.samples.size()), arena.stream());
    muster::update(pull_of(part), to, device_constants.span().first(to.size()), {}, arena.stream());
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

/// What is on a device, here.
inline std::vector<float> on_host(muster::device_arena& arena) {
  std::vector<float> made(arena.parameters().size());
  muster::copy(arena.parameters(), std::span(made), arena.stream());
  muster::wait_for(arena.stream(), muster::deadline_after(muster::seconds(60)));
  return made;
}

}  // namespace test
