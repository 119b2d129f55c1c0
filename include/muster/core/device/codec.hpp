// 16-bit floating point on a device.
#pragma once

#include <muster/core/device/span.hpp>
#include <muster/core/device/stream.hpp>
#include <muster/core/float16.hpp>

namespace muster::inline v0 {

/// Converts each element on a stream and does not wait: to the bits of float16's and bfloat16's own conversions. Throws
/// configuration_error when the lengths differ. The spans do not overlap, and live until the stream has passed the
/// call.
void convert(device_span<const float> from, device_span<float16> to, device_stream_ref stream);
void convert(device_span<const float16> from, device_span<float> to, device_stream_ref stream);
void convert(device_span<const float> from, device_span<bfloat16> to, device_stream_ref stream);
void convert(device_span<const bfloat16> from, device_span<float> to, device_stream_ref stream);

}  // namespace muster::inline v0
