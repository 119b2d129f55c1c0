// Vectors of 64 bytes; compiled with -mavx512f -mfma.
#if defined(__AVX512F__)
#include "kernels_body.hpp"

namespace nn {
// 32 registers: 12 x 2 sums, two vectors of weights, broadcasts.
extern const kernel_set<float> avx512_float = kernels<float, 64, 12, 2>::table("avx512");
extern const kernel_set<double> avx512_double = kernels<double, 64, 12, 2>::table("avx512");
}  // namespace nn
#endif
