// The conversion of images by the widest vectors there are; private to it.
#pragma once

#include <array>
#include <cstdint>

#include <muster/data/image.hpp>

namespace muster::inline v0::detail {

/// Whether this machine has what convert_to_pixels_wide() needs (AVX-512 with VBMI: Ice Lake, Zen 4 and later).
[[nodiscard]] bool has_wide_shuffles() noexcept;

/// The narrowest images that it takes.
inline constexpr std::size_t least_wide_width = 32;

/// Three planes of bytes to pixels of floats, to the bit what convert_image_plainly() makes of them before the cutout.
void convert_to_pixels_wide(const image_shape& shape, const std::array<float, 3>& scale,
                            const std::array<float, 3>& shift, const image_choice& choice, const std::uint8_t* from,
                            float* to) noexcept;

}  // namespace muster::inline v0::detail
