// A server that runs in a thread of the test, and its paths.
#pragma once

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include <muster/serve/server.hpp>

#include "client.hpp"
#include "models.hpp"

namespace served {

inline const std::string infer = "/v2/models/sums/infer", predict_path = "/v1/models/sums:predict";

/// A server for the models "sums" and "lengths". It runs in a separate thread.
class running_server {
 public:
  explicit running_server(serve::server_options options = {}, const serve::batch_options& batches = {.max_batch = 8}) {
    for (const char* model : {"sums", "lengths"}) add(model, 1);
    models.emplace(
        folder / "", [this](const std::string& path) { return load(path); }, batches, muster::seconds(1e6));
    models->scan();
    options.listen = "127.0.0.1:0";
    options.drain_on_sigterm = false;
    options.drain_delay = std::min(options.drain_delay, muster::seconds(0.05));
    server.emplace(*models, options);
    thread_ = std::thread([this] { server->run(); });
  }
  ~running_server() {
    gate->release();
    server->drain();
    thread_.join();
  }
  void add(const std::string& model, int version) const {
    std::filesystem::create_directories(folder / ("." + model));
    std::filesystem::create_directories(folder / model);
    std::filesystem::rename(folder / ("." + model), folder / (model + "/" + std::to_string(version)));
  }
  [[nodiscard]] std::uint16_t port() const { return server->port(); }
  /// Sends a request on a new connection, and returns the reply.
  [[nodiscard]] http_answer ask(const std::string& text) const {
    http_client client(port());
    return client.ask(text).value();
  }

  temporary_folder folder;
  std::shared_ptr<prediction_gate> gate = std::make_shared<prediction_gate>();
  std::optional<serve::repository> models;
  std::optional<serve::server> server;

 private:
  serve::any_predictor load(const std::string& path) const {
    if (path.find("lengths") != std::string::npos) return lengths();
    return sums{.factor = std::stof(path.substr(path.rfind('/') + 1)), .gate = gate};
  }
  std::thread thread_;
};

std::string v2(const std::string& shape, const std::string& data, const std::string& more = "") {
  return R"({"inputs":[{"name":"x","datatype":"FP32","shape":)" + shape + R"(,"data":)" + data + "}]" + more + "}";
}
std::string binary_request(const std::string& json, const std::string& behind, const std::string& path = infer) {
  return post(path, json + behind, "Inference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n");
}
std::string binary_json(std::size_t rows, std::size_t size, const std::string& more = "") {
  return R"({"inputs":[{"name":"x","datatype":"FP32","shape":[)" + std::to_string(rows) +
         R"(,2,2],"parameters":{"binary_data_size":)" + std::to_string(size) + "}}]" + more + "}";
}
std::string text_of(const std::vector<float>& numbers) {
  const auto bytes = bytes_of(numbers);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace served
