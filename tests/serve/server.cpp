#include <muster/serve/server.hpp>

#include <atomic>
#include <fstream>
#include <future>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "client.hpp"
#include "data/files.hpp"
#include "heard_log.hpp"
#include "models.hpp"
#include "serve/connection.hpp"

using namespace served;

namespace {

const std::string infer = "/v2/models/sums/infer", predict_path = "/v1/models/sums:predict";

/// A server of the models "sums" and "lengths" with threads of its own.
class running_server {
 public:
  explicit running_server(serve::server_options options = {}, const serve::batch_options& batches = {.max_batch = 8}) {
    for (const char* model : {"sums", "lengths"}) add(model, 1);
    models.emplace(
        folder / "", [this](const std::string& path) { return load(path); }, batches, muster::seconds(1e6));
    models->look();
    options.listen = "127.0.0.1:0";
    options.drain_on_sigterm = false;
    options.drain_delay = std::min(options.drain_delay, muster::seconds(0.05));
    server.emplace(*models, options);
    thread_ = std::thread([this] { server->run(); });
  }
  ~running_server() {
    by->release();
    server->drain();
    thread_.join();
  }
  void add(const std::string& model, int version) const {
    std::filesystem::create_directories(folder / ("." + model));
    std::filesystem::create_directories(folder / model);
    std::filesystem::rename(folder / ("." + model), folder / (model + "/" + std::to_string(version)));
  }
  [[nodiscard]] std::uint16_t port() const { return server->port(); }
  /// The answer to one request on a connection of its own.
  [[nodiscard]] http_answer ask(const std::string& text) const {
    http_client client(port());
    return client.ask(text).value();
  }

  temporary_folder folder;
  std::shared_ptr<control> by = std::make_shared<control>();
  std::optional<serve::repository> models;
  std::optional<serve::server> server;

