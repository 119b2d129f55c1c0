// Conversions between arrays of floats and 16-bit floating point.
#pragma once

#include <span>

#include <muster/core/float16.hpp>

namespace muster { inline namespace v0 {

/// Computes destination[i] = float16(source[i]), with the processor's own instruction where it has one (a NaN may then
/// keep more of its payload). Throws configuration_error when the lengths differ. The spans must not overlap.
void convert(std::span<const float> source, std::span<float16> destination);
/// Computes destination[i] = float(source[i]).
void convert(std::span<const float16> source, std::span<float> destination);
/// Does the same for bfloat16.
void convert(std::span<const float> source, std::span<bfloat16> destination);
void convert(std::span<const bfloat16> source, std::span<float> destination);

/// Computes destination[i] += weight * float(source[i]).
void convert_add(std::span<const float16> source, float weight, std::span<float> destination);
void convert_add(std::span<const bfloat16> source, float weight, std::span<float> destination);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
