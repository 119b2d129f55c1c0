// A model of TorchScript behind muster::serve.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/script.h>

#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/serve/predictor.hpp>
#include <muster/torch/detail/module_tensors.hpp>
#include <muster/torch/tensors.hpp>

namespace muster { inline namespace v0 { namespace torch {

namespace detail {

constexpr const char* info_of_model = "muster_model.txt";  // in the archive, beside the code

// Writes "NAME TYPE EXTENT..." of a tensor.
inline void write(std::ostream& text, const serve::tensor_info& info) {
  text << info.name << ' ' << to_string(info.type);
  for (const std::size_t extent : info.shape) text << ' ' << std::to_string(extent);  // no separators of a locale
  text << '\n';
}
inline serve::tensor_info read_tensor(std::istream& text, const std::string& path) {
  std::string line, type;
  std::getline(text, line);
  std::istringstream words(line);
  serve::tensor_info tensor;
  words >> tensor.name >> type;
  tensor.type = muster::data::detail::dtype_named(type);
  for (std::size_t extent = 0; words >> extent;) tensor.shape.push_back(extent);
  if (tensor.type == dtype::none || !words.eof()) {
    throw data_error({.file = path},
                     "describes no tensor by '" + line +
                         "' (it is not NAME TYPE EXTENT...); save the model by muster::torch::save_script");
  }
  return tensor;
}

}  // namespace detail

/// Saves a module of TorchScript with the description that `script_predictor` needs. Names have no spaces. Throws
/// LibTorch's errors.
inline void save_script(const ::torch::jit::Module& module, const std::string& path, const serve::model_info& info) {
  std::ostringstream text;
  detail::write(text, info.input);
  detail::write(text, info.output);
  for (const auto& name : info.classes) text << name << '\n';
  module.save(path, {{detail::info_of_model, text.str()}});
}

/// A served model of TorchScript: a predictor for muster::serve, whose headers and library know nothing of LibTorch.
///
///     muster::serve::repository models("models", muster::torch::load_script);  // models/NAME/VERSION/model.pt
///
/// Each batch is one call of the module's `forward`, in inference mode, with the rows as one tensor.
class script_predictor {
 public:
  /// Reads a file of `save_script`. Throws data_error for a file that is damaged, or has no description.
  explicit script_predictor(const std::string& path) {
    ::torch::jit::ExtraFilesMap extra{{detail::info_of_model, ""}};
    try {
      module_ = ::torch::jit::load(path, at::kCPU, extra);
    } catch (const c10::Error& failed) {
      throw data_error({.file = path}, std::string("is no model of TorchScript (") + failed.what_without_backtrace() +
                                           "); save the model by muster::torch::save_script");
    }
    module_.eval();
    std::istringstream text(extra[detail::info_of_model]);
    info_.platform = "torchscript";
    info_.input = detail::read_tensor(text, path);
    info_.output = detail::read_tensor(text, path);
    for (std::string name; std::getline(text, name);) info_.classes.push_back(name);
  }

  /// Returns the description.
  [[nodiscard]] const serve::model_info& info() const noexcept { return info_; }

  /// Fills the output of a batch. Throws mismatch_error if the module's output has other rows than `info` says.
  void predict(serve::prediction_batch& batch) {
    const c10::InferenceMode inference;
    const at::Tensor input = at::empty(sizes_of(info_.input, batch.size()), type_of(info_.input));
    auto* to = static_cast<std::byte*>(input.data_ptr());
    for (std::size_t k = 0; k < batch.size(); ++k) to = std::ranges::copy(batch.row(k), to).out;
    const at::Tensor output = module_.forward({input}).toTensor().contiguous();
    if (output.sizes() != at::IntArrayRef(sizes_of(info_.output, batch.size())) ||
        output.scalar_type() != type_of(info_.output)) {
      throw mismatch_error("a model of TorchScript returned " + detail::shape_text(output) + " for " +
                           std::to_string(batch.size()) + " rows (its description has " +
                           std::string(to_string(info_.output.type)) + " with " +
                           std::to_string(info_.output.elements()) + " elements a row); save it with another");
    }
    std::memcpy(batch.output().data(), output.data_ptr(), batch.output().size());
  }

 private:
  [[nodiscard]] static std::vector<std::int64_t> sizes_of(const serve::tensor_info& info, std::size_t row_count) {
    std::vector<std::int64_t> sizes{static_cast<std::int64_t>(row_count)};
    for (const std::size_t extent : info.shape) sizes.push_back(static_cast<std::int64_t>(extent));
    return sizes;
  }
  [[nodiscard]] static at::ScalarType type_of(const serve::tensor_info& info) {
    return detail::scalar_type_of(info.type, {.name = info.name});
  }

  ::torch::jit::Module module_;
  serve::model_info info_;
};

/// Loads `model.pt` in the folder of a version: the function for `serve::repository`.
[[nodiscard]] inline serve::any_predictor load_script(const std::string& folder) {
  return serve::any_predictor(script_predictor(folder + "/model.pt"));
}

}}}  // namespace muster::v0::torch
