#include <muster/core/codec/half.hpp>

#include <muster/core/convert.hpp>

namespace muster::inline v0 {
namespace {

template <class Half>
constexpr std::string_view name_of = to_string(dtype_of<Half>());

}  // namespace

template <class Half>
void half_codec<Half>::encode(std::span<const float> values, std::uint64_t, std::span<std::byte> encoded) const {
  detail::require_room(name_of<Half>, encoded, encoded_bytes(values.size()));
  auto* const halves = reinterpret_cast<Half*>(encoded.data());
  convert(values, std::span(halves, values.size()));
  if (values.size() % 2 != 0) halves[values.size()] = Half();
}

template <class Half>
void half_codec<Half>::decode_add(std::span<const std::byte> encoded, std::uint64_t, float weight,
                                  std::span<float> sums) const {
  detail::require_encoded(name_of<Half>, encoded, encoded_bytes(sums.size()), sums.size());
  detail::require_zeros(name_of<Half>, encoded, sums.size() * sizeof(Half));
  convert_add(std::span(reinterpret_cast<const Half*>(encoded.data()), sums.size()), weight, sums);
}

template struct half_codec<float16>;
template struct half_codec<bfloat16>;

}  // namespace muster::inline v0
