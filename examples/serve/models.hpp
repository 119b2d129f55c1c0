// The models of the examples as predictors.
#pragma once

#include <cstddef>
#include <string>

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

 private:
  images::loaded_model model_;
  muster::preparation prepare_;
  muster::serve::model_info info_;
  muster::buffer<float> images_;  // of a batch
};
static_assert(muster::serve::predictor<image_model>);

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

/// The model in FOLDER/model.muster, as --save of the examples has written it; networks compute with so many threads.
[[nodiscard]] muster::serve::any_predictor load(const std::string& folder, std::size_t max_batch, int threads = 1);

}  // namespace served
