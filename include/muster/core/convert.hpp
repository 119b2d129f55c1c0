// Arrays of floats to 16-bit floating point and back.
#pragma once

#include <span>

#include <muster/core/float16.hpp>

namespace muster { inline namespace v0 {

/// to[i] = float16(from[i]), by the processor's own instruction where it has one (a NaN may then keep more of its
/// payload). Throws configuration_error when the lengths differ; the spans do not overlap.
void convert(std::span<const float> from, std::span<float16> to);
/// to[i] = float(from[i]).
void convert(std::span<const float16> from, std::span<float> to);
/// The same for bfloat16.
void convert(std::span<const float> from, std::span<bfloat16> to);
void convert(std::span<const bfloat16> from, std::span<float> to);

/// to[i] += weight * float(from[i]).
void convert_add(std::span<const float16> from, float weight, std::span<float> to);
void convert_add(std::span<const bfloat16> from, float weight, std::span<float> to);

}}  // namespace muster::v0
