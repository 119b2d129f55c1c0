// Processor settings of a computing thread.
#pragma once

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace nn {

/// A guard during whose lifetime this thread treats denormal floats (below 1.2e-38) as zeros. Denormals can make a step
/// a hundred times slower.
class flush_denormals {
 public:
#ifdef __SSE__
  flush_denormals() noexcept : before_(_mm_getcsr()) { _mm_setcsr(before_ | flush_to_zero | denormals_are_zero); }
  ~flush_denormals() { _mm_setcsr(before_); }
#else
  flush_denormals() noexcept {}
#endif
  flush_denormals(const flush_denormals&) = delete;
  flush_denormals& operator=(const flush_denormals&) = delete;

 private:
#ifdef __SSE__
  static constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
  unsigned before_;
#endif
};

}  // namespace nn
