#pragma once

#include <muster/core/codec/plain.hpp>

#include <algorithm>

#include <muster/core/convert.hpp>
#include <muster/core/inline.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

template <class Number>
constexpr bool is_half = !std::same_as<Number, float>;
template <class Number>
constexpr std::string_view codec_name_of = is_half<Number> ? to_string(dtype_of<Number>()) : "none";

}  // namespace detail

template <class Number>
void number_codec<Number>::encode(std::span<const float> values, std::uint64_t, std::span<std::byte> encoded) const {
  detail::require_room(detail::codec_name_of<Number>, encoded, encoded_bytes(values.size()));
  auto* const numbers = reinterpret_cast<Number*>(encoded.data());
  if constexpr (detail::is_half<Number>) {
    convert(values, std::span(numbers, values.size()));
    if (values.size() % 2 != 0) numbers[values.size()] = Number();
  } else {
    std::ranges::copy(values, numbers);
  }
}

template <class Number>
void number_codec<Number>::decode_add(std::span<const std::byte> encoded, std::uint64_t, float weight,
                                      std::span<float> sums) const {
  detail::require_encoded(detail::codec_name_of<Number>, encoded, encoded_bytes(sums.size()), sums.size());
  detail::require_zeros(detail::codec_name_of<Number>, encoded, sums.size() * sizeof(Number));
  const auto* const numbers = reinterpret_cast<const Number*>(encoded.data());
  if constexpr (detail::is_half<Number>) {
    convert_add(std::span(numbers, sums.size()), weight, sums);
  } else {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weight * numbers[i];
  }
}

#ifdef MUSTER_COMPILED
template struct number_codec<float>;
template struct number_codec<float16>;
template struct number_codec<bfloat16>;
#endif

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
