// Convolutions by an NVIDIA device's matrix units for few channels, as in small residual networks, where the tiles of
// libraries are mostly empty.
#pragma once

#include <cstddef>
#include <memory>

#include "convolution.hpp"

namespace nn::device {

/// Returns a convolver by an implicit product of matrices. Rows and their neighbours are gathered in shared memory once
/// for all taps. In full precision a product of floats is computed by three products of TF32 (the upper 10 bits and the
/// remainders), which is as exact as a fused multiply-add except for the last bits. Results are bitwise reproducible.
/// Returns null for an unsupported shape: a number of channels that no matrix unit supports, or more weights than a
/// block has memory for.
template <class A>
std::unique_ptr<convolver<A>> make_tiles(const convolution_shape& shape, multiplication precision,
                                         muster::device_stream_ref stream);

}  // namespace nn::device
