// The element types of collectives and files, as values.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <muster/core/float16.hpp>

namespace muster { inline namespace v0 {

/// An element type as a value. The numbers are part of messages and files and never change.
enum class dtype : std::uint8_t {
  none = 0,
  boolean = 1,
  int8 = 2,
  uint8 = 3,
  int16 = 4,
  uint16 = 5,
  int32 = 6,
  uint32 = 7,
  int64 = 8,
  uint64 = 9,
  float16 = 10,
  bfloat16 = 11,
  float32 = 12,
  float64 = 13,
  extended = 14  ///< long double, platform dependent
};

/// A number type: every arithmetic type, float16 and bfloat16.
template <class T>
concept element = std::is_same_v<T, std::remove_cvref_t<T>> &&
    (std::is_arithmetic_v<T> || std::same_as<T, float16> || std::same_as<T, bfloat16>);

/// Returns the dtype of T. Types with the same size and kind (long and long long, char and int8_t) share a dtype.
template <element T>
[[nodiscard]] constexpr dtype dtype_of() noexcept {
  if constexpr (std::same_as<T, bool>) return dtype::boolean;
  if constexpr (std::same_as<T, float16>) return dtype::float16;
  if constexpr (std::same_as<T, bfloat16>) return dtype::bfloat16;
  if constexpr (std::same_as<T, float>) return dtype::float32;
  if constexpr (std::same_as<T, double>) return dtype::float64;
  if constexpr (std::same_as<T, long double>) return dtype::extended;
  if constexpr (std::is_integral_v<T> && !std::same_as<T, bool>) {
    constexpr int log2_size = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return static_cast<dtype>(2 + 2 * log2_size + (std::is_signed_v<T> ? 0 : 1));
  }
}

/// Size in bytes of the largest `transferable` type that is not a number.
inline constexpr std::size_t largest_record = 239;

namespace detail {

// A compiler that rejects a type prints the name of the first constant below that is false.
template <class T>
inline constexpr bool is_trivially_copyable_element = std::is_same_v<T, std::remove_cvref_t<T>> &&
                                                      (std::is_trivially_copyable_v<T> || element<T>);
template <class T>
inline constexpr bool is_no_pointer = !std::is_pointer_v<T> && !std::is_member_pointer_v<T>;
template <class T>
inline constexpr bool is_small_enough_for_an_element = element<T> || sizeof(T) <= largest_record;
template <class T>
inline constexpr bool has_a_size_that_is_a_power_of_two_up_to_64 = element<T> || (alignof(T) <= 16 && sizeof(T) <= 64 &&
                                                                                  (sizeof(T) & (sizeof(T) - 1)) == 0);

}  // namespace detail

/// A type that collectives move: a number, or another trivially copyable type without pointers, as its bytes.
template <class T>
concept transferable =
    detail::is_trivially_copyable_element<T> && detail::is_no_pointer<T> && detail::is_small_enough_for_an_element<T>;

/// A type that collectives reduce, with a function of the program if the type is not a number. Its size must be a power
/// of two up to 64, since messages may be cut at any multiple of 64 bytes, and its alignment at most 16. A struct of
/// three doubles needs a fourth as padding.
template <class T>
concept reducible = transferable<T> && detail::has_a_size_that_is_a_power_of_two_up_to_64<T>;

/// Returns the dtype of a number type, or, for another transferable type, a code that contains its size.
template <transferable T>
[[nodiscard]] constexpr dtype type_code_of() noexcept {
  if constexpr (element<T>)
    return dtype_of<T>();
  else
    return static_cast<dtype>(16 + sizeof(T));
}
/// Returns true if the code contains a size.
[[nodiscard]] constexpr bool is_record(dtype type) noexcept { return static_cast<std::size_t>(type) > 16; }

/// Returns the name of a type, such as "float32" or "int8".
[[nodiscard]] constexpr std::string_view to_string(dtype type) noexcept {
  constexpr std::string_view names[] = {"none",    "bool",     "int8",    "uint8",   "int16",
                                        "uint16",  "int32",    "uint32",  "int64",   "uint64",
                                        "float16", "bfloat16", "float32", "float64", "extended"};
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(names) ? names[index] : is_record(type) ? "records" : "unknown";
}

/// Returns the number of bytes in one element.
[[nodiscard]] constexpr std::size_t size_of(dtype type) noexcept {
  constexpr std::size_t sizes[] = {0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, sizeof(long double)};
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(sizes) ? sizes[index] : is_record(type) ? index - 16 : 0;
}

namespace detail {

/// Calls f(T{}) with the type among `Ts` that matches `type`. Returns false if none matches.
template <element... Ts, class F>
constexpr bool with_one_of(dtype type, const F& f) {
  return ((type == dtype_of<Ts>() && (static_cast<void>(f(Ts{})), true)) || ...);
}

}  // namespace detail

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
