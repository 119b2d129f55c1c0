// The kernels of exact sums. Three methods have the same results, and each element gets the fastest that is exact for
// it: the sum of doubles, where the bits of all values fit a double; the sum of doubles with the sum of its errors
// (Ogita, Rump and Oishi 2005, https://doi.org/10.1137/030601818), where the bits fit two; a number with a fixed point.
#pragma once

#include <muster/comm/exact_sum.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <type_traits>

#include <muster/core/inline.hpp>
#include <muster/core/lanes.hpp>
#include <muster/core/simd.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace detail {

MUSTER_INLINE void exact_accumulator::add(double value) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> 52 & 0x7ff);
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  if (exponent == 0x7ff) {
    has_[fraction != 0 ? 0 : value > 0 ? 1 : 2] = true;
    return;
  }
  const std::uint64_t digits = exponent == 0 ? fraction : fraction | std::uint64_t{1} << 52;
  const int position = exponent == 0 ? 0 : exponent - 1;
  const std::uint64_t low = (digits & 0xffffffff) << position % 32;
  const std::uint64_t high = (digits >> 32) << position % 32;
  const std::int64_t sign = value < 0 ? -1 : 1;
  const int first = position / 32;
  first_ = std::min(first_, first);
  last_ = std::max(last_, first + 3);  // the third holds carries
  std::int64_t* const at = limbs_ + first;
  at[0] += sign * static_cast<std::int64_t>(low & 0xffffffff);
  at[1] += sign * static_cast<std::int64_t>((low >> 32) + (high & 0xffffffff));
  at[2] += sign * static_cast<std::int64_t>(high >> 32);
}

MUSTER_INLINE double exact_accumulator::sum(bool to_odd) const noexcept {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (has_[0] || (has_[1] && has_[2])) return std::numeric_limits<double>::quiet_NaN();
  if (has_[1] || has_[2]) return has_[1] ? infinity : -infinity;
  std::uint64_t below[limb_count + 2] = {};  // the digits of the magnitude, after two limbs of zeros
  std::uint64_t* const digits = below + 2;
  const auto carry = [&](int sign) {  // returns the carry out of the highest limb: -1 for a negative number
    std::int64_t carried = 0;
    for (int i = first_; i <= last_; ++i) {
      carried += sign * limbs_[i];
      digits[i] = static_cast<std::uint64_t>(carried) & 0xffffffff;
      carried >>= 32;
    }
    return carried;
  };
  const bool negative = carry(1) < 0;
  if (negative) carry(-1);
  int top = last_;
  while (top >= first_ && digits[top] == 0) --top;
  if (top < first_) return 0.0;
  // The 64 highest bits; the last also stands for all lower bits.
  const int shift = std::countl_zero(static_cast<std::uint32_t>(digits[top]));
  const std::uint64_t next = digits[top - 2] << shift;
  std::uint64_t highest = (digits[top] << 32 | digits[top - 1]) << shift | next >> 32;
  bool inexact = (next & 0xffffffff) != 0;
  for (int i = first_; i < top - 2; ++i) inexact = inexact || digits[i] != 0;
  highest |= inexact ? 1 : 0;
  int exponent = 32 * (top - 1) - shift - 1074;
  if (to_odd) {
    highest = highest >> 11 | ((highest & 0x7ff) != 0 ? 1 : 0);
    exponent += 11;
  }
  const double magnitude = std::ldexp(static_cast<double>(highest), exponent);
  return negative ? -magnitude : magnitude;
}

typedef std::int64_t four_longs __attribute__((vector_size(32)));
typedef std::int32_t four_words __attribute__((vector_size(16)));

// Returns the value with the bits that are the same for all orders: +0 for a zero, and one NaN.
template <class F>
F canonical(F value) noexcept {
  const F with_positive_zero = value + F(0);  // before the choice, which is then no branch
  return value != value ? std::numeric_limits<F>::quiet_NaN() : with_positive_zero;
}

// Replaces a sum that is rounded to nearest by the same sum rounded to odd.
inline void round_to_odd(four_doubles& sums, const four_doubles& errors) noexcept {
  four_longs bits, signs;
  std::memcpy(&bits, &sums, sizeof bits);
  std::memcpy(&signs, &errors, sizeof signs);
  const four_longs is_up = (bits ^ signs) < 0;  // -1 where the sum was rounded up
  bits = errors != 0 ? (bits + is_up) | 1 : bits;
  std::memcpy(&sums, &bits, sizeof bits);
}

