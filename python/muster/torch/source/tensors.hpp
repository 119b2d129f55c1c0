// Tensors of torch as muster's elements, and the checks of their arguments.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <typed_call.hpp>

namespace muster::torch_backend {

/// The operation of a reduction: of numbers, or of bits.
struct reduction_choice {
  muster::operation op = muster::operation::none;
  muster::detail::bit_operation bits = muster::detail::bit_operation::none;
};

/// Return the elements of a dense and contiguous tensor on the host, for a reduction, or to be moved alone, where any
/// type is taken as its bytes. Throw configuration_error that names the call for other tensors.
[[nodiscard]] muster::detail::typed_elements elements_of(const at::Tensor& tensor, const char* call);
[[nodiscard]] muster::detail::typed_elements moved_elements_of(const at::Tensor& tensor, const char* call);

/// Returns muster's operation for torch's. Throws configuration_error for an operation that the type does not have.
[[nodiscard]] reduction_choice reduction_for(const c10d::ReduceOp& op, const at::Tensor& tensor);
/// Multiplies the tensor by the factor of PREMUL_SUM; does nothing for other operations.
void scale(const at::Tensor& tensor, const c10d::ReduceOp& op);

/// Return the only tensor, or the only list, which has `size` tensors. Throw configuration_error for another number.
[[nodiscard]] const at::Tensor& only(const std::vector<at::Tensor>& list, const char* call);
[[nodiscard]] const std::vector<at::Tensor>& only_list(const std::vector<std::vector<at::Tensor>>& lists, int size,
                                                       const char* call);
/// Throw configuration_error unless the tensors have one type, one type and shape, or the lists one length.
void require_same_type(const at::Tensor& first, const at::Tensor& second, const char* call);
void require_same(const at::Tensor& first, const at::Tensor& second, const char* call);
void require_as_many(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs, const char* call);
/// Returns the root as a rank. Throws configuration_error unless it is a rank of the group.
[[nodiscard]] int root_of(std::int64_t root, int size, const char* call);

/// Copies the pieces of a flat tensor into the tensors of a list.
void divide(const at::Tensor& flat, const std::vector<at::Tensor>& list);
/// Returns the elements of all tensors in one.
[[nodiscard]] at::Tensor flattened(const std::vector<at::Tensor>& list);

}  // namespace muster::torch_backend
