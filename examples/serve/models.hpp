// The models of the examples as predictors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <muster/serve/predictor.hpp>

#include "../image_training/saved_model.hpp"

namespace served {

/// A network of images: probabilities of classes, of images as they were before the preparation that was saved with it:
/// bytes of a JPEG, or uint8 in the order of CIFAR's and MNIST's files.
class image_model {
 public:
  /// Throws muster::configuration_error for a preparation that does not make what the network takes.
  image_model(images::loaded_model model, std::size_t max_batch);

  [[nodiscard]] const muster::serve::model_info& info() const noexcept { return info_; }
  void predict(muster::serve::prediction_batch& batch);
  /// Of a JPEG: its pixels as the network takes them.
  [[nodiscard]] std::size_t prepared_bytes() const noexcept {
    return info_.input.is_bytes ? model_.what.input.size() * sizeof(float) : 0;
  }
  void prepare(std::span<const std::byte> row, std::span<std::byte> to) { prepare_(row, to); }
  void predict_prepared(muster::serve::prediction_batch& batch);

 private:
  void answer(muster::serve::prediction_batch& batch);

  images::loaded_model model_;
  muster::preparation prepare_;
  muster::serve::model_info info_;
  muster::buffer<float> images_;  // of a batch
};
static_assert(muster::serve::preparing_predictor<image_model>);

/// A logistic regression: the probability of the larger label, of dense features.
class logistic_model {
 public:
  /// Weights, then the bias.
  explicit logistic_model(std::vector<float> numbers);

  [[nodiscard]] const muster::serve::model_info& info() const noexcept { return info_; }
  void predict(muster::serve::prediction_batch& batch);

 private:
  std::vector<float> numbers_;
  std::vector<float> row_;  // aligned
  muster::serve::model_info info_;
};
static_assert(muster::serve::predictor<logistic_model>);

/// How the models of a version answer as one: not at all, with the mean of what they say (models of the same labels),
/// or with all that they say, one model behind the other (models of different labels).
enum class combination : std::uint8_t { none, mean, united };

/// Several models that take the same input, as one. Each predicts the batch, in turn.
class combined_model {
 public:
  /// Throws muster::configuration_error for models that cannot be combined so; `files` are their names.
  combined_model(std::vector<muster::serve::any_predictor> models, const std::vector<std::string>& files,
                 combination how, std::size_t max_batch);

  [[nodiscard]] const muster::serve::model_info& info() const noexcept { return info_; }
  void predict(muster::serve::prediction_batch& batch) { predict_members(batch, false); }
  /// Of all members, one behind the other.
  [[nodiscard]] std::size_t prepared_bytes() const noexcept;
  void prepare(std::span<const std::byte> row, std::span<std::byte> to);
  void predict_prepared(muster::serve::prediction_batch& batch) { predict_members(batch, true); }

 private:
  void predict_members(muster::serve::prediction_batch& batch, bool are_prepared);

  std::vector<muster::serve::any_predictor> models_;
  combination how_;
  muster::serve::model_info info_;
  muster::buffer<float> answers_;  // of one model
};
static_assert(muster::serve::preparing_predictor<combined_model>);

/// The model in FOLDER, as --save of the examples has written it (model.muster; several files: one model by `how`, in
/// the order of their names); networks compute with so many threads.
[[nodiscard]] muster::serve::any_predictor load(const std::string& folder, std::size_t max_batch, int threads = 1,
                                                combination how = combination::none);

}  // namespace served
