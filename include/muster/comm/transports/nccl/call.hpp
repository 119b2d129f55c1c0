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

/// What a communicator hands to NCCL.
struct device_call {
  enum class kind { allreduce, reduce, broadcast, allgather, reduce_scatter, send, receive };

  template <device_element T>
  [[nodiscard]] static device_call of(kind what, const T* in, T* out, std::size_t count, operation op, int peer = 0) {
    return {what, in, out, count, dtype_of<T>(), op, peer};
  }

  kind what = kind::allreduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;  ///< elements, as NCCL counts them: of one rank's block where there are blocks
  dtype type = dtype::none;
  operation op = operation::none;
  int peer = 0;  ///< or root
};

}  // namespace muster::inline v0::nccl
