// 16-bit floating point on a device.
#pragma once

#include <muster/core/device/span.hpp>
#include <muster/core/device/stream.hpp>
#include <muster/core/float16.hpp>

namespace muster::inline v0 {

// As core/convert.hpp, put on a stream: to the bits of float16's and bfloat16's own conversions. Spans of different
// lengths throw configuration_error.

void convert(device_span<const float> from, device_span<float16> to, device_stream_ref stream);
void convert(device_span<const float16> from, device_span<float> to, device_stream_ref stream);
void convert(device_span<const float> from, device_span<bfloat16> to, device_stream_ref stream);
void convert(device_span<const bfloat16> from, device_span<float> to, device_stream_ref stream);

}  // namespace muster::inline v0
