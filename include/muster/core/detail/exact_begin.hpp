// Begins code whose floating-point results are the same under all options of the compiler: no multiplication is fused
// with an addition, no sum is reordered, NaN and -0 count, and no square root sets errno. Such code is in headers,
// which are compiled with the options of the program. exact_end.hpp ends it. No include guard: each of the two is
// included once a region.
#ifdef __FAST_MATH__
#error "muster cannot be compiled with -ffast-math or -Ofast (ranks would compute different bits); leave the option out"
#endif

#if defined(__clang__)
#pragma float_control(push)
#pragma float_control(precise, on)
#pragma clang fp contract(off)
#elif defined(__GNUC__) && !defined(__CUDACC__)  // nvcc has -fmad=false
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off", "no-math-errno", "no-associative-math", "no-reciprocal-math", "signed-zeros", \
                     "no-finite-math-only", "trapping-math")
#endif
