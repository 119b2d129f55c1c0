// Loops compiled for the vectors of the running machine. The library itself is built for the oldest machine in its
// kind.
#pragma once

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace detail {

// MUSTER_PORTABLE lets tests run the code of other machines. Compilers for devices do not know these attributes.
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE) && !defined(__CUDACC__)

/// Returns true if the machine has 256-bit vectors. Every such machine also converts 16-bit floating point.
[[nodiscard]] inline bool has_avx2() noexcept {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

template <class Kernel, class... Arguments>
[[gnu::target("avx2"), gnu::flatten]] auto run_on_avx2(Arguments... arguments) {
  return Kernel::run(arguments...);
}

#endif

/// Calls Kernel::run(arguments...), which is compiled a second time for wider vectors. The wider version uses no fused
/// multiply-add, so that both versions give the same bits: ranks on different machines must agree.
template <class Kernel, class... Arguments>
auto run_vectorised(Arguments... arguments) {
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE) && !defined(__CUDACC__)
  if (has_avx2()) return run_on_avx2<Kernel>(arguments...);
#endif
  return Kernel::run(arguments...);
}

}}}  // namespace muster::v0::detail

#include <muster/core/detail/exact_end.hpp>