// Rounds sums to float, to odd.
inline void narrow_to_odd(const four_doubles& sums, four_floats& narrow) noexcept {
  narrow = __builtin_convertvector(sums, four_floats);
  const auto nearest = __builtin_convertvector(narrow, four_doubles);
  four_longs bits, nearest_bits;
  std::memcpy(&bits, &sums, sizeof bits);
  std::memcpy(&nearest_bits, &nearest, sizeof nearest_bits);
  constexpr std::int64_t magnitude = std::numeric_limits<std::int64_t>::max();
  const four_longs is_up = (nearest_bits & magnitude) > (bits & magnitude);  // -1 where true
  four_words words;
  std::memcpy(&words, &narrow, sizeof words);
  const auto odd = (words + __builtin_convertvector(is_up, four_words)) | 1;
  words = __builtin_convertvector(nearest != sums, four_words) != 0 ? odd : words;
  std::memcpy(&narrow, &words, sizeof words);
}

// Adds values to sums; replaces the values by the errors of the sums (Knuth).
inline void add_to_sums(four_doubles& sums, four_doubles& values) noexcept {
  const four_doubles totals = sums + values;
  const four_doubles parts = totals - sums;
  values = (sums - (totals - parts)) + (values - parts);
  sums = totals;
}

/// The exact sums of an array of T from each of several ranks, in four lanes of a vector. A piece stays in the
/// first-level cache.
template <class T, bool Mean>
class exact_folding {
 public:
  using inputs = std::span<const std::byte* const>;

  static void run(std::span<std::byte* const> out, inputs in, std::size_t count) {
    alignas(64) T results[piece];
    for (std::size_t done = 0; done < count; done += piece) {
      const std::size_t n = std::min(count - done, piece);
      if (in.size() == 2 && !Mean) {
        add_pairs(of(in[0], done), of(in[1], done), n, results);
      } else {
        const std::size_t vectors = n / width * width;
        if (std::same_as<T, double> || !add_plainly(in, done, vectors, results))
          add_with_errors(in, done, vectors, results);
        for (std::size_t i = vectors; i < n; ++i) results[i] = exact_result(in, done + i);
      }
      for (std::byte* const output : out) std::memcpy(output + done * sizeof(T), results, n * sizeof(T));
    }
  }

  // The sum of two T is rounded once, also by way of float.
  static void add_pairs(const T* a, const T* b, std::size_t count, T* results) noexcept {
    using F = std::conditional_t<std::same_as<T, double>, double, float>;
    for (std::size_t i = 0; i < count; ++i)
      results[i] = static_cast<T>(canonical(static_cast<F>(a[i]) + static_cast<F>(b[i])));
  }

 private:
  static constexpr std::size_t piece = 256;  // elements
  static constexpr std::size_t width = 4;    // lanes
  static constexpr int digits = std::same_as<T, float> ? 24 : std::same_as<T, float16> ? 11 : 8;

  static const T* of(const std::byte* input, std::size_t first) noexcept {
    return reinterpret_cast<const T*>(input) + first;
  }

  template <class Vector>
  static void load(const T* at, Vector& values) noexcept {
    using F = std::conditional_t<std::same_as<Vector, four_doubles>, double, float>;
    if constexpr (std::same_as<T, F>) {
      std::memcpy(&values, at, sizeof values);
    } else if constexpr (std::same_as<T, bfloat16> && std::same_as<F, float>) {
      typedef std::uint16_t four_halves __attribute__((vector_size(8)));
      four_halves halves;
      std::memcpy(&halves, at, sizeof halves);
      const auto words = __builtin_convertvector(halves, four_words) << 16;
      std::memcpy(&values, &words, sizeof values);
    } else {
      for (std::size_t i = 0; i < width; ++i) values[i] = static_cast<F>(at[i]);
    }
  }
  static void store(four_doubles& sums, std::size_t ranks, T* results) noexcept {
    if constexpr (Mean) sums /= static_cast<double>(ranks);
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    sums = sums != sums ? four_doubles{nan, nan, nan, nan} : sums + 0.0;  // as `canonical`
    if constexpr (std::same_as<T, double>) {
      std::memcpy(results, &sums, sizeof sums);
    } else if constexpr (std::same_as<T, float>) {
      const auto rounded = __builtin_convertvector(sums, four_floats);
      std::memcpy(results, &rounded, sizeof rounded);
    } else {
      four_floats narrow;
      narrow_to_odd(sums, narrow);
      for (std::size_t i = 0; i < width; ++i) results[i] = static_cast<T>(narrow[i]);
    }
  }

