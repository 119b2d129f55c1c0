// The optimizers' steps on the memory of a device.
#pragma once

#include <cstddef>

#include <muster/core/device/span.hpp>
#include <muster/core/device/stream.hpp>
#include <muster/core/update/adam.hpp>
#include <muster/core/update/sgd.hpp>

namespace muster::inline v0 {

// Each is what the function of the same name in core/update does, put on a stream; the formulas are those very ones,
// without fused multiply-adds, so that a device and a processor step to the same bits. All spans have one length, or
// configuration_error is thrown; they do not overlap and stay until the stream has done it.

void sgd_update(device_span<float> parameters, device_span<const float> gradients, device_span<float> velocities,
                const sgd_step<float>& step, device_stream_ref stream);
void adam_update(device_span<float> parameters, device_span<const float> gradients, device_span<float> means,
                 device_span<float> squares, const adam_step<float>& step, device_stream_ref stream);

/// values[i] *= by.
void scale(device_span<float> values, float by, device_stream_ref stream);
/// values[i] = to.
void fill(device_span<float> values, float to, device_stream_ref stream);
/// sums[0] becomes the sum of the squares, in double precision and in an order that depends on the size alone; the rest
/// of `sums`, which has `sum_scratch(size)` elements, is overwritten.
void sum_of_squares(device_span<const float> values, device_span<double> sums, device_stream_ref stream);
[[nodiscard]] std::size_t sum_scratch(std::size_t size) noexcept;

}  // namespace muster::inline v0
