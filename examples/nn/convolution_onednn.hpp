// Convolution by oneDNN, with explicit layouts. oneDNN's own choice ("any") is slower here because it reorders every
// time.
#pragma once

#include <memory>

#include "convolution.hpp"

namespace nn {

/// Returns a convolution by oneDNN, for float only. Declared in every build, with or without oneDNN.
std::unique_ptr<convolution<float>> make_onednn_convolution(const convolution_shape& shape);

}  // namespace nn
