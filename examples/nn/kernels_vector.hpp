// The vectors on which the inner loops are built. This code calls no function of the standard library: the linker could
// keep a copy that was compiled for wide vectors for the whole program.
#pragma once

#include "kernels.hpp"

#define NN_UNROLL _Pragma("GCC unroll 16")

namespace nn { namespace {

/// The vector types of Width bytes.
template <class T, std::size_t Width>
struct vectors {
  using vector [[gnu::vector_size(Width)]] = T;
  using loose [[gnu::vector_size(Width), gnu::aligned(alignof(T)), gnu::may_alias]] = T;
  static constexpr std::size_t lanes = Width / sizeof(T);

  [[gnu::always_inline]] static inline vector load(const T* from) { return *reinterpret_cast<const loose*>(from); }
  [[gnu::always_inline]] static inline void store(T* to, vector value) { *reinterpret_cast<loose*>(to) = value; }
  /// Returns x in every lane. Subtracting plus zero leaves every x unchanged, so that the compiler emits only a load.
  /// Adding plus zero would change -0.0.
  [[gnu::always_inline]] static inline vector broadcast(T x) { return x - vector{}; }

  /// Calls chunk<B>(channel) for the channels in vectors, B vectors together so that whole cache lines are used. Calls
  /// chunk<0>(channel) for each remaining channel.
  template <class Chunk>
  [[gnu::always_inline]] static inline void over_channels(std::size_t channels, const Chunk& chunk) {
    std::size_t c = 0;
    constexpr std::size_t line = 64 / Width < 1 ? 1 : 64 / Width;
    for (; c + 2 * line * lanes <= channels; c += 2 * line * lanes) chunk.template operator()<2 * line>(c);
    for (; c + line * lanes <= channels; c += line * lanes) chunk.template operator()<line>(c);
    if constexpr (line > 1) {
      for (; c + lanes <= channels; c += lanes) chunk.template operator()<1>(c);
    }
    for (; c < channels; ++c) chunk.template operator()<0>(c);
  }

  /// B vectors, or one element where no whole vector remains.
  template <std::size_t B>
  struct few {
    using value = vector;
    static constexpr std::size_t count = B;
    static constexpr std::size_t step = lanes;
    [[gnu::always_inline]] static inline vector get(const T* from) { return load(from); }
    [[gnu::always_inline]] static inline void put(T* to, vector value) { store(to, value); }
    [[gnu::always_inline]] static inline vector all(T x) { return broadcast(x); }
    [[gnu::always_inline]] static inline vector positive(vector x) { return x > vector{} ? x : vector{}; }
    [[gnu::always_inline]] static inline vector where_positive(vector x, vector y) {
      return x > vector{} ? y : vector{};
    }
  };
  struct scalar {
    using value = T;
    static constexpr std::size_t count = 1;
    static constexpr std::size_t step = 1;
    [[gnu::always_inline]] static inline T get(const T* from) { return *from; }
    [[gnu::always_inline]] static inline void put(T* to, T value) { *to = value; }
    [[gnu::always_inline]] static inline T all(T x) { return x; }
    [[gnu::always_inline]] static inline T positive(T x) { return x > T{0} ? x : T{0}; }
    [[gnu::always_inline]] static inline T where_positive(T x, T y) { return x > T{0} ? y : T{0}; }
  };
  template <std::size_t B, class = void>
  struct choose {
    using type = few<B>;
  };
  template <class Unused>
  struct choose<0, Unused> {
    using type = scalar;
  };
  template <std::size_t B>
  using some = typename choose<B>::type;
};

}  // namespace
}  // namespace nn