 private:
  serve::any_predictor load(const std::string& path) const {
    if (path.find("lengths") != std::string::npos) return lengths();
    return sums{.factor = std::stof(path.substr(path.rfind('/') + 1)), .by = by};
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

}  // namespace

TEST_CASE("both protocols, health, metadata and metrics") {
  const running_server running;
  CHECK(running.ask(get("/v2/health/live")).status == 200);
  CHECK(running.ask(get("/v2/health/ready")).status == 200);
  CHECK(running.ask(get("/v2/models/sums/ready")).status == 200);
  CHECK(running.ask(get("/v1/models/sums")).body == R"({"name":"sums","ready":true})");
  CHECK(running.ask(get("/v2")).body.find(R"("extensions":["binary_tensor_data"])") != std::string::npos);
  CHECK(
      running.ask(get("/v2/models/sums/versions/1?a=b")).body ==
      R"({"name":"sums","versions":["1"],"platform":"test","inputs":[{"name":"x","datatype":"FP32","shape":[-1,2,2]}],)"
      R"("outputs":[{"name":"y","datatype":"FP32","shape":[-1,2]}]})");
  CHECK(
      running.ask(post(infer, v2("[1,2,2]", "[0.5,1,2,3]", R"(,"id":"a\"b")"))).body ==
      R"({"model_name":"sums","model_version":"1","id":"a\"b","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],)"
      R"("data":[6.5,0.5]}]})");
  CHECK(running.ask(post(infer, v2("[2,2,2]", "[[[1,1],[1,1]],[[2,2],[2,2]]]"))).status == 200);
  CHECK(running.ask(post("/v2/models/sums/versions/1/infer", v2("[1,2,2]", "[0,1,2,3]"))).status == 200);
  CHECK(running.ask(post(predict_path, R"({"instances":[[[1,1],[1,1]],[[2,2],[2,2.5]]]})")).body ==
        R"({"predictions":[[4,1],[8.5,2]]})");
  CHECK(running.ask(post("/v1/models/lengths:predict", R"({"instances":[{"b64":"YWJjZA=="},{"b64":""}]})")).body ==
        R"({"predictions":[4,0]})");
  const std::string strings = R"({"inputs":[{"name":"text","datatype":"BYTES","shape":[2],)";
  CHECK(running.ask(post("/v2/models/lengths/infer", strings + R"("data":["abc","\u00e4"]}]})")).body.find("[3,2]") !=
        std::string::npos);
  using namespace std::literals;
  CHECK(running
            .ask(binary_request(strings + R"("parameters":{"binary_data_size":11}}]})", "\3\0\0\0abc\0\0\0\0"s,
                                "/v2/models/lengths/infer"))
            .body.find("[3,0]") != std::string::npos);
  const auto metrics = running.ask(get("/metrics")).body;
  for (const char* line :
       {"muster_serve_requests_total{model=\"sums\",status=\"200\"} 7\n",
        "muster_serve_batch_rows_bucket{model=\"lengths\",le=\"2\"} 3\n",
        "muster_serve_request_seconds_count{model=\"sums\"} 7\n", "muster_serve_version{model=\"sums\"} 1\n",
        "muster_serve_waiting_requests{model=\"sums\"} 0\n", "muster_serve_failed_loads_total 0\n"}) {
    INFO(line);
    CHECK(metrics.find(line) != std::string::npos);
  }
}

TEST_CASE("binary tensors come and go bit by bit") {
  const running_server running;
  const std::vector<float> numbers = {0.1f, -0.0f, 1e-40f, 3e38f, 1, 2, 3, 4};
  const auto made = running.ask(binary_request(
      binary_json(2, 32, R"(,"outputs":[{"name":"y","parameters":{"binary_data":true}}])"), text_of(numbers)));
  REQUIRE(made.status == 200);
  const auto at = made.headers.find("Inference-Header-Content-Length: ");
  REQUIRE(at != std::string::npos);
  const auto json = std::stoul(made.headers.substr(at + 33));
  CHECK(made.body.substr(0, json).find(R"("binary_data_size":16)") != std::string::npos);
  CHECK(made.body.substr(json) == text_of({0.1f + -0.0f + 1e-40f + 3e38f, 0.1f, 10, 1}));
  const auto as_json = running.ask(binary_request(binary_json(2, 32), text_of(numbers)));
  CHECK(as_json.body.find("[3e+38,0.1,10,1]") != std::string::npos);
  const auto by_parameter =
      running.ask(post(infer, v2("[1,2,2]", "[1,2,3,4]", R"(,"parameters":{"binary_data_output":true})")));
  CHECK(by_parameter.body.ends_with(text_of({10, 1})));
}

TEST_CASE("bad input is answered with 4xx that names the field") {
  const running_server running({.max_header = 1000, .max_body = 100'000});
  struct row {
    int status;
    std::string field, request;
  };
  const std::string chunked = "POST " + infer + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  const row table[] = {
      {400, "body: is no JSON", post(infer, "{")},
      {400, "body: is no JSON", post(infer, "")},
      {400, "body: is no JSON", post(infer, std::string(5000, '['))},
      {400, "body: is no JSON object", post(infer, "[1]")},
      {400, "inputs: is missing", post(infer, "{}")},
      {415, "Content-Encoding: is gzip, and bodies are read as they are",
       "POST " + infer + " HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"},
      {400, "outputs.parameters.classification: is an extension that is not here",
       post(infer, v2("[1,2,2]", "[1,2,3,4]", R"(,"outputs":[{"name":"y","parameters":{"classification":3}}])"))},
      {400, "inputs: has another number", post(infer, R"({"inputs":[]})")},
      {400, "inputs[0].name: is missing", post(infer, R"({"inputs":[1]})")},
      {400, "inputs[0].name: is no input of the model (it has 'x')", post(infer, R"({"inputs":[{"name":"z"}]})")},
      {400, "inputs[0].datatype: is not FP32",
       post(infer, R"({"inputs":[{"name":"x","datatype":"INT8","shape":[1,2,2],"data":[1,2,3,4]}]})")},
      {400, "inputs[0].shape: is another one than [rows,2,2]", post(infer, v2("[1,2,3]", "[1,2,3,4,5,6]"))},
      {400, "inputs[0].shape: is another one", post(infer, v2("[4]", "[1,2,3,4]"))},
      {400, "inputs[0].shape: has what is no size", post(infer, v2("[-1,2,2]", "[1,2,3,4]"))},
      {400, "inputs[0].shape: has no rows", post(infer, v2("[0,2,2]", "[]"))},
      {400, "inputs[0].shape: has more than 8 rows", post(infer, v2("[9,2,2]", "[]"))},
      {400, "inputs[0].shape: has more than 8 rows", post(infer, v2("[18446744073709551615,2,2]", "[]"))},
      {400, "inputs[0].data: is missing",
       post(infer, R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,2,2]}]})")},
      {400, "inputs[0].data: has 3 values, and its shape 4", post(infer, v2("[1,2,2]", "[1,2,3]"))},
      {400, "inputs[0].data: has more than the 4 values", post(infer, v2("[1,2,2]", "[1,2,3,4,5]"))},
      {400, "inputs[0].data: value 2 is no FP32", post(infer, v2("[1,2,2]", R"([1,2,"3",4])"))},
      {400, "inputs[0].data: value 1 is no FP32", post(infer, v2("[1,2,2]", "[1,1e39,3,4]"))},
      {400, "inputs[0].parameters.binary_data_size: is 12, and 16 bytes",
       binary_request(binary_json(1, 12), text_of({1, 2, 3, 4}))},
      {400, "inputs[0].parameters.binary_data_size: is 16, and the shape has 32",
       binary_request(binary_json(2, 16), text_of({1, 2, 3, 4}))},
      {400, "inputs[0].parameters.binary_data_size: is no size",
       post(infer,
            R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,2,2],"parameters":{"binary_data_size":-1}}]})")},
      {400, "inputs[0].parameters.binary_data_size: is missing", binary_request(v2("[1,2,2]", "[1,2,3,4]"), "1234")},
      {400, "Inference-Header-Content-Length: is 9, and the body has 2",
       post(infer, "{}", "Inference-Header-Content-Length: 9\r\n")},
      {400, "Inference-Header-Content-Length: is no size", post(infer, "{}", "Inference-Header-Content-Length: x\r\n")},
      {400, "outputs.name: is no output", post(infer, v2("[1,2,2]", "[1,2,3,4]", R"(,"outputs":[{"name":"z"}])"))},
      {400, "parameters.binary_data_output: is neither",
       post(infer, v2("[1,2,2]", "[1,2,3,4]", R"(,"parameters":{"binary_data_output":1})"))},
      {400, "inputs[0], row 1: begins with -1", post(infer, v2("[2,2,2]", "[1,2,3,4,-1,2,3,4]"))},
      {500, "model: a row begins with -2", post(infer, v2("[1,2,2]", "[-2,2,3,4]"))},
      {400, "instances: is missing", post(predict_path, "{}")},
      {400, "instances: has no rows", post(predict_path, R"({"instances":[]})")},
      {400, "instances[1]: an array has less than 2",
       post(predict_path, R"({"instances":[[[1,1],[1,1]],[[1,1],[1]]]})")},
      {400, "instances[0]: an array has more than 2", post(predict_path, R"({"instances":[[[1,1],[1,1,1]]]})")},
      {400, "instances[0]: has too few dimensions", post(predict_path, R"({"instances":[[1,1,1,1]]})")},
      {400, "instances[0]: value 3 is no FP32", post(predict_path, R"({"instances":[[[1,1],[1,null]]]})")},
      {400, "instances[0]: begins with -1", post(predict_path, R"({"instances":[[[-1,1],[1,1]]]})")},
      {400, "instances[0].b64: is no base64", post("/v1/models/lengths:predict", R"({"instances":[{"b64":"YW="}]})")},
      {400, "instances[0].b64: is missing", post("/v1/models/lengths:predict", R"({"instances":["YWJj"]})")},
      {404, "model: 'none' is not served", post("/v2/models/none/infer", "{}")},
      {404, "model: 'none' is not served", get("/v1/models/none")},
      {404, "version: 7 is not served (1 is)", get("/v2/models/sums/versions/7")},
      {404, "path: nothing", get("/")},
      {404, "path: nothing", get("/v2/models/sums/versions/x")},
      {404, "path: nothing", get("/v2/models/")},
      {405, "method: is not POST", get(infer)},
      {405, "method: is not GET", post("/metrics", "")},
      {405, "method: is neither", "DELETE /v2 HTTP/1.1\r\n\r\n"},
      {400, "request: is no HTTP/1.1", "hello\r\n\r\n"},
      {400, "request: is no HTTP/1.1", "POST /v2 HTTP/1.1\r\nContent-Length: 1x\r\n\r\n"},
      {400, "request: is no HTTP/1.1", chunked + "zz\r\n"},
      {400, "request: is no HTTP/1.1", chunked + "1;" + std::string(std::size_t{4} << 20, 'a')},
      {400, "request: is no HTTP/1.1", chunked + "0\r\na: " + std::string(std::size_t{4} << 20, 'a')},
      {400, "Transfer-Encoding: is not chunked", "POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n"},
      {431, "headers: have more than 1000", "GET /v2 HTTP/1.1\r\na: " + std::string(2000, 'b') + "\r\n\r\n"},
      {413, "body: has more than 100000", "POST " + infer + " HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n"},
      {413, "body: has more than 100000", post(infer, std::string(300'000, ' '))},
      {413, "body: has more than 100000", chunked + "30000\r\n" + std::string(0x30000, ' ') + "\r\n0\r\n\r\n"},
      {413, "body: has more than 100000",
       "POST " + infer + " HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1000000000\r\n\r\n"},
  };
  for (const auto& each : table) {
    INFO(each.request.substr(0, 300));
    const auto made = running.ask(each.request);
    CHECK(made.status == each.status);
    CHECK_THAT(made.body, contains(R"({"error":")" + each.field));
  }
  // What follows is a body to a proxy that reads it otherwise: it is no request.
  http_client unclear(running.port());
  REQUIRE(unclear.send("POST " + infer + " HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n" + get("/v2")));
  const auto refused = unclear.receive().value();
  CHECK(refused.status == 400);
  CHECK(refused.closes());
  CHECK(unclear.is_closed());
  CHECK(running.ask(post(infer, v2("[1,2,2]", "[1,2,3,4]"))).status == 200);
}

TEST_CASE("a connection takes one request after another, pipelined or a byte at a time") {
  const running_server running;
  http_client client(running.port());
  std::string all;
  for (int k = 0; k < 20; ++k) {
    const std::string number = std::to_string(k);
    all += k % 3 == 0 ? get("/v2/models/sums/ready") : post(infer, v2("[1,2,2]", "[" + number + ",0,0,0]"));
    if (k == 10) all += post(infer, "{");  // an error that is understood does not end the connection
  }
  REQUIRE(client.send(all));
  for (int k = 0; k < 20; ++k) {
    const auto made = client.receive().value();
    CHECK(made.status == 200);
    const std::string number = std::to_string(k);
    if (k % 3 != 0) CHECK(made.body.find("[" + number + "," + number + "]") != std::string::npos);
    if (k == 10) CHECK(client.receive().value().status == 400);
  }
  const std::string request = "POST " + predict_path + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n" +
                              R"({"instances":[[[1,1])" + "\r\nA\r\n,[1,1]]]} \r\n0\r\n\r\n";
  for (const char byte : request) REQUIRE(client.send({&byte, 1}));
  CHECK(client.receive().value().body == R"({"predictions":[[4,1]]})");
  CHECK(client.ask("HEAD /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n") == std::nullopt);  // no body behind it
  http_client patient(running.port());
  REQUIRE(patient.send("POST " + predict_path + " HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 31\r\n\r\n"));
  CHECK(patient.receive().value().status == 100);
  const auto made = patient.ask(R"({"instances":[[[1,1],[1,1]]]}  )").value();
  CHECK(made.status == 200);
  CHECK(made.closes());
  CHECK(patient.is_closed());
}

TEST_CASE("headers and bodies that do not end, and predictions that take too long, are answered in time") {
  const running_server running({.header_timeout = muster::seconds(0.2),
                                .request_timeout = muster::seconds(0.4),
                                .idle_timeout = muster::seconds(0.2)});
  const auto slowly = [&](const std::string& begin, const std::string& then) {
    http_client client(running.port());
    client.send(begin);
    std::thread sends([&] {
      while (client.send(then)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    });
    auto made = client.receive().value();
    while (!client.is_closed()) (void)client.receive();
    sends.join();
    return made;
  };
  const auto headers = slowly("GET /v2 HTTP/1.1\r\n", "a: b\r\n");
  CHECK(headers.status == 408);
  CHECK_THAT(headers.body, contains("headers: did not end in time"));
  const auto body = slowly("POST " + infer + " HTTP/1.1\r\nContent-Length: 10000\r\n\r\n", " ");
  CHECK(body.status == 408);
  CHECK_THAT(body.body, contains("body: did not end in time"));
  running.by->hold();
  http_client client(running.port());
  const auto late = client.ask(post(infer, v2("[1,2,2]", "[1,2,3,4]"))).value();
  CHECK(late.status == 504);
  CHECK(client.is_closed());
  http_client queued(running.port());
  CHECK(queued.ask(post(infer, v2("[1,2,2]", "[1,2,3,4]"))).value().status == 504);
  running.by->release();
  CHECK(running.ask(post(infer, v2("[1,2,2]", "[1,2,3,4]"))).status == 200);
  http_client idle(running.port());
  CHECK(idle.ask(get("/v2")).value().status == 200);
  CHECK(idle.is_closed());
  http_client silent(running.port());
  CHECK(silent.is_closed());
}

TEST_CASE("a body that comes faster than it is read is given up in time too, and the server drains") {
  std::optional<running_server> running;
  running.emplace(serve::server_options{.request_timeout = muster::seconds(0.2)});
  http_client client(running->port());
  REQUIRE(client.send("POST " + infer + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"));
  std::string chunks;  // of a byte each, so that the body stays small
  for (int k = 0; k < 64; ++k) chunks.append("1;").append(1000, 'a').append("\r\n \r\n");
  const auto began = muster::clock::now();
  while (muster::seconds_since(began) < 1 && client.send(chunks)) {
  }
  running.reset();         // although the client sends no more, and stays
  (void)client.receive();  // 408, if a pause of the client let it through
  CHECK(client.is_closed());
}

TEST_CASE("a connection that timed out ends in its own thread, when the model has done with it") {
  namespace asio = boost::asio;
  constexpr std::size_t count = 4;
  const temporary_folder folder;
  std::filesystem::create_directories(folder / "sums/1");
  const auto by = std::make_shared<control>();
  std::promise<void> heard;
  const auto all_heard = heard.get_future();
  std::optional<serve::repository> models;
  models.emplace(
      folder / "", [&](const std::string&) -> serve::any_predictor { return sums{.by = by}; },
      serve::batch_options{.max_batch = 8}, muster::seconds(1e6));
  models->look();
  serve::server_shared shared{.models = *models, .options = {.request_timeout = muster::seconds(1)}};
  std::mutex mutex;
  std::vector<std::thread::id> ended_in;
  const auto ended = [&] {
    const std::lock_guard lock(mutex);
    return ended_in.size();
  };
  serve::connection_set set;
  set.on_end = [&] {
    const std::lock_guard lock(mutex);
    ended_in.push_back(std::this_thread::get_id());
  };
  asio::io_context io{1};
  asio::ip::tcp::acceptor acceptor(io, asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  std::vector<std::unique_ptr<http_client>> clients;
  std::vector<std::weak_ptr<serve::connection>> connections;
  for (std::size_t k = 0; k < count; ++k) {
    clients.push_back(std::make_unique<http_client>(acceptor.local_endpoint().port()));
    const auto made = std::make_shared<serve::connection>(acceptor.accept(), shared, set);
    made->start();
    connections.push_back(made);
  }
  auto work = asio::make_work_guard(io);
  std::thread thread([&] { io.run(); });
  const auto own_thread = thread.get_id();

  auto model = models->find("sums");
  const std::vector<float> numbers = {1, 2, 3, 4};
  const std::span<const std::byte> rows[] = {bytes_of(numbers)};
  by->hold();
  CHECK(model->requests.submit({rows, muster::clock::now() + std::chrono::hours(1), [](serve::prediction&&) {}}));
  by->await_held();
  for (const auto& each : clients) CHECK(each->send(post(infer, v2("[1,2,2]", "[1,2,3,4]"))));
  for (const auto& each : clients) CHECK(each->receive().value_or(http_answer()).status == 504);
  clients.clear();
  for (const auto& each : connections) {
    while (each.use_count() > 1) std::this_thread::yield();  // the model's request alone has it
  }
  // The last one that expires returns once the thread of the connections has heard of those before it. Only then does
  // the model forget them all.
  CHECK(model->requests.submit({rows, muster::clock::now() - std::chrono::hours(1), [&](serve::prediction&&) {
                                  asio::post(io, [&] { heard.set_value(); });
                                  all_heard.wait();
                                }}));
  by->release();
  all_heard.wait();
  while (ended() < count) std::this_thread::yield();
  model.reset();
  models.reset();  // and the thread of the model
  work.reset();
  thread.join();
  CHECK(ended_in == std::vector<std::thread::id>(count, own_thread));
}

TEST_CASE("what exceeds the queue is refused with a time to come back") {
  const running_server running({.threads = 2}, {.max_batch = 1, .queue = 2});
  running.by->hold();
  const std::string request = post(infer, v2("[1,2,2]", "[1,2,3,4]"));
  http_client first(running.port());
  first.send(request);
  running.by->await_held();
  http_client a(running.port()), b(running.port());
  a.send(request);
  b.send(request);
  while (running.models->find("sums")->requests.waiting() < 2) std::this_thread::yield();
  const auto made = running.ask(request);
  CHECK(made.status == 503);
  CHECK_THAT(made.headers, contains("Retry-After: 1\r\n"));
  CHECK_THAT(made.body, contains("model: its queue is full"));
  CHECK(running.ask(get("/v2/health/ready")).status == 200);
  running.by->release();
  for (auto* each : {&first, &a, &b}) CHECK(each->receive().value().status == 200);
}

TEST_CASE("connections beyond the limit wait to be accepted") {
  const running_server running({.max_connections = 2});
  auto a = std::make_unique<http_client>(running.port()), b = std::make_unique<http_client>(running.port());
  CHECK(a->ask(get("/v2")).value().status == 200);
  CHECK(b->ask(get("/v2")).value().status == 200);
  http_client c(running.port());
  REQUIRE(c.send(get("/v2")));
  CHECK(b->ask(get("/v2")).value().status == 200);
  a.reset();
  CHECK(c.receive().value().status == 200);
}

namespace {

/// Clients that ask as fast as they can until the server is away.
struct clients {
  std::atomic<int> requests{0}, failed{0};
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;

  clients(std::uint16_t port, int count) {
    for (int t = 0; t < count; ++t) threads.emplace_back([this, port, t] { work(port, t); });
  }
  ~clients() { join(); }
  void await(int more) const {
    const int seen = requests;
    while (requests < seen + more) std::this_thread::yield();
  }
  void join() {
    ends = true;
    for (auto& each : threads) {
      if (each.joinable()) each.join();
    }
  }

 private:
  void work(std::uint16_t port, int t) {
    const std::string number = std::to_string(t);
    const std::string request = post(infer, v2("[1,2,2]", "[" + number + ",0,0,0]"));
    std::optional<http_client> client;
    while (!ends) {
      try {
        if (!client) client.emplace(port);
      } catch (const std::runtime_error&) {
        return;  // nothing listens there any more
      }
      const auto made = client->ask(request);
      ++requests;
      if (!made || made->status != 200) {
        ++failed;
        return;
      }
      const auto at = made->body.find("\"model_version\":\"") + 17;
      const int version = std::stoi(made->body.substr(at));
      if (made->body.find("[" + std::to_string(version * t) + "," + number + "]") == std::string::npos) ++failed;
      if (made->closes()) client.reset();
    }
  }
};

}  // namespace

TEST_CASE("a model is swapped under load without a failed request") {
  running_server running({.threads = 2});
  clients load(running.port(), 4);
  for (int version = 2; version <= 12; ++version) {
    running.add("sums", version);
    running.models->look();
    load.await(20);
  }
  load.join();
  CHECK(load.failed == 0);
  CHECK(running.ask(get("/v2/models/sums")).body.find(R"("versions":["12"])") != std::string::npos);
}

TEST_CASE("a server drains under load without a failed request, and run returns") {
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::optional<running_server> running;
    running.emplace(serve::server_options{.threads = 2});
    http_client idle(running->port());
    CHECK(idle.ask(get("/v2")).value().status == 200);
    clients load(running->port(), 4);
    load.await(50);
    const auto port = running->port();
    running.reset();
    CHECK(idle.is_closed());
    load.join();
    CHECK(load.failed == 0);
    CHECK_THROWS(http_client(port));
  }
}

TEST_CASE("a server that drains is not ready, and closes after each answer") {
  running_server running({.drain_delay = muster::seconds(0.05)});
  running.by->hold();
  http_client slow(running.port()), other(running.port());
  slow.send(post(infer, v2("[1,2,2]", "[1,2,3,4]")));
  CHECK(other.ask(get("/v2")).value().status == 200);
  running.by->await_held();
  running.server->drain();
  const auto made = other.ask(get("/v2/health/ready"));
  if (made) {  // else the delay had passed
    CHECK(made->status == 503);
    CHECK(made->closes());
  }
  running.by->release();
  const auto answered = slow.receive().value();
  CHECK(answered.status == 200);
  CHECK(answered.closes());
}

TEST_CASE("an address that cannot be listened at is refused") {
  const temporary_folder folder;
  serve::repository models(folder / "", [](const std::string&) -> serve::any_predictor { return lengths(); });
  for (const char* address : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "192.0.2.1:80", "[::1:80"}) {
    INFO(address);
    CHECK_THROWS_AS(serve::server(models, {.listen = address}), muster::configuration_error);
  }
}
