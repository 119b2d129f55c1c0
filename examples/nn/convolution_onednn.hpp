// Convolution by oneDNN, with explicit layouts: its own choice ("any") is slower here, for it reorders every time.
#pragma once

#include <memory>

#include "convolution.hpp"

namespace nn {

/// Float only; this header is there whether oneDNN is or not.
std::unique_ptr<convolution<float>> make_onednn_convolution(const convolution_shape& shape);

}  // namespace nn
