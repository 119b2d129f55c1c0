// The operations of reducing collectives, and their type-erased form that algorithms and transports use.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>

#include <muster/comm/exact_sum.hpp>
#include <muster/core/dtype.hpp>
#include <muster/core/float16.hpp>
#include <muster/core/simd.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// An operation as a value. The numbers are part of the signature that ranks compare, so the numbers never change.
enum class operation : std::uint8_t {
  none = 0,
  sum = 1,
  product = 2,
  min = 3,
  max = 4,
  mean = 5,
  user = 6,
  logical_and = 7,
  logical_or = 8,
  logical_xor = 9,
  bit_and = 10,
  bit_or = 11,
  bit_xor = 12,
  reproducible_sum = 13,
  reproducible_mean = 14
};

[[nodiscard]] constexpr std::string_view to_string(operation op) noexcept {
  constexpr std::string_view names[] = {"",
                                        "sum",
                                        "product",
                                        "min",
                                        "max",
                                        "mean",
                                        "user function",
                                        "logical_and",
                                        "logical_or",
                                        "logical_xor",
                                        "bit_and",
                                        "bit_or",
                                        "bit_xor",
                                        "reproducible sum",
                                        "reproducible mean"};
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(names) ? names[index] : std::string_view("unknown operation");
}

namespace detail {

// Arithmetic promotes small integers; the result is converted back. bool adds as "or", multiplies as "and".
struct plus {
  template <element T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(a + b);
  }
};
struct times {
  template <element T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(a * b);
  }
};
// A NaN on any rank makes the result NaN: a diverged gradient must not hide behind a minimum.
struct lesser {
  template <element T>
  T operator()(T a, T b) const noexcept {
    if constexpr (std::is_integral_v<T>) return b < a ? b : a;
    return (b < a || b != b) ? b : a;
  }
};
struct greater {
  template <element T>
  T operator()(T a, T b) const noexcept {
    if constexpr (std::is_integral_v<T>) return a < b ? b : a;
    return (a < b || b != b) ? b : a;
  }
};

// A value other than 0 is true; the result is 0 or 1.
struct both {
  template <element T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(static_cast<float>(a != T() && b != T()));
  }
};
struct either {
  template <element T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(static_cast<float>(a != T() || b != T()));
  }
};
struct one_of_two {
  template <element T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(static_cast<float>((a != T()) != (b != T())));
  }
};
struct common_bits {
  template <std::integral T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(a & b);
  }
};
struct all_bits {
  template <std::integral T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(a | b);
  }
};
struct different_bits {
  template <std::integral T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(a ^ b);
  }
};

template <operation Code, class Function>
struct builtin : Function {
  static constexpr operation code = Code;
};

// A 64-bit integer as a quotient by the number of ranks and a remainder: sums of quotients and of remainders do not
// overflow when the mean does not.
template <class T>
struct shares {
  T quotients;
  T rests;
  friend constexpr shares operator+(shares a, shares b) noexcept {
    return {static_cast<T>(a.quotients + b.quotients), static_cast<T>(a.rests + b.rests)};
  }
  // Returns the mean of all values, rounded toward zero.
  [[nodiscard]] constexpr T mean(T rank_count) const noexcept {
    const T quotient = static_cast<T>(quotients + rests / rank_count);
    if constexpr (std::is_signed_v<T>) {
      const T rest = static_cast<T>(rests % rank_count);
      if (quotient > 0 && rest < 0) return static_cast<T>(quotient - 1);
      if (quotient < 0 && rest > 0) return static_cast<T>(quotient + 1);
    }
    return quotient;
  }
};

// The type that holds the sum of a mean, if the sum in T could overflow although the mean does not; else T.
template <class T>
struct wide_sum {
  using type = T;
};
template <class T>
requires(std::is_integral_v<T>) struct wide_sum<T> {
  using type =
      std::conditional_t<(sizeof(T) < 4), std::int32_t, std::conditional_t<(sizeof(T) < 8), std::int64_t, shares<T>>>;
};
template <>
struct wide_sum<float16> {
  using type = float;
};
template <>
struct wide_sum<bfloat16> {  // bfloat16 has the same range as float
  using type = double;
};

}  // namespace detail

