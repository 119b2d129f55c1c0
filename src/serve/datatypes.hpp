// The names that the protocol has for types of elements.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include <muster/serve/predictor.hpp>

namespace muster::inline v0::serve {

inline constexpr std::array<std::pair<dtype, std::string_view>, 12> datatypes = {{{dtype::boolean, "BOOL"},
                                                                                  {dtype::int8, "INT8"},
                                                                                  {dtype::uint8, "UINT8"},
                                                                                  {dtype::int16, "INT16"},
                                                                                  {dtype::uint16, "UINT16"},
                                                                                  {dtype::int32, "INT32"},
                                                                                  {dtype::uint32, "UINT32"},
                                                                                  {dtype::int64, "INT64"},
                                                                                  {dtype::uint64, "UINT64"},
                                                                                  {dtype::float16, "FP16"},
                                                                                  {dtype::float32, "FP32"},
                                                                                  {dtype::float64, "FP64"}}};

[[nodiscard]] inline std::string_view datatype_of(const tensor_info& tensor) {
  if (tensor.is_bytes) return "BYTES";
  for (const auto& each : datatypes) {
    if (each.first == tensor.type) return each.second;
  }
  return "UNKNOWN";
}

/// Calls f(T{}) with the type of the elements, if JSON has a form for them.
template <class F>
bool with_type(dtype type, const F& f) {
  switch (type) {
    case dtype::boolean:
      return f(bool{}), true;
    case dtype::int8:
      return f(std::int8_t{}), true;
    case dtype::uint8:
      return f(std::uint8_t{}), true;
    case dtype::int16:
      return f(std::int16_t{}), true;
    case dtype::uint16:
      return f(std::uint16_t{}), true;
    case dtype::int32:
      return f(std::int32_t{}), true;
    case dtype::uint32:
      return f(std::uint32_t{}), true;
    case dtype::int64:
      return f(std::int64_t{}), true;
    case dtype::uint64:
      return f(std::uint64_t{}), true;
    case dtype::float32:
      return f(float{}), true;
    case dtype::float64:
      return f(double{}), true;
    default:
      return false;
  }
}

}  // namespace muster::inline v0::serve
