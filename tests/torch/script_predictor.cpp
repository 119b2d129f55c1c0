// Models of TorchScript that muster::serve serves.
#include <muster/torch/script_predictor.hpp>

#include <filesystem>
#include <fstream>

#include <muster/core/error.hpp>
#include <muster/serve/repository.hpp>

#include "../data/files.hpp"
#include "torch_catch.hpp"

namespace serve = muster::serve;

namespace {

serve::model_info doubling() {
  return {.platform = "",
          .input = {.name = "points", .shape = {2, 3}},
          .output = {.name = "sums", .shape = {2}},
          .classes = {"first row", "second row"}};
}

// Returns a module that multiplies the sums of rows by its parameter.
torch::jit::Module script(float factor) {
  torch::jit::Module module("sums");
  module.register_parameter("factor", torch::full({1}, factor), false);
  module.define("def forward(self, x):\n  return x.sum(2) * self.factor\n");
  return module;
}

std::vector<float> predict(serve::any_predictor& model, const std::vector<std::vector<float>>& rows) {
  std::vector<std::span<const std::byte>> bytes;
  for (const auto& row : rows) bytes.push_back(std::as_bytes(std::span(row)));
  std::vector<float> output(2 * rows.size());
  serve::prediction_batch batch(bytes, std::as_writable_bytes(std::span(output)));
  model.predict(batch);
  return output;
}

}  // namespace

TEST_CASE("a saved script predicts batches of rows, with its description") {
  const temporary_folder folder;
  muster::torch::save_script(script(2), folder / "model.pt", doubling());
  auto model = muster::torch::load_script(folder / "");
  CHECK(model.info().platform == "torchscript");
  CHECK(model.info().input.name == "points");
  CHECK(model.info().input.shape == std::vector<std::size_t>{2, 3});
  CHECK(model.info().output.type == muster::dtype::float32);
  CHECK(model.info().classes == doubling().classes);
  CHECK(predict(model, {{1, 2, 3, 4, 5, 6}, {0, 0, 1, 0, 0, 2}}) == std::vector<float>{12, 30, 2, 4});
  CHECK(predict(model, {{1, 0, 0, 1, 0, 0}}) == std::vector<float>{2, 2});
  CHECK(torch::jit::load(folder / "model.pt").forward({torch::ones({1, 2, 3})}).toTensor()[0][0].item<float>() == 6);
}

TEST_CASE("a repository serves versions of scripts, and skips damaged ones") {
  const temporary_folder folder;
  const auto add = [&](int version, const auto& write) {
    const auto at = std::filesystem::path(folder / "sums") / std::to_string(version);
    std::filesystem::create_directories(at.string() + ".new");
    write(at.string() + ".new/model.pt");
    std::filesystem::rename(at.string() + ".new", at);
  };
  add(1, [](const std::string& file) { muster::torch::save_script(script(3), file, doubling()); });
  serve::repository models(folder / "", muster::torch::load_script, {}, muster::seconds(1e6));
  models.scan();
  REQUIRE(models.find("sums") != nullptr);
  CHECK(models.find("sums")->version == 1);
  add(2, [](const std::string& file) { std::ofstream(file) << "no archive"; });
  add(3, [](const std::string& file) { script(1).save(file); });
  models.scan();
  CHECK(models.find("sums")->version == 1);
  CHECK(models.failed_loads() == 2);
  add(4, [](const std::string& file) { muster::torch::save_script(script(1), file, doubling()); });
  models.scan();
  CHECK(models.find("sums")->version == 4);
}

TEST_CASE("files that are no scripts, and outputs of other shapes, are told") {
  const temporary_folder folder;
  std::ofstream(folder / "model.pt") << "no archive";
  CHECK_THROWS_WITH(muster::torch::load_script(folder / ""), contains("model.pt: is no model of TorchScript") ||
                                                                 contains("model.pt is no model of TorchScript"));
  script(1).save(folder / "model.pt");
  CHECK_THROWS_WITH(muster::torch::load_script(folder / ""), contains("describes no tensor by ''"));
  auto other = doubling();
  other.output.shape = {3};
  muster::torch::save_script(script(1), folder / "model.pt", other);
  auto model = muster::torch::load_script(folder / "");
  std::vector<float> row(6), output(3);
  const std::vector<std::span<const std::byte>> rows{std::as_bytes(std::span(row))};
  serve::prediction_batch batch(rows, std::as_writable_bytes(std::span(output)));
  CHECK_THROWS_WITH(model.predict(batch), contains("a model of TorchScript returned float32[1x2] for 1 rows"));
}
