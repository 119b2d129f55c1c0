// Predictors for the models of the examples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <muster/serve/predictor.hpp>

#include "../image_training/saved_model.hpp"

namespace served {

/// A network for images. The input is an image before the preparation that was saved with the network: the bytes of a
/// JPEG, or uint8 in the order of the files of CIFAR and MNIST. For the latter a request may have JPEG or PNG files
/// too, if muster::jpeg is linked: the middle of a file is resized to the input's size, and made grey for an input of
/// one channel. The output has a probability for each class.
class image_model {
 public:
  /// Throws muster::configuration_error if the preparation does not produce the network's input.
  image_model(images::loaded_model model, std::size_t max_batch);

  [[nodiscard]] const muster::serve::model_info& info() const noexcept { return info_; }
  void predict(muster::serve::prediction_batch& batch);
  /// Returns the size of a prepared JPEG: pixels in the form of the network's input.
  [[nodiscard]] std::size_t prepared_bytes() const noexcept {
    return info_.input.is_bytes ? model_.description.input.size() * sizeof(float) : 0;
  }
  void prepare(std::span<const std::byte> row, std::span<std::byte> output) { prepare_(row, output); }
  void predict_prepared(muster::serve::prediction_batch& batch);
  /// Reads a JPEG as an image of uint8. Called only if info().input.takes_files.
  void read_file(std::span<const std::byte> file, std::span<std::byte> row);

 private:
  void answer(muster::serve::prediction_batch& batch);

  images::loaded_model model_;
  muster::preparation prepare_;
  muster::serve::model_info info_;
  muster::buffer<float> images_;             // input images of a batch
  std::optional<muster::preparation> file_;  // from a JPEG to an image of uint8
  muster::buffer<std::byte> pixels_;         // image of a file whose channels are adjacent
};
static_assert(muster::serve::preparing_predictor<image_model> && muster::serve::file_predictor<image_model>);

/// A logistic regression for dense features. The output is the probability of the larger label.
class logistic_model {
 public:
  /// Makes the model from the weights, followed by the bias.
  explicit logistic_model(std::vector<float> numbers);

  [[nodiscard]] const muster::serve::model_info& info() const noexcept { return info_; }
  void predict(muster::serve::prediction_batch& batch);

 private:
  std::vector<float> numbers_;
  std::vector<float> row_;  // aligned copy of a row
  muster::serve::model_info info_;
};
static_assert(muster::serve::predictor<logistic_model>);

/// The combination of a version's models into one: no combination, the mean of the outputs (for models with the same
/// labels), or all outputs one after another (for models with different labels).
enum class combination : std::uint8_t { none, mean, united };

/// A combination of models with the same input. The models predict a batch one after another.
class combined_model {
 public:
  /// Throws muster::configuration_error for models that cannot be combined in this way. `files` has the models' names.
  combined_model(std::vector<muster::serve::any_predictor> models, const std::vector<std::string>& files,
                 combination mode, std::size_t max_batch);

  [[nodiscard]] const muster::serve::model_info& info() const noexcept { return info_; }
  void predict(muster::serve::prediction_batch& batch) { predict_members(batch, false); }
  /// Returns the size of a prepared row, which has the prepared rows for all models, one after another.
  [[nodiscard]] std::size_t prepared_bytes() const noexcept;
  void prepare(std::span<const std::byte> row, std::span<std::byte> output);
  void predict_prepared(muster::serve::prediction_batch& batch) { predict_members(batch, true); }
  void read_file(std::span<const std::byte> file, std::span<std::byte> row) { models_.front().read_file(file, row); }

 private:
  void predict_members(muster::serve::prediction_batch& batch, bool are_prepared);

  std::vector<muster::serve::any_predictor> models_;
  combination mode_;
  muster::serve::model_info info_;
  muster::buffer<float> answers_;  // output of a single model
};
static_assert(muster::serve::preparing_predictor<combined_model> && muster::serve::file_predictor<combined_model>);

/// Loads the model in `folder` that --save of the examples has written (model.muster, model.safetensors). Several files
/// are combined into one model, in the order of their names, according to `mode`. Networks compute with `threads`
/// threads.
[[nodiscard]] muster::serve::any_predictor load(const std::string& folder, std::size_t max_batch, int threads = 1,
                                                combination mode = combination::none);

}  // namespace served
