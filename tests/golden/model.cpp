// Writes models as the examples save them, and prints the values in such a model (tests/golden/README.md).
//
//     golden_model write FOLDER       writes FOLDER/line/1/model.muster and FOLDER/net/1/model.muster
//     golden_model FILE               prints the values in a model of images
//     golden_model served FOLDER      prints the predictions of the model in FOLDER/1
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>

#include "model_file.hpp"
#include "saved_model.hpp"
#include "serve/models.hpp"

namespace {

// Returns few different numbers, so that gzip makes the file small.
float number(std::size_t k) { return static_cast<float>((k * 7) % 13) / 64 - 6.0f / 64; }

void write(const std::string& folder) {
  std::filesystem::create_directories(folder + "/line/1");
  std::vector<float> line = {1, -2, 0.5f};
  examples::write_model(folder + "/line/1/model.muster",
                        {{"model", "logistic_regression"}, {"parameters", 3}, {"statistics", 0}},
                        std::vector<examples::model_tensor>{{"numbers", {3}, line}});
  const images::model_description described{.name = "cnn-batch-norm",
                                            .input = {18, 18, 1},
                                            .classes = 5,
                                            .preparation = muster::prepare("normalise,mean=0.5,deviation=0.25")};
  const auto net = images::make_model(described);
  std::vector<float> parameters(net->parameter_count());
  std::size_t at = 0;
  for (std::size_t k = 0; k < net->shapes().size(); ++k) {
    const std::size_t size = net->shapes()[k].size();
    net->bind(k, std::span(parameters).subspan(at, size), {});
    at += size;
  }
  for (std::size_t k = 0; k < parameters.size(); ++k) parameters[k] = number(k);
  for (std::size_t k = 0; k < net->statistics().size(); ++k) net->statistics()[k] = number(k) + 1;
  std::filesystem::create_directories(folder + "/net/1");
  images::save_model(folder + "/net/1/model.muster", described, *net);
}

void print(const std::string& path) {
  const auto model = images::load_model(path);
  const auto& description = model.description;
  std::printf("%s, input %zu x %zu x %zu, %zu classes, preparation '%s'\n", description.name.c_str(),
              description.input.height, description.input.width, description.input.channels, description.classes,
              description.preparation.text.c_str());
  std::printf("%zu parameters, CRC-32C %08x, the first", model.parameters.size(),
              muster::crc32c(std::as_bytes(std::span(model.parameters))));
  for (std::size_t k = 0; k < 8; ++k) std::printf(" %.9g", static_cast<double>(model.parameters[k]));
  std::printf("\n%zu statistics", model.net->statistics().size());
  for (const float value : model.net->statistics()) std::printf(" %.9g", static_cast<double>(value));
  std::vector<float> image(description.input.size());
  for (std::size_t k = 0; k < image.size(); ++k) image[k] = number(k);
  std::printf("\nlogits");  // in few digits: kernels of other processors round differently
  for (const float value : model.net->forward(image, {.images = 1, .training = false}))
    std::printf(" %.3f", static_cast<double>(value));
  std::printf("\n");
}

void print_answers(const std::string& folder) {
  auto model = served::load(folder + "/1", 2, 1, served::combination::none);
  const std::vector<float> rows[] = {{1, 0.75f}, {-2, -0.25f}};
  const std::vector<std::span<const std::byte>> asked = {std::as_bytes(std::span(rows[0])),
                                                         std::as_bytes(std::span(rows[1]))};
  std::vector<float> answers(2);
  muster::serve::prediction_batch batch(asked, std::as_writable_bytes(std::span(answers)));
  model.predict(batch);
  std::printf("%s of %s: %.6f %.6f\n", model.info().output.name.c_str(), model.info().input.name.c_str(),
              static_cast<double>(answers[0]), static_cast<double>(answers[1]));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string_view(argv[1]) == "served") {
      print_answers(argv[2]);
    } else if (argc == 3) {
      write(argv[2]);
    } else {
      print(argv[argc - 1]);
    }
    return 0;
  } catch (...) {
    const auto failure = std::current_exception();
    std::fprintf(stderr, "error: %s\n", muster::describe(failure).c_str());
    return muster::exit_status_of(failure);
  }
}
