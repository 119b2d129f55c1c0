// Loops for the vectors of the machine that runs them: the library itself is built for the oldest of its kind.
#pragma once

namespace muster { inline namespace v0 { namespace detail {

// MUSTER_PORTABLE: the tests' way to what other machines run. Compilers for devices do not know these attributes.
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE) && !defined(__CUDACC__)

/// Whether there are vectors of 256 bits; conversions of 16-bit floating point are older than they.
[[nodiscard]] inline bool has_avx2() noexcept {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

template <class Kernel, class... Arguments>
[[gnu::target("avx2"), gnu::flatten]] auto run_on_avx2(Arguments... arguments) {
  return Kernel::run(arguments...);
}

#endif

/// Kernel::run(arguments...), which is compiled for wider vectors once more. These come without the fused multiply-add,
/// so that both give the same bits: ranks on different machines must agree.
template <class Kernel, class... Arguments>
auto run_vectorised(Arguments... arguments) {
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE) && !defined(__CUDACC__)
  if (has_avx2()) return run_on_avx2<Kernel>(arguments...);
#endif
  return Kernel::run(arguments...);
}

}}}  // namespace muster::v0::detail
