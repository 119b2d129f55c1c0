#include "models.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "../model_file.hpp"
#include "loss.hpp"
#include "processor.hpp"

namespace served {
namespace {

using muster::serve::tensor_info;

// What a sample of the training was before its preparation.
muster::record_schema records_of(const images::model_description& what) {
  if (what.preparation.text.starts_with("jpeg:")) return {.form = muster::record_form::bytes};
  muster::record_field image{"image", muster::dtype::uint8, {what.input.height, what.input.width}};
  if (what.input.channels != 1) image.shape.insert(image.shape.begin(), what.input.channels);
  return {.form = muster::record_form::fixed, .fields = {std::move(image)}};
}

tensor_info input_of(const muster::record_schema& records) {
  if (records.form == muster::record_form::bytes)
    return {.name = "image", .type = muster::dtype::uint8, .is_bytes = true};
  const auto& field = records.fields[0];
  return {.name = "image", .type = field.type, .shape = {field.shape.begin(), field.shape.end()}};
}

}  // namespace

image_model::image_model(images::loaded_model model, std::size_t max_batch)
    : model_(std::move(model)),
      prepare_(model_.what.preparation, records_of(model_.what)),
      info_{.platform = "muster",
            .input = input_of(records_of(model_.what)),
            .output = {.name = "probabilities", .shape = {model_.what.classes}}},
      images_(max_batch * model_.what.input.size()) {
  if (prepare_.output().record_bytes() != model_.what.input.size() * sizeof(float)) {
    throw muster::configuration_error("the model cannot be served (its preparation '" + model_.what.preparation.text +
                                      "' makes no image of its network's size out of one); train it on images of one "
                                      "size, or on JPEG files");
  }
}

void image_model::predict(muster::serve::prediction_batch& batch) {
  const nn::flush_denormals flush;
  const std::size_t size = model_.what.input.size();
  for (std::size_t k = 0; k < batch.size(); ++k) {
    const auto image = images_.span().subspan(k * size, size);
    try {
      prepare_(batch.row(k), std::as_writable_bytes(image));
    } catch (const muster::data_error& bad) {
      std::fill(image.begin(), image.end(), 0.0f);
      batch.refuse(k, bad.problem());
    }
  }
  const auto logits =
      model_.net->forward(images_.span().first(batch.size() * size), {.images = batch.size(), .training = false});
  const std::span probabilities(reinterpret_cast<float*>(batch.output().data()), batch.output().size() / sizeof(float));
  nn::softmax(logits, model_.what.classes, probabilities);
}

logistic_model::logistic_model(std::vector<float> numbers)
    : numbers_(std::move(numbers)),
      row_(numbers_.size() - 1),
      info_{.platform = "muster",
            .input = {.name = "features", .shape = {row_.size()}},
            .output = {.name = "probability"}} {}

void logistic_model::predict(muster::serve::prediction_batch& batch) {
  for (std::size_t k = 0; k < batch.size(); ++k) {
    std::memcpy(row_.data(), batch.row(k).data(), batch.row(k).size());
    double margin = static_cast<double>(numbers_.back());
    for (std::size_t f = 0; f < row_.size(); ++f)
      margin += static_cast<double>(numbers_[f]) * static_cast<double>(row_[f]);
    const auto probability = static_cast<float>(1 / (1 + std::exp(-margin)));
    std::memcpy(batch.output().data() + k * sizeof probability, &probability, sizeof probability);
  }
}

muster::serve::any_predictor load(const std::string& folder, std::size_t max_batch, int threads) {
  const std::string path = folder + "/model.muster";
  auto file = examples::read_model(path, [](const auto&) {});
  nn::execution how;
  how.threads = threads;
  if (file.model != "logistic_regression") return image_model(images::load_model(path, how), max_batch);
  if (file.numbers.empty()) throw examples::no_model(path, "it has no bias");
  return logistic_model(std::move(file.numbers));
}

}  // namespace served