/// Adds; for bool it is "or".
inline constexpr detail::builtin<operation::sum, detail::plus> sum{};
/// Multiplies; for bool it is "and".
inline constexpr detail::builtin<operation::product, detail::times> product{};
/// The smallest; NaN when any rank has NaN.
inline constexpr detail::builtin<operation::min, detail::lesser> min{};
/// The largest; NaN when any rank has NaN.
inline constexpr detail::builtin<operation::max, detail::greater> max{};
/// The sum divided by the number of ranks; integers divide toward zero. The sums of integers and of 16-bit floats are
/// held in wider types, and so is the sum of a single float or double: these sums do not overflow. The sums of arrays
/// of float and double are held in float and double.
inline constexpr detail::builtin<operation::mean, detail::plus> mean{};
/// 1 if all values are not 0, otherwise 0.
inline constexpr detail::builtin<operation::logical_and, detail::both> logical_and{};
/// 1 if a value is not 0, otherwise 0.
inline constexpr detail::builtin<operation::logical_or, detail::either> logical_or{};
/// 1 if an odd number of values is not 0, otherwise 0.
inline constexpr detail::builtin<operation::logical_xor, detail::one_of_two> logical_xor{};
/// "And" of each bit; for integers, as are the next two.
inline constexpr detail::builtin<operation::bit_and, detail::common_bits> bit_and{};
/// "Or" of each bit.
inline constexpr detail::builtin<operation::bit_or, detail::all_bits> bit_or{};
/// "Exclusive or" of each bit.
inline constexpr detail::builtin<operation::bit_xor, detail::different_bits> bit_xor{};

namespace detail {

// A compiler that refuses an operation prints this name.
template <class Op, class T>
inline constexpr bool combines_two_elements_into_one = requires(const Op op, T a, T b) {
  { op(a, b) } -> std::convertible_to<T>;
};

}  // namespace detail

/// A function that a reducing collective accepts besides the operations above, which are for numbers: it combines
/// two T into a T and is associative and commutative in the mathematical sense (rounding may differ). Every rank must
/// pass an equal function; ranks that are threads call it concurrently.
template <class Op, class T>
concept reduction_operation =
    reducible<T> && std::copy_constructible<Op> && detail::combines_two_elements_into_one<Op, T>;

/// A type-erased operation on arrays with one element type, which algorithms and transports apply to bytes.
class reduction {
 public:
  reduction() = default;

  /// The functions for the mean of elements whose sum needs a wider type: each rank widens its elements, the ranks sum
  /// the wide elements, and the sums are divided and narrowed.
  struct widening {
    dtype type;
    std::size_t element_size;
    void (*widen)(const std::byte* input, std::byte* output, std::size_t count, int rank_count);
    void (*narrow)(const std::byte* input, std::byte* output, std::size_t count, int rank_count);
    reduction (*sum)();
  };
  /// Returns these functions; null if the elements are combined in their own type.
  [[nodiscard]] const widening* wide() const noexcept { return wide_; }

  /// Returns the type-erased form of `op` on T. Allocates only when the function has state.
  template <reducible T, reduction_operation<T> Op>
  static reduction of(Op op) {
    reduction result;
    result.type_ = type_code_of<T>();
    result.element_size_ = sizeof(T);
    if constexpr (requires { Op::code; })
      result.code_ = Op::code;
    else
      result.code_ = operation::user;
    if constexpr (!(std::is_empty_v<Op> && std::is_default_constructible_v<Op>))
      result.state_ = std::make_shared<const Op>(std::move(op));
    result.combine_ = &combine_elements<T, Op>;
    result.fold_ = &fold_elements<T, Op>;
    if constexpr (element<T>) {
      if (result.code_ == operation::mean) result.finish_ = &divide_elements<T>;
      if constexpr (!std::same_as<typename detail::wide_sum<T>::type, T>) {
        if (result.code_ == operation::mean) result.wide_ = &widening_of<T>;
      }
    }
    return result;
  }

  /// Returns the form of a sum or mean of floating-point T that rounds the exact sum: it has the same bits for any
  /// order of the ranks, and only `fold` over all ranks at once computes it.
  template <element T>
  static reduction reproducible(bool is_mean) {
    const auto functions = detail::exact_functions_of(dtype_of<T>(), is_mean);
    reduction result;
    result.type_ = dtype_of<T>();
    result.element_size_ = sizeof(T);
    result.code_ = is_mean ? operation::reproducible_mean : operation::reproducible_sum;
    result.combine_ = functions.combine;
    result.fold_ = functions.fold;
    return result;
  }
  /// Returns true if the elements of `rank_count` ranks are combined by one `fold`, and not in pairs: a sum of two has
  /// one rounding in any case.
  [[nodiscard]] bool folds_at_once(int rank_count) const noexcept {
    return code_ == operation::reproducible_mean || (code_ == operation::reproducible_sum && rank_count != 2);
  }

