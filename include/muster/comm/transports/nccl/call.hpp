// One call of a device's collective with its types erased.
#pragma once

#include <cstddef>
#include <type_traits>

#include <muster/comm/reduction.hpp>
#include <muster/core/device/span.hpp>

namespace muster::inline v0::nccl {

/// The operations that give on devices what they give elsewhere: sum and product; for floating point mean; for whole
/// numbers min and max, since NCCL does not promise to keep a NaN, behind which a diverged gradient would hide.
template <class Op, class T>
concept device_operation = reduction_operation<Op, T> && requires {
  Op::code;
} &&(Op::code == operation::sum || Op::code == operation::product ||
     (std::is_integral_v<T> ? Op::code == operation::min || Op::code == operation::max : Op::code == operation::mean));

/// A call of NCCL: pointers are to a device's memory, which the caller owns until the call is done on its stream.
struct device_call {
  /// The function of NCCL that is called.
  enum class kind { allreduce, reduce, broadcast, allgather, reduce_scatter, send, receive };

  /// From typed pointers; `peer` is the other rank of a send or receive, or the root.
  template <device_element T>
  [[nodiscard]] static device_call of(kind what, const T* in, T* out, std::size_t count, operation op, int peer = 0) {
    return {what, in, out, count, dtype_of<T>(), op, peer};
  }

  kind what = kind::allreduce;
  const void* in = nullptr;  ///< null for a receive
  void* out = nullptr;       ///< null for a send; equal to `in` for a call in place
  std::size_t count = 0;     ///< elements, as NCCL counts them: of one rank's block where there are blocks
  dtype type = dtype::none;
  operation op = operation::none;
  int peer = 0;  ///< or root
};

}  // namespace muster::inline v0::nccl
