// Convolutions by an NVIDIA device's matrix units, for few channels: of small residual networks, where libraries' tiles
// are mostly empty.
#pragma once

#include <cstddef>
#include <memory>

#include "convolution.hpp"

namespace nn::device {

/// An implicit product of matrices: rows are gathered in shared memory with their neighbours, once for all taps.
/// Floats are multiplied as they are by three products of TF32 (the parts of 10 bits and the rests), which is as exact
/// as a fused multiply-add but for the last bits. The same bits each time. Null where it has no plan for the shape:
/// numbers of channels that no matrix unit takes, or more weights than a block has memory for.
template <class A>
std::unique_ptr<convolver<A>> make_tiles(const convolution_shape& shape, multiplication how,
                                         muster::device_stream_ref stream);

}  // namespace nn::device
