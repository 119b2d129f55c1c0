#include "models.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "../model_file.hpp"
#include "loss.hpp"
#include "processor.hpp"

namespace served {
namespace {

using muster::serve::tensor_info;

// Returns the schema of training samples before the preparation.
muster::record_schema records_of(const images::model_description& description) {
  if (description.preparation.text.starts_with("jpeg:")) return {.form = muster::record_form::bytes};
  muster::record_field image{"image", muster::dtype::uint8, {description.input.height, description.input.width}};
  if (description.input.channels != 1) image.shape.insert(image.shape.begin(), description.input.channels);
  return {.form = muster::record_form::fixed, .fields = {std::move(image)}};
}

tensor_info input_of(const muster::record_schema& records) {
  if (records.form == muster::record_form::bytes)
    return {.name = "image", .type = muster::dtype::uint8, .is_bytes = true};
  const auto& field = records.fields[0];
  return {.name = "image", .type = field.type, .shape = {field.shape.begin(), field.shape.end()}};
}

// Returns the preparation of a JPEG file as an image of this size. Its channels are adjacent.
muster::preparation file_preparation(const nn::extent& image) {
  muster::prepare steps(muster::jpeg_options{.height = static_cast<std::uint32_t>(image.height),
                                             .width = static_cast<std::uint32_t>(image.width),
                                             .resize = 0});
  if (image.channels == 1) steps = steps | muster::prepare("greyscale");
  return {steps, {.form = muster::record_form::bytes}};
}

}  // namespace

image_model::image_model(images::loaded_model model, std::size_t max_batch)
    : model_(std::move(model)),
      prepare_(model_.description.preparation, records_of(model_.description)),
      info_{.platform = "muster",
            .input = input_of(records_of(model_.description)),
            .output = {.name = "probabilities", .shape = {model_.description.classes}},
            .classes = model_.description.class_names},
      images_(max_batch * model_.description.input.size()) {
  if (prepare_.output().record_bytes() != model_.description.input.size() * sizeof(float)) {
    throw muster::configuration_error("the model cannot be served (its preparation '" +
                                      model_.description.preparation.text +
                                      "' does not produce images of the network's size); train it on images of equal "
                                      "size, or on JPEG files");
  }
#ifdef MUSTER_HAS_JPEG
  const auto& image = model_.description.input;
  if (info_.input.is_bytes || (image.channels != 1 && image.channels != 3)) return;
  file_.emplace(file_preparation(image));
  pixels_ = muster::buffer<std::byte>(image.size());
  info_.input.takes_files = true;
#endif
}

void image_model::predict_prepared(muster::serve::prediction_batch& batch) {
  for (std::size_t k = 0; k < batch.size(); ++k)
    std::memcpy(images_.data() + k * model_.description.input.size(), batch.row(k).data(), batch.row(k).size());
  answer(batch);
}

void image_model::predict(muster::serve::prediction_batch& batch) {
  const std::size_t size = model_.description.input.size();
  for (std::size_t k = 0; k < batch.size(); ++k) {
    const auto image = images_.span().subspan(k * size, size);
    try {
      prepare_(batch.row(k), std::as_writable_bytes(image));
    } catch (const muster::data_error& bad) {
      std::fill(image.begin(), image.end(), 0.0f);
      batch.refuse(k, bad.problem());
    }
  }
  answer(batch);
}

void image_model::read_file(std::span<const std::byte> file, std::span<std::byte> row) {
  const std::size_t channels = model_.description.input.channels, pixels = row.size() / channels;
  (*file_)(file, channels == 1 ? row : pixels_.span());
  for (std::size_t at = 0; channels > 1 && at < row.size(); ++at)
    row[at] = pixels_.data()[at % pixels * channels + at / pixels];
}

void image_model::answer(muster::serve::prediction_batch& batch) {
  const nn::flush_denormals flush;
  const std::size_t size = model_.description.input.size();
  const auto logits =
      model_.net->forward(images_.span().first(batch.size() * size), {.images = batch.size(), .training = false});
  const std::span probabilities(reinterpret_cast<float*>(batch.output().data()), batch.output().size() / sizeof(float));
  nn::softmax(logits, model_.description.classes, probabilities);
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

combined_model::combined_model(std::vector<muster::serve::any_predictor> models, const std::vector<std::string>& files,
                               combination mode, std::size_t max_batch)
    : models_(std::move(models)), mode_(mode), info_(models_.front().info()) {
  std::size_t labels = 0, most = 0;
  for (std::size_t k = 0; k < models_.size(); ++k) {
    const auto& [platform, input, output, classes] = models_[k].info();
    if (input.name != info_.input.name || input.type != info_.input.type || input.shape != info_.input.shape ||
        input.is_bytes != info_.input.is_bytes) {
      throw muster::configuration_error(files[k] + " and " + files[0] +
                                        " cannot be combined (they have different inputs); remove one model");
    }
    if (mode == combination::mean && (output.shape != info_.output.shape || classes != info_.classes)) {
      throw muster::configuration_error(files[k] + " and " + files[0] +
                                        " have no mean (they have different labels); use --combine union");
    }
    labels += output.elements();
    if (k > 0 && mode == combination::united) info_.classes.insert(info_.classes.end(), classes.begin(), classes.end());
    most = std::max(most, output.elements());
  }
  if (mode == combination::united) info_.output.shape = {labels};
  if (info_.classes.size() != info_.output.elements()) info_.classes.clear();
  info_.platform += mode == combination::mean ? ", mean of " : ", union of ";
  for (std::size_t k = 0; k < files.size(); ++k)
    info_.platform += (k == 0 ? "" : " and ") + std::filesystem::path(files[k]).stem().string();
  answers_ = muster::buffer<float>(max_batch * most);
}

std::size_t combined_model::prepared_bytes() const noexcept {
  std::size_t total = 0;
  for (const auto& model : models_) total += model.prepared_bytes();
  return total;
}

void combined_model::prepare(std::span<const std::byte> row, std::span<std::byte> output) {
  for (auto& model : models_) {
    model.prepare(row, output.first(model.prepared_bytes()));
    output = output.subspan(model.prepared_bytes());
  }
}

void combined_model::predict_members(muster::serve::prediction_batch& batch, bool are_prepared) {
  std::vector<std::span<const std::byte>> rows(batch.size());
  std::size_t begin = 0;  // begin of the model's part in a prepared row
  const std::size_t width = info_.output.elements();
  const std::span all(reinterpret_cast<float*>(batch.output().data()), batch.size() * width);
  std::vector<bool> refused(batch.size());
  std::ranges::fill(all, 0.0f);
  std::size_t first = 0;  // first label of the model in a united output
  for (auto& model : models_) {
    const std::size_t labels = model.info().output.elements();
    const auto answers = answers_.span().first(batch.size() * labels);
    for (std::size_t k = 0; k < rows.size(); ++k)
      rows[k] = are_prepared ? batch.row(k).subspan(begin, model.prepared_bytes()) : batch.row(k);
    begin += model.prepared_bytes();
    muster::serve::prediction_batch part(rows, std::as_writable_bytes(answers));
    are_prepared ? model.predict_prepared(part) : model.predict(part);
    for (const auto& [row, reason] : part.refused()) {
      if (!refused[row]) batch.refuse(row, reason);
      refused[row] = true;
    }
    for (std::size_t row = 0; row < batch.size(); ++row) {
      for (std::size_t k = 0; k < labels; ++k) all[row * width + first + k] += answers[row * labels + k];
    }
    if (mode_ == combination::united) first += labels;
  }
  if (mode_ == combination::mean)
    for (float& each : all) each /= static_cast<float>(models_.size());
}

namespace {

muster::serve::any_predictor load_file(const std::string& path, std::size_t max_batch, int threads) {
  auto file = examples::read_model(path, [](const auto&) {});
  nn::execution execution;
  execution.threads = threads;
  if (file.model != "logistic_regression") return image_model(images::load_model(path, execution), max_batch);
  if (file.numbers.empty()) throw examples::no_model(path, "it has no bias");
  return logistic_model(std::move(file.numbers));
}

}  // namespace

muster::serve::any_predictor load(const std::string& folder, std::size_t max_batch, int threads, combination mode) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".muster" || entry.path().extension() == ".safetensors")
      files.push_back(entry.path().string());
  std::ranges::sort(files);
  if (files.size() < 2) return load_file(files.empty() ? folder + "/model.muster" : files[0], max_batch, threads);
  if (mode == combination::none) {
    throw muster::configuration_error(
        folder + " has " + std::to_string(files.size()) +
        " models (a version serves one model, or a combination); use --combine mean or union");
  }
  std::vector<muster::serve::any_predictor> models;
  for (const std::string& file : files) models.push_back(load_file(file, max_batch, threads));
  return combined_model(std::move(models), files, mode, max_batch);
}

}  // namespace served