  /// Returns the element's type (none for a user's type), the operation (`user` for a user's operation), and the bytes
  /// per element.
  [[nodiscard]] dtype type() const noexcept { return type_; }
  [[nodiscard]] operation code() const noexcept { return code_; }
  [[nodiscard]] std::size_t element_size() const noexcept { return element_size_; }

  /// Combines: into[i] = op(into[i], incoming[i]), or op(incoming[i], into[i]) when `incoming_first`. Two ranks that
  /// combine the same pair in the same order get the same bits. The arrays do not overlap.
  void combine(std::byte* into, const std::byte* incoming, std::size_t bytes, bool incoming_first) const {
    combine_(state_.get(), into, incoming, bytes / element_size_, incoming_first);
  }

  /// Combines several inputs: every out[k][i] becomes ((in[0][i] op in[1][i]) op in[2][i]) ..., finished. For ranks
  /// that can read each other's memory, in one pass. Takes one input at least. An output may be an input; otherwise
  /// nothing overlaps.
  void fold(std::span<std::byte* const> out, std::span<const std::byte* const> in, std::size_t bytes) const {
    fold_(state_.get(), out, in, bytes / element_size_, finish_);
  }

  /// Returns the same operation without `finish`, for a combination in several steps.
  [[nodiscard]] reduction unfinished() const {
    reduction result = *this;
    result.finish_ = nullptr;
    return result;
  }

  /// Turns the combined value into the result; only the mean has work to do here.
  void finish(std::byte* data, std::size_t bytes, int rank_count) const {
    if (finish_ != nullptr) finish_(data, bytes / element_size_, rank_count);
  }

 private:
  template <class T, class W = typename detail::wide_sum<T>::type>
  static void widen_elements(const std::byte* input, std::byte* output, std::size_t count, int rank_count) {
    const T* const in = reinterpret_cast<const T*>(input);
    W* const out = reinterpret_cast<W*>(output);
    for (std::size_t i = 0; i < count; ++i) {
      if constexpr (element<W>) {
        out[i] = static_cast<W>(in[i]);
      } else {
        const auto n = static_cast<T>(rank_count);
        out[i] = {static_cast<T>(in[i] / n), static_cast<T>(in[i] % n)};
      }
    }
  }
  template <class T, class W = typename detail::wide_sum<T>::type>
  static void narrow_elements(const std::byte* input, std::byte* output, std::size_t count, int rank_count) {
    const W* const in = reinterpret_cast<const W*>(input);
    T* const out = reinterpret_cast<T*>(output);
    for (std::size_t i = 0; i < count; ++i) {
      if constexpr (std::same_as<T, bfloat16>)  // bfloat16 converts from float only
        out[i] = static_cast<T>(static_cast<float>(in[i] / static_cast<W>(rank_count)));
      else if constexpr (element<W>)
        out[i] = static_cast<T>(in[i] / static_cast<W>(rank_count));
      else
        out[i] = in[i].mean(static_cast<T>(rank_count));
    }
  }
  template <class T, class W = typename detail::wide_sum<T>::type>
  static constexpr widening widening_of = {type_code_of<W>(), sizeof(W), &widen_elements<T>, &narrow_elements<T>, [] {
                                             if constexpr (element<W>)
                                               return reduction::of<W>(detail::builtin<operation::sum, detail::plus>{});
                                             else
                                               return reduction::of<W>([](W a, W b) noexcept { return a + b; });
                                           }};

  // Calls `apply` with the operation at `functor`. An operation without state is constructed here, and `functor` is
  // then null.
  template <class Op, class Apply>
  static void with(const void* functor, Apply apply) {
    if constexpr (std::is_empty_v<Op> && std::is_default_constructible_v<Op>) {
      apply(Op{});
    } else {
      apply(*static_cast<const Op*>(functor));
    }
  }

  template <class T, class Op>
  static void combine_elements(const void* functor, std::byte* into, const std::byte* incoming, std::size_t count,
                               bool incoming_first) {
    T* const __restrict__ output = reinterpret_cast<T*>(into);
    const T* const __restrict__ input = reinterpret_cast<const T*>(incoming);
    with<Op>(functor, [&](const Op& op) {
      if (incoming_first) {
        for (std::size_t i = 0; i < count; ++i) output[i] = static_cast<T>(op(input[i], output[i]));
      } else {
        for (std::size_t i = 0; i < count; ++i) output[i] = static_cast<T>(op(output[i], input[i]));
      }
    });
  }

