// The names of element types in the protocol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include <muster/serve/predictor.hpp>

namespace muster { inline namespace v0 { namespace serve {

/// Returns the protocol's name for the type of a tensor's elements.
[[nodiscard]] inline std::string_view datatype_of(const tensor_info& info) {
  if (info.is_bytes) return "BYTES";
  constexpr std::string_view names[] = {"UNKNOWN", "BOOL",  "INT8",   "UINT8", "INT16",   "UINT16", "INT32",
                                        "UINT32",  "INT64", "UINT64", "FP16",  "UNKNOWN", "FP32",   "FP64"};
  const auto index = static_cast<std::size_t>(info.type);
  return index < std::size(names) ? names[index] : "UNKNOWN";
}

/// Calls f(T{}) with the type of the elements if JSON can represent it. Returns false otherwise.
template <class F>
bool with_type(dtype type, const F& f) {
  return detail::with_one_of<bool, std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
                             std::int64_t, std::uint64_t, float, double>(type, f);
}

}}}  // namespace muster::v0::serve
