// Loops over the memory of a device: the optimizers' steps, conversions, sums.
#pragma once

#include <array>
#include <cstddef>

#include <muster/core/device/span.hpp>
#include <muster/core/device/stream.hpp>
#include <muster/core/float16.hpp>
#include <muster/core/update/step.hpp>

namespace muster { inline namespace v0 {

/// What `update` of core/update does, put on a stream, for sgd_step and adam_step of floats. The formulas
/// are those very ones, without fused multiply-adds, so that a device and a processor step to the same bits. The spans
/// do not overlap and stay until the stream has done it.
template <update_step Step>
void update(const Step& step, device_span<float> parameters, device_span<const float> gradients,
            const std::array<device_span<float>, 2>& states, device_stream_ref stream);

/// Converts each element on a stream and does not wait: to the bits of float16's and bfloat16's own conversions. Throws
/// configuration_error when the lengths differ. The spans do not overlap, and live until the stream has passed the
/// call.
void convert(device_span<const float> from, device_span<float16> to, device_stream_ref stream);
void convert(device_span<const float16> from, device_span<float> to, device_stream_ref stream);
void convert(device_span<const float> from, device_span<bfloat16> to, device_stream_ref stream);
void convert(device_span<const bfloat16> from, device_span<float> to, device_stream_ref stream);

/// values[i] *= by.
void scale(device_span<float> values, float by, device_stream_ref stream);
/// values[i] = to.
void fill(device_span<float> values, float to, device_stream_ref stream);
/// sums[0] becomes the sum of the squares, in double precision and in an order that depends on the size alone; the rest
/// of `sums`, which has `sum_scratch(size)` elements, is overwritten.
void sum_of_squares(device_span<const float> values, device_span<double> sums, device_stream_ref stream);
[[nodiscard]] std::size_t sum_scratch(std::size_t size) noexcept;

}}  // namespace muster::v0