  // Adds in double, `count` a multiple of the lanes. Returns false if a sum may be inexact: if the highest bit of the
  // sum and the lowest bit of a value are too far apart.
  static bool add_plainly(inputs in, std::size_t first, std::size_t count, T* results) noexcept {
    const int most = 53 - digits - static_cast<int>(std::bit_width(in.size() - 1));
    four_words too_far = {};
    for (std::size_t i = 0; i < count; i += width) {
      four_doubles sums = {};
      four_words largest = {};  // magnitudes
      four_words smallest = largest + 0x7fffffff;
      for (const std::byte* const input : in) {
        four_floats values;
        load(of(input, first + i), values);
        sums += __builtin_convertvector(values, four_doubles);
        four_words magnitudes;
        std::memcpy(&magnitudes, &values, sizeof values);
        magnitudes &= 0x7fffffff;
        largest = magnitudes > largest ? magnitudes : largest;
        magnitudes = (magnitudes - 1) & 0x7fffffff;  // a zero is above all others
        smallest = magnitudes < smallest ? magnitudes : smallest;
      }
      too_far |= (largest >> 23) - (smallest >> 23) > most;
      store(sums, in.size(), results + i);
    }
    return (too_far[0] | too_far[1] | too_far[2] | too_far[3]) == 0;
  }

  // Adds in double, and adds the errors of these sums in double.
  static void add_with_errors(inputs in, std::size_t first, std::size_t count, T* results) {
    for (std::size_t i = 0; i < count; i += width) {
      four_doubles sums = {}, errors = {}, values;
      four_longs incomplete = {};
      for (const std::byte* const input : in) {
        load(of(input, first + i), values);
        add_to_sums(sums, values);
        add_to_sums(errors, values);
        incomplete |= values != 0;  // the errors of the errors
      }
      add_to_sums(sums, errors);
      incomplete |= sums - sums != 0;  // also where the sum is not finite
      if constexpr (!std::same_as<T, double>) round_to_odd(sums, errors);
      store(sums, in.size(), results + i);
      if ((incomplete[0] | incomplete[1] | incomplete[2] | incomplete[3]) == 0) continue;
      for (std::size_t k = 0; k < width; ++k) {
        if (incomplete[k] != 0) results[i + k] = exact_result(in, first + i + k);
      }
    }
  }

  [[gnu::noinline]] static T exact_result(inputs in, std::size_t i) {
    exact_accumulator all;
    for (const std::byte* const input : in) all.add(static_cast<double>(*of(input, i)));
    four_doubles sum = {all.sum(!std::same_as<T, double>)};
    T result[width];
    store(sum, in.size(), result);
    return result[0];
  }
};

template <class T, bool Mean>
void exact_fold(const void*, std::span<std::byte* const> out, std::span<const std::byte* const> in, std::size_t count,
                void (*)(std::byte*, std::size_t, int)) {
  constexpr std::size_t small = 2048;  // bytes, see `reduction`
  if (count * sizeof(T) < small) return exact_folding<T, Mean>::run(out, in, count);
  run_vectorised<exact_folding<T, Mean>>(out, in, count);
}

template <class T>
struct exact_pairs {
  static void run(T* into, const T* incoming, std::size_t count) {
    exact_folding<T, false>::add_pairs(into, incoming, count, into);
  }
};
template <class T>
void exact_combine(const void*, std::byte* into, const std::byte* incoming, std::size_t bytes, bool) {
  run_vectorised<exact_pairs<T>>(reinterpret_cast<T*>(into), reinterpret_cast<const T*>(incoming), bytes);
}

MUSTER_INLINE exact_functions exact_functions_of(dtype type, bool mean) noexcept {
  exact_functions result{};
  with_one_of<float16, bfloat16, float, double>(type, [&](auto zero) {
    using T = decltype(zero);
    result = {&exact_combine<T>, mean ? &exact_fold<T, true> : &exact_fold<T, false>};
  });
  return result;
}

}}}  // namespace muster::v0::detail

#include <muster/core/detail/exact_end.hpp>
