#include "../../../examples/serve/models.hpp"

#include <filesystem>
#include <thread>

#include <muster/core/log.hpp>
#include <muster/serve/server.hpp>

#include "../../../examples/model_file.hpp"
#include "catch.hpp"
#include "data.hpp"
#include "data/files.hpp"
#include "loss.hpp"
#include "processor.hpp"
#include "serve/client.hpp"
#include "serve/models.hpp"

namespace {

/// Saves a network with random parameters as a version of "net".
void save_network(const temporary_folder& folder, const images::model_description& description) {
  const auto net = images::make_model(description);
  std::vector<float> parameters(net->parameter_count());
  std::size_t at = 0;
  for (std::size_t k = 0; k < net->shapes().size(); ++k) {
    const std::size_t size = net->shapes()[k].size();
    net->bind(k, std::span(parameters).subspan(at, size), {});
    at += size;
  }
  net->initialise(3);
  std::filesystem::create_directories(folder / "net/1");
  images::save_model(folder / "net/1/model.muster", description, *net);
}

/// A server of the models in a folder.
class running_server {
 public:
  explicit running_server(const temporary_folder& folder)
      : models_(
            folder / "", [](const std::string& path) { return served::load(path, 32); }, {.max_batch = 32},
            muster::seconds(1e6)) {
    models_.scan();
    server_.emplace(models_,
                    muster::serve::server_options{
                        .listen = "127.0.0.1:0", .drain_delay = muster::seconds(0.01), .drain_on_sigterm = false});
    thread_ = std::thread([this] { server_->run(); });
  }
  ~running_server() {
    server_->drain();
    thread_.join();
  }
  [[nodiscard]] served::http_answer ask(const std::string& text) const {
    served::http_client client(server_->port());
    return client.ask(text).value();
  }