  // Folds small arrays with the portable code: the choice of vector instructions would take longer than the operation.
  template <class T, class Op>
  static void fold_elements(const void* functor, std::span<std::byte* const> out, std::span<const std::byte* const> in,
                            std::size_t count, void (*finish)(std::byte*, std::size_t, int)) {
    constexpr bool is_known = requires { Op::code; };  // built-in operations have the same bits with all vector widths
    if constexpr (is_known) {
      if (count * sizeof(T) >= fold_piece)
        return detail::run_vectorised<folding<T, Op>>(functor, out, in, count, finish);
    }
    folding<T, Op>::run(functor, out, in, count, finish);
  }
  // Folds in pieces that stay in the first-level cache: in an output, if an output can hold incomplete results, and
  // then copied to the other outputs.
  template <class T, class Op>
  struct folding {
    static void run(const void* functor, std::span<std::byte* const> out, std::span<const std::byte* const> in,
                    std::size_t count, void (*finish)(std::byte*, std::size_t, int)) {
      constexpr std::size_t piece = fold_piece / sizeof(T);
      alignas(64) std::byte aside[fold_piece];
      std::byte* const holder = output_to_fold_in(out, in);
      for (std::size_t done = 0; done < count; done += piece) {
        const std::size_t n = count - done < piece ? count - done : piece;
        const std::size_t at = done * sizeof(T);
        std::byte* const folded = holder != nullptr ? holder + at : aside;
        fold_first_two<T, Op>(functor, folded, in, at, n);
        for (std::size_t k = 2; k < in.size(); ++k) combine_elements<T, Op>(functor, folded, in[k] + at, n, false);
        if (finish != nullptr) finish(folded, n, static_cast<int>(in.size()));
        for (std::byte* const output : out) {
          if (output + at != folded) std::memcpy(output + at, folded, n * sizeof(T));
        }
      }
    }
  };

  // Returns an output in which to fold; null when each output is an input that is needed after the first two.
  static std::byte* output_to_fold_in(std::span<std::byte* const> out, std::span<const std::byte* const> in) noexcept {
    const auto is_late = [in](const std::byte* memory) {
      std::size_t k = 2;
      while (k < in.size() && in[k] != memory) ++k;
      return k < in.size();
    };
    for (std::byte* const output : out) {
      if (!is_late(output)) return output;
    }
    return nullptr;
  }

  template <class T, class Op>
  static void fold_first_two(const void* functor, std::byte* folded, std::span<const std::byte* const> in,
                             std::size_t at, std::size_t count) {
    const std::byte* const first = in[0] + at;
    if (in.size() == 1) {
      if (folded != first) std::memcpy(folded, first, count * sizeof(T));
      return;
    }
    const std::byte* const second = in[1] + at;
    if (folded == first)
      combine_elements<T, Op>(functor, folded, second, count, false);
    else if (folded == second)
      combine_elements<T, Op>(functor, folded, first, count, true);
    else
      combine_into<T, Op>(functor, reinterpret_cast<T*>(folded), first, second, count);
  }

  template <class T, class Op>
  static void combine_into(const void* functor, T* __restrict__ output, const std::byte* left, const std::byte* right,
                           std::size_t count) {
    const T* const __restrict__ a = reinterpret_cast<const T*>(left);
    const T* const __restrict__ b = reinterpret_cast<const T*>(right);
    with<Op>(functor, [&](const Op& op) {
      for (std::size_t i = 0; i < count; ++i) output[i] = static_cast<T>(op(a[i], b[i]));
    });
  }

  template <class T>
  static void divide_elements(std::byte* data, std::size_t count, int rank_count) {
    T* const values = reinterpret_cast<T*>(data);
    // float for the 16-bit types, 64 bits for integers: the number of ranks must fit the type that divides.
    using wide =
        std::conditional_t<std::is_floating_point_v<T>, T,
                           std::conditional_t<!std::is_integral_v<T>, float,
                                              std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>>>;
    const auto divisor = static_cast<wide>(rank_count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(static_cast<wide>(values[i]) / divisor);
  }

  static constexpr std::size_t fold_piece = 2048;  // bytes

  dtype type_ = dtype::none;
  operation code_ = operation::none;
  std::size_t element_size_ = 1;
  std::shared_ptr<const void> state_;
  void (*combine_)(const void*, std::byte*, const std::byte*, std::size_t, bool) = nullptr;
  void (*fold_)(const void*, std::span<std::byte* const>, std::span<const std::byte* const>, std::size_t,
                void (*)(std::byte*, std::size_t, int)) = nullptr;
  void (*finish_)(std::byte*, std::size_t, int) = nullptr;
  const widening* wide_ = nullptr;
};

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
