// Vectors of 32 bytes with fused multiply-add; compiled with -mavx2 -mfma.
#if defined(__AVX2__) && defined(__FMA__)
#include "kernels_body.hpp"

namespace nn {
// 16 registers: 6 x 2 sums, two vectors of weights, two broadcasts. A step is 12 multiplications and 8 loads.
extern const kernel_set<float> avx2_float = kernels<float, 32, 6, 2>::table("avx2");
extern const kernel_set<double> avx2_double = kernels<double, 32, 6, 2>::table("avx2");
}  // namespace nn
#endif
