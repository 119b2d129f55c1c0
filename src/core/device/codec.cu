#include <muster/core/device/codec.hpp>

#include <muster/core/device/memory.hpp>

#include "launch.hpp"

namespace muster::inline v0 {
namespace {

template <class From, class To>
struct converted {
  const From* from;
  To* to;
  constexpr void operator()(std::size_t i) const { to[i] = To(static_cast<float>(from[i])); }
};

template <class From, class To>
void convert_all(device_span<const From> from, device_span<To> to, device_stream_ref stream) {
  detail::require_same_size(from.size(), to.size());
  detail::for_each(stream, from.size(), converted<From, To>{from.data(), to.data()});
}

}  // namespace

void convert(device_span<const float> from, device_span<float16> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}
void convert(device_span<const float16> from, device_span<float> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}
void convert(device_span<const float> from, device_span<bfloat16> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}
void convert(device_span<const bfloat16> from, device_span<float> to, device_stream_ref stream) {
  convert_all(from, to, stream);
}

}  // namespace muster::inline v0
