// The tensors of a module: trained parameters, frozen parameters and buffers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/script.h>

#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace torch { namespace detail {

struct named_tensor {
  std::string name;
  at::Tensor tensor;
};

/// The tensors of a module, in the order of their registration. A tensor that a module has under several names is
/// listed under its first name.
struct module_tensors {
  std::vector<named_tensor> trained{};
  std::vector<named_tensor> frozen{};  ///< parameters that require no gradient
  std::vector<named_tensor> buffers{};
  std::vector<std::shared_ptr<::torch::nn::Module>> modules{};  ///< the submodules, of a module of the C++ frontend
  bool has_dropout = false;
};

/// Returns the bytes of a dense tensor in the host's memory.
[[nodiscard]] inline std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
}

/// Returns the dtype of a tensor's elements; `none` for types that muster does not have, such as complex numbers.
[[nodiscard]] inline dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBool:
      return dtype::boolean;
    case at::kChar:
      return dtype::int8;
    case at::kByte:
      return dtype::uint8;
    case at::kShort:
      return dtype::int16;
    case at::kInt:
      return dtype::int32;
    case at::kLong:
      return dtype::int64;
    case at::kHalf:
      return dtype::float16;
    case at::kBFloat16:
      return dtype::bfloat16;
    case at::kFloat:
      return dtype::float32;
    case at::kDouble:
      return dtype::float64;
    default:
      return dtype::none;
  }
}

/// Returns a description such as "float32[10x64]".
[[nodiscard]] inline std::string shape_text(const at::Tensor& tensor) {
  const dtype type = dtype_of(tensor);
  std::string text =
      type == dtype::none ? std::string(at::toString(tensor.scalar_type())) : std::string(to_string(type));
  text += "[";
  for (std::int64_t k = 0; k < tensor.dim(); ++k) text += (k == 0 ? "" : "x") + std::to_string(tensor.size(k));
  return text + "]";
}

/// Throws configuration_error for a tensor that has no value, is not in the host's memory, or is not dense. `kind`
/// begins the error's text: "parameter" or "buffer".
inline void require_usable(std::string_view kind, const named_tensor& entry) {
  const std::string subject = std::string(kind) + " '" + entry.name + "'";
  if (!entry.tensor.defined()) {
    throw configuration_error(subject +
                              " has no value (it was registered and never set); set it before the model is "
                              "made parallel");
  }
  if (!entry.tensor.device().is_cpu()) {
    throw configuration_error(subject + " is on " + entry.tensor.device().str() +
                              " (muster::torch exchanges tensors of the host); move the module by to(torch::kCPU)");
  }
  if (entry.tensor.layout() != at::kStrided) {
    throw configuration_error(subject + " is not dense (muster::torch exchanges dense tensors); use a dense tensor");
  }
}

// Collects the tensors of a module, each tensor once: trained parameters, frozen parameters, and buffers.
class tensor_list {
 public:
  void add_parameter(const std::string& name, const at::Tensor& tensor) {
    if (!is_new(tensor)) return;
    const named_tensor entry{name, tensor};
    require_usable("parameter", entry);
    (tensor.requires_grad() ? result_.trained : result_.frozen).push_back(entry);
  }
  void add_buffer(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || !is_new(tensor)) return;
    const named_tensor entry{name, tensor};
    require_usable("buffer", entry);
    result_.buffers.push_back(entry);
  }
  void note_module(std::string_view type) {
    if (type.find("Dropout") != std::string_view::npos) result_.has_dropout = true;
  }

  /// Returns the lists. Throws configuration_error for a module that has nothing to train, and for two parameters that
  /// overlap in memory: each gets its own place, so they would part with the first step.
  [[nodiscard]] module_tensors finish() {
    if (result_.trained.empty()) {
      throw configuration_error(
          "the module has no parameter that requires a gradient (there is nothing to train); register its parameters "
          "or submodules");
    }
    auto sorted = result_.trained;
    const auto begin_of = [](const named_tensor& entry) { return static_cast<const char*>(entry.tensor.data_ptr()); };
    std::sort(sorted.begin(), sorted.end(), [&](const auto& a, const auto& b) { return begin_of(a) < begin_of(b); });
    for (std::size_t k = 1; k < sorted.size(); ++k) {
      const auto& before = sorted[k - 1];
      if (bytes_of(before.tensor) == 0 || begin_of(before) + bytes_of(before.tensor) <= begin_of(sorted[k])) continue;
      throw configuration_error("parameters '" + before.name + "' and '" + sorted[k].name +
                                "' share memory (they are different tensors, and each gets its own place); register "
                                "one tensor under both names");
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool is_new(const at::Tensor& tensor) {
    return !tensor.defined() || seen_.insert(tensor.unsafeGetTensorImpl()).second;
  }

  module_tensors result_;
  std::unordered_set<const void*> seen_;
};

/// Returns the tensors of a module. Throws configuration_error as `require_usable` and `tensor_list::finish` do.
[[nodiscard]] inline module_tensors tensors_of(::torch::nn::Module& module) {
  tensor_list list;
  for (const auto& item : module.named_parameters()) list.add_parameter(item.key(), item.value());
  for (const auto& item : module.named_buffers()) list.add_buffer(item.key(), item.value());
  for (const auto& each : module.modules(false)) list.note_module(each->name());
  auto result = list.finish();
  result.modules = module.modules(false);
  return result;
}
[[nodiscard]] inline module_tensors tensors_of(::torch::jit::Module& module) {
  tensor_list list;
  for (const auto& item : module.named_parameters()) list.add_parameter(item.name, item.value);
  for (const auto& item : module.named_buffers()) list.add_buffer(item.name, item.value);
  for (const auto& each : module.modules()) list.note_module(each.type()->name()->name());
  return list.finish();
}

}}}}  // namespace muster::v0::torch::detail
