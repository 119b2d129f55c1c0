#include <muster/core/device/kernels.hpp>

#include <algorithm>
#include <string>
#include <type_traits>

#include <muster/core/device/memory.hpp>
#include <muster/core/error.hpp>
#include <muster/core/update.hpp>

#include "launch.hpp"

namespace muster { inline namespace v0 {
namespace {

// A functor that processes an element at a time with the host's own loop, so that the formula exists only once.
template <class Loop>
struct one_element_step {
  Loop loop;
  template <class... State>
  constexpr void operator()(float& parameter, const float& gradient, State&... states) const {
    float none = 0;
    float* const all[] = {&states..., &none, &none};
    loop.run(1, &parameter, &gradient, all[0], all[1]);
  }
};

template <class From, class To>
void convert_all(device_span<const From> source, device_span<To> destination, device_stream_ref stream) {
  detail::require_same_size(source.size(), destination.size());
  detail::for_each(
      stream, source.size(), [] __device__(const From& value, To& result) { result = To(static_cast<float>(value)); },
      source.data(), destination.data());
}

// A sum has two levels. The first level sums parts. A part is a multiple of the elements that a block's threads read
// together, and there are at most `most_parts` parts. The second level sums the parts.
constexpr std::size_t most_parts = 1024, part_unit = std::size_t{8} * detail::block_threads;
constexpr std::size_t ceiling(std::size_t count, std::size_t divisor) { return (count + divisor - 1) / divisor; }
constexpr std::size_t part_of(std::size_t count) { return part_unit * ceiling(count, part_unit * most_parts); }

}  // namespace

template <update_step Step>
void update(const Step& step, device_span<float> parameters, device_span<const float> gradients,
            const std::array<device_span<float>, 2>& states, device_stream_ref stream) {
  detail::require_one_each(step, parameters.size(), gradients, states);
  const auto loop = detail::loop_of(step);
  const auto run = [&](auto... arrays) {
    detail::for_each(stream, parameters.size(), one_element_step<std::remove_const_t<decltype(loop)>>{loop},
                     parameters.data(), gradients.data(), arrays...);
  };
  switch (step.states()) {
    case 0:
      return run();
    case 1:
      return run(states[0].data());
    default:
      return run(states[0].data(), states[1].data());
  }
}
template void update(const sgd_step<float>&, device_span<float>, device_span<const float>,
                     const std::array<device_span<float>, 2>&, device_stream_ref);
template void update(const adam_step<float>&, device_span<float>, device_span<const float>,
                     const std::array<device_span<float>, 2>&, device_stream_ref);

void convert(device_span<const float> source, device_span<float16> destination, device_stream_ref stream) {
  convert_all(source, destination, stream);
}
void convert(device_span<const float16> source, device_span<float> destination, device_stream_ref stream) {
  convert_all(source, destination, stream);
}
void convert(device_span<const float> source, device_span<bfloat16> destination, device_stream_ref stream) {
  convert_all(source, destination, stream);
}
void convert(device_span<const bfloat16> source, device_span<float> destination, device_stream_ref stream) {
  convert_all(source, destination, stream);
}

void scale(device_span<float> values, float factor, device_stream_ref stream) {
  detail::for_each(
      stream, values.size(), [factor] __device__(float& value) { value *= factor; }, values.data());
}

void fill(device_span<float> values, float constant, device_stream_ref stream) {
  detail::for_each(
      stream, values.size(), [constant] __device__(float& value) { value = constant; }, values.data());
}

// The result, followed by the parts. The size also suffices for fewer elements, whose parts are fewer.
std::size_t sum_scratch(std::size_t count) noexcept { return 1 + std::min(most_parts, ceiling(count, part_unit)); }

void sum_of_squares(device_span<const float> values, device_span<double> sums, device_stream_ref stream) {
  if (sums.size() < sum_scratch(values.size())) {
    throw configuration_error("a sum cannot use " + std::to_string(sums.size()) + " doubles (it needs " +
                              std::to_string(sum_scratch(values.size())) + "); call sum_scratch");
  }
  if (values.empty()) {
    clear(sums.first(1), stream);
    return;
  }
  const float* const all = values.data();
  double* const parts = sums.data() + 1;
  const std::size_t part = part_of(values.size());
  const auto square = [all] __device__(std::size_t i) {
    return static_cast<double>(all[i]) * static_cast<double>(all[i]);
  };
  detail::sum_parts(stream, values.size(), part, square, parts);
  detail::sum_parts(
      stream, ceiling(values.size(), part), most_parts, [parts] __device__(std::size_t i) { return parts[i]; },
      sums.data());
}

}}  // namespace muster::v0
