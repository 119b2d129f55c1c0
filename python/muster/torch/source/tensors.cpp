#include "tensors.hpp"

#include <ATen/ops/cat.h>

#include <muster/core/error.hpp>

namespace muster::torch_backend {
namespace {

using muster::dtype;
using muster::operation;
using muster::detail::bit_operation;
using muster::detail::typed_elements;

dtype dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return dtype::float32;
    case at::kDouble:
      return dtype::float64;
    case at::kHalf:
      return dtype::float16;
    case at::kBFloat16:
      return dtype::bfloat16;
    case at::kByte:
      return dtype::uint8;
    case at::kChar:
      return dtype::int8;
    case at::kShort:
      return dtype::int16;
    case at::kInt:
      return dtype::int32;
    case at::kLong:
      return dtype::int64;
    case at::kBool:
      return dtype::boolean;
    case at::kUInt16:
      return dtype::uint16;
    case at::kUInt32:
      return dtype::uint32;
    case at::kUInt64:
      return dtype::uint64;
    default:
      return dtype::none;
  }
}

[[noreturn]] void refuse(const char* call, const std::string& text) {
  throw muster::configuration_error(std::string(call) + ": " + text);
}

void require_usable(const at::Tensor& tensor, const char* call) {
  if (!tensor.device().is_cpu())
    refuse(call, "the tensor is on " + tensor.device().str() +
                     " (muster uses memory of the host); make the group with \"cpu:muster,cuda:nccl\"");
  if (tensor.layout() != at::kStrided)
    refuse(call, "the tensor is not dense (it has another layout than strided); pass a dense tensor");
  if (!tensor.is_contiguous())
    refuse(call, "the tensor is not contiguous (collectives move whole blocks of memory); pass tensor.contiguous()");
}

}  // namespace

typed_elements elements_of(const at::Tensor& tensor, const char* call) {
  require_usable(tensor, call);
  auto* const data = static_cast<std::byte*>(tensor.data_ptr());
  const auto count = static_cast<std::size_t>(tensor.numel());
  if (tensor.scalar_type() == at::kComplexFloat) return {data, 2 * count, dtype::float32};
  if (tensor.scalar_type() == at::kComplexDouble) return {data, 2 * count, dtype::float64};
  const dtype type = dtype_of(tensor.scalar_type());
  if (type == dtype::none)
    refuse(call, std::string("Invalid scalar type ") + c10::toString(tensor.scalar_type()) +
                     " (muster has no arithmetic for it); convert the tensor");
  return {data, count, type};
}

typed_elements moved_elements_of(const at::Tensor& tensor, const char* call) {
  require_usable(tensor, call);
  if (dtype_of(tensor.scalar_type()) != dtype::none || tensor.is_complex()) return elements_of(tensor, call);
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes(), dtype::uint8};
}

reduction_choice reduction_for(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  using c10d::ReduceOp;
  const bool is_ordered = !tensor.is_complex();
  const auto require_ordered = [&] {
    if (!is_ordered)
      refuse("reduction", "all_reduce does not support this operation on complex tensors; reduce their parts");
  };
  switch (op.op_) {
    case ReduceOp::SUM:
      return {operation::sum};
    case ReduceOp::PREMUL_SUM:
      return {operation::sum};
    case ReduceOp::AVG:
      return {operation::mean};
    case ReduceOp::PRODUCT:
      require_ordered();
      return {operation::product};
    case ReduceOp::MIN:
      require_ordered();
      return {operation::min};
    case ReduceOp::MAX:
      require_ordered();
      return {operation::max};
    default:
      break;
  }
  const bool is_integral = c10::isIntegralType(tensor.scalar_type(), true);
  if (!is_integral)
    refuse("reduction", std::string("Cannot use ReduceOp.") +
                            (op.op_ == ReduceOp::BAND  ? "BAND"
                             : op.op_ == ReduceOp::BOR ? "BOR"
                                                       : "BXOR") +
                            " with non-integral dtype (it combines bits); convert the tensor to an integer type");
  if (op.op_ == ReduceOp::BAND) return {operation::none, bit_operation::bit_and};
  if (op.op_ == ReduceOp::BOR) return {operation::none, bit_operation::bit_or};
  if (op.op_ == ReduceOp::BXOR) return {operation::none, bit_operation::bit_xor};
  refuse("reduction",
         "Unhandled ReduceOp (muster does not know it); use SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR");
}

void scale(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM || !op.supplement_) return;
  const auto* const factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) return;
  if (factor->tensor_factor.defined())
    tensor.mul_(factor->tensor_factor);
  else
    tensor.mul_(factor->double_factor);
}

const at::Tensor& only(const std::vector<at::Tensor>& list, const char* call) {
  if (list.size() != 1)
    refuse(call, "requires a single-element tensor list (it has " + std::to_string(list.size()) +
                     "); pass one tensor, or use the coalesced call");
  return list[0];
}

const std::vector<at::Tensor>& only_list(const std::vector<std::vector<at::Tensor>>& lists, int size,
                                         const char* call) {
  if (lists.size() != 1)
    refuse(call, "requires a single-element output list (it has " + std::to_string(lists.size()) + "); pass one list");
  if (lists[0].size() != static_cast<std::size_t>(size))
    refuse(call, "Incorrect input list size " + std::to_string(lists[0].size()) + ". Input list size should be " +
                     std::to_string(size) + ", same as size of the process group.");
  return lists[0];
}

void require_same_type(const at::Tensor& first, const at::Tensor& second, const char* call) {
  if (first.scalar_type() == second.scalar_type()) return;
  refuse(call, std::string("invalid tensor type at index 1 (it is ") + c10::toString(second.scalar_type()) +
                   ", expected " + c10::toString(first.scalar_type()) + "); convert one of the tensors");
}

void require_same(const at::Tensor& first, const at::Tensor& second, const char* call) {
  require_same_type(first, second, call);
  if (first.numel() == second.numel()) return;
  refuse(call, "invalid tensor size at index 1 (expected " + c10::str(first.sizes()) + ", got " +
                   c10::str(second.sizes()) + "); pass tensors of one size");
}

void require_as_many(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs, const char* call) {
  if (inputs.size() == outputs.size()) return;
  refuse(call, "there are " + std::to_string(inputs.size()) + " inputs and " + std::to_string(outputs.size()) +
                   " outputs (each input has an output); pass lists of equal length");
}

int root_of(std::int64_t root, int size, const char* call) {
  if (root >= 0 && root < size) return static_cast<int>(root);
  refuse(call, "invalid root rank: " + std::to_string(root) + " (the group has ranks 0 to " + std::to_string(size - 1) +
                   "); choose such a rank");
}

void divide(const at::Tensor& flat, const std::vector<at::Tensor>& list) {
  std::int64_t at = 0;
  for (const at::Tensor& each : list) {
    const std::int64_t count = each.numel();
    each.copy_(flat.narrow(0, at, count).view(each.sizes()));
    at += count;
  }
}

at::Tensor flattened(const std::vector<at::Tensor>& list) {
  std::vector<at::Tensor> rows;
  rows.reserve(list.size());
  for (const at::Tensor& each : list) rows.push_back(each.reshape({-1}));
  return at::cat(rows);
}

}  // namespace muster::torch_backend
