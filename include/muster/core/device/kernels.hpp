// Kernels over the memory of a device: the optimizers' steps, conversions, sums.
#pragma once

#include <array>
#include <cstddef>

#include <muster/core/device/span.hpp>
#include <muster/core/device/stream.hpp>
#include <muster/core/float16.hpp>
#include <muster/core/update/update_step.hpp>

namespace muster { inline namespace v0 {

/// Enqueues the operation `update` of core/update on a stream, for sgd_step and adam_step of floats. The formulas are
/// the same, without fused multiply-adds, so that a device and a processor compute the same bits. The spans must not
/// overlap, and must live until the stream has completed the operation.
template <update_step Step>
void update(const Step& step, device_span<float> parameters, device_span<const float> gradients,
            const std::array<device_span<float>, 2>& states, device_stream_ref stream);

/// Converts each element on a stream and does not wait, with the same bits as the conversions of float16 and bfloat16.
/// Throws configuration_error when the lengths differ. The spans must not overlap, and must live until the stream has
/// completed the operation.
void convert(device_span<const float> source, device_span<float16> destination, device_stream_ref stream);
void convert(device_span<const float16> source, device_span<float> destination, device_stream_ref stream);
void convert(device_span<const float> source, device_span<bfloat16> destination, device_stream_ref stream);
void convert(device_span<const bfloat16> source, device_span<float> destination, device_stream_ref stream);

/// Computes values[i] *= factor.
void scale(device_span<float> values, float factor, device_stream_ref stream);
/// Sets values[i] = constant.
void fill(device_span<float> values, float constant, device_stream_ref stream);
/// Sets sums[0] to the sum of the squares, in double precision and in an order that depends on the size alone.
/// Overwrites the rest of `sums`, which must have `sum_scratch(size)` elements.
void sum_of_squares(device_span<const float> values, device_span<double> sums, device_stream_ref stream);
[[nodiscard]] std::size_t sum_scratch(std::size_t count) noexcept;

}}  // namespace muster::v0