 private:
  muster::serve::repository models_;
  std::optional<muster::serve::server> server_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("served probabilities are bitwise those of the same batch offline") {
  const temporary_folder folder;
  const auto data = images::open_images("cifar-like:100", "", 5);
  for (const char* name : {"cnn", "cnn-batch-norm", "resnet20-v1-B"}) {
    INFO(name);
    save_network(folder, {.name = name, .input = {32, 32, 3}, .preparation = data.preparation});
    const running_server running(folder);
    for (const std::size_t rows : {1u, 7u, 20u}) {
      const auto model = images::load_model(folder / "net/1/model.muster");
      auto batches = images::test_loader(data, muster::batch(rows));
      const auto batch = batches.next({0, 1});
      const nn::flush_denormals flush;
      const auto logits = model.net->forward(batch.values<float>(), {.images = rows, .training = false});
      std::vector<float> offline(logits.size());
      nn::softmax(logits, 10, offline);

      std::string pixels(rows * 3072, '\0');
      data.test.read(batch.samples, {std::as_writable_bytes(std::span(pixels)), {}});
      const std::string json =
          R"({"parameters":{"binary_data_output":true},"inputs":[{"name":"image","datatype":"UINT8","shape":[)" +
          std::to_string(rows) + R"(,3,32,32],"parameters":{"binary_data_size":)" + std::to_string(pixels.size()) +
          "}}]}";
      const auto reply =
          running.ask(served::post("/v2/models/net/infer", json + pixels,
                                   "Inference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n"));
      REQUIRE(reply.status == 200);
      const auto online = reply.body.substr(reply.body.size() - rows * 40);
      CHECK(std::memcmp(online.data(), offline.data(), online.size()) == 0);
    }
  }
}

#ifdef MUSTER_HAS_JPEG
TEST_CASE("a model of JPEG files takes them whole, and refuses others by their row") {
  const temporary_folder folder;
  save_network(folder, {.name = "cnn",
                        .input = {32, 32, 3},
                        .preparation = muster::prepare("jpeg:32x32,resize=36|normalise,mean=0.5,deviation=0.25")});
  const running_server running(folder);
  const std::string jpeg =
      "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8yb"
      "qmx5moq6T/wAALCAAQABABAREA/8QAFQABAQAAAAAAAAAAAAAAAAAABAX/xAAmEAAAAgYLAAAAAAAAAAAAAAAAEQIEEiJDYgMFBhMUMkFScaHh"
      "/9oACAEBAAA/AGUCxmd7BbMqrOJf26ciIivMQzOYJSrK+gkU3g//2Q==";
  const std::string path = "/v1/models/net:predict", before = R"({"instances":[{"b64":")", behind = "\"}]}";
  CHECK(running.ask(served::post(path, before + jpeg + behind)).status == 200);
  const auto cut = running.ask(served::post(path, before + jpeg.substr(0, 100) + behind));
  CHECK(cut.status == 400);
  CHECK_THAT(cut.body, contains("instances[0]: is not a complete JPEG (it has no end marker)"));
  // 16 x 16 pixels become 50,000 x 50,000: the height and the width follow 0xFFC0, in the frame header.
  std::string huge = jpeg;
  huge.replace(huge.find("wAALCAAQABAB"), 12, "wAALCMNQw1AB");
  const auto refused = running.ask(served::post(path, before + huge + behind));
  CHECK(refused.status == 400);
  CHECK_THAT(refused.body, contains("instances[0]: is too expensive to decode (it has "));
  // A progressive file of 169 bytes: each scan would cover 8,192 x 8,192 pixels.
  using namespace std::literals;
  std::string scans = "\xff\xd8\xff\xc2\0\x0b\x08\x20\0\x20\0\1\1\x11\0"s;
  for (int k = 0; k < 14; ++k) scans += "\xff\xda\0\x08\1\1\0\0\0\0\0"s;
  scans += "\xff\xd9";
  const std::string tensor = {static_cast<char>(scans.size()), 0, 0, 0};
  const std::string head =
      R"({"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":)" +
      std::to_string(4 + scans.size()) + "}}]}";
  const auto bomb =
      running.ask(served::post("/v2/models/net/infer", head + tensor + scans,
                               "Inference-Header-Content-Length: " + std::to_string(head.size()) + "\r\n"));
  CHECK(bomb.status == 400);
  CHECK_THAT(bomb.body, contains("row 0: is too expensive to decode (it has 14 scans of 67108864 pixels)"));
  CHECK(running.ask(served::post(path, before + jpeg + "\"},{\"b64\":\"" + jpeg.substr(0, 100) + behind))
            .body.find("instances[1]") != std::string::npos);
}

#endif

TEST_CASE("a logistic regression is served, and a model file that is damaged is not") {
  const temporary_folder folder;
  std::vector<float> numbers = {1, -2, 0.5f};
  std::filesystem::create_directories(folder / "line/1");
  examples::write_model(folder / "line/1/model.muster",
                        {{"model", "logistic_regression"}, {"parameters", 3}, {"statistics", 0}},
                        std::vector<examples::model_tensor>{{"weight", {2}, std::span(numbers).first(2)},
                                                            {"bias", {}, std::span(numbers).last(1)}});
  std::filesystem::create_directories(folder / "tensors/1");
  examples::write_model(folder / "tensors/1/model.safetensors",
                        {{"model", "logistic_regression"}, {"parameters", 3}, {"statistics", 0}},
                        std::vector<examples::model_tensor>{{"weight", {2}, std::span(numbers).first(2)},
                                                            {"bias", {}, std::span(numbers).last(1)}});
  std::filesystem::copy(folder / "line", folder / "cut", std::filesystem::copy_options::recursive);
  std::filesystem::resize_file(folder / "cut/1/model.muster", 90);
  muster::set_log_level(muster::log_level::off, false);
  const running_server running(folder);
  muster::set_log_level(muster::log_level::warning, false);
  CHECK(running.ask(served::post("/v1/models/line:predict", R"({"instances":[[1,0.75],[-0.5,0]]})")).body ==
        R"({"predictions":[0.5,0.5]})");
  CHECK(running.ask(served::post("/v1/models/tensors:predict", R"({"instances":[[1,0.75],[-0.5,0]]})")).body ==
        R"({"predictions":[0.5,0.5]})");
  CHECK(running.ask(served::get("/v2/models/cut")).status == 404);
}
