// Compression of spans on a device: into the forms that the codecs of core/codec have.
#pragma once

#include <cstddef>
#include <cstdint>

#include <muster/core/device/memory.hpp>
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
/// to[i] += weight * float(from[i]).
void convert_add(device_span<const float16> from, float weight, device_span<float> to, device_stream_ref stream);
void convert_add(device_span<const bfloat16> from, float weight, device_span<float> to, device_stream_ref stream);

/// topk_codec on a device: the same choice and the same bytes (the k indices, ascending, then the k values), so that
/// either reads what the other wrote. O(n): the threshold by the digits of the magnitudes, then the places by a prefix
/// sum; nothing comes back to the processor on the way. Has memory of its own to work in, an eighth of the values', so
/// it is used on one stream at a time.
class device_topk {
 public:
  /// For spans of at most `largest` values, below 2^32. Throws configuration_error unless 0 < share <= 1.
  device_topk(double share, std::size_t largest);

  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const;
  /// `encoded` has encoded_bytes(values.size()) bytes.
  void encode(device_span<const float> values, device_span<std::byte> encoded, device_stream_ref stream);
  /// sums += weight * decoded. An index that is not below the size, which no encoder writes, is left out: a device
  /// cannot throw.
  void decode_add(device_span<const std::byte> encoded, float weight, device_span<float> sums,
                  device_stream_ref stream) const;
  /// values[i] = 0 where it was sent: what is left is the error that error feedback keeps.
  void clear_sent(device_span<const std::byte> encoded, device_span<float> values, device_stream_ref stream) const;

 private:
  double share_;
  std::size_t largest_;
  device_buffer<std::uint32_t> scratch_;
};

}  // namespace muster::inline v0
