// Vectors of 16 bytes, which every processor has or the compiler makes of scalars.
#include "kernels_body.hpp"

namespace nn {
extern const kernel_set<float> portable_float = kernels<float, 16, 4, 2>::table("portable");
extern const kernel_set<double> portable_double = kernels<double, 16, 4, 2>::table("portable");
}  // namespace nn
