// Tests of malformed input, of slow clients and clients that disconnect, and of slow models.
#include <future>
#include <map>
#include <string>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include "catch.hpp"
#include "heard_log.hpp"
#include "running_server.hpp"
#include "serve/http_connection.hpp"

using namespace served;

TEST_CASE("bad input is answered with 4xx that names the field") {
  const running_server running({.max_header = 1000, .max_body = 100'000});
  struct row {
    int status;
    std::string field, request;
  };
  const std::string chunked = "POST " + infer + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  const row table[] = {
      {400, "body: is not JSON", post(infer, "{")},
      {400, "body: is not JSON", post(infer, "")},
      {400, "body: is not JSON", post(infer, std::string(5000, '['))},
      {400, "body: is not a JSON object", post(infer, "[1]")},
      {400, "inputs: is missing", post(infer, "{}")},
      {415, "Content-Encoding: is gzip, but bodies are not decoded",
       "POST " + infer + " HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"},
      {400, "outputs.parameters.classification: is an unsupported extension",
       post(infer, v2("[1,2,2]", "[1,2,3,4]", R"(,"outputs":[{"name":"y","parameters":{"classification":3}}])"))},
      {400, "inputs: does not have exactly one element", post(infer, R"({"inputs":[]})")},
      {400, "inputs[0].name: is missing", post(infer, R"({"inputs":[1]})")},
      {400, "inputs[0].name: is not an input of the model (it has 'x')", post(infer, R"({"inputs":[{"name":"z"}]})")},
      {400, "inputs[0].datatype: is not FP32",
       post(infer, R"({"inputs":[{"name":"x","datatype":"INT8","shape":[1,2,2],"data":[1,2,3,4]}]})")},
      {400, "inputs[0].shape: is not [rows,2,2]", post(infer, v2("[1,2,3]", "[1,2,3,4,5,6]"))},
      {400, "inputs[0].shape: is not [rows,2,2]", post(infer, v2("[4]", "[1,2,3,4]"))},
      {400, "inputs[0].shape: has an element that is not a size", post(infer, v2("[-1,2,2]", "[1,2,3,4]"))},
      {400, "inputs[0].shape: has no rows", post(infer, v2("[0,2,2]", "[]"))},
      {400, "inputs[0].shape: has more than 8 rows", post(infer, v2("[9,2,2]", "[]"))},
      {400, "inputs[0].shape: has more than 8 rows", post(infer, v2("[18446744073709551615,2,2]", "[]"))},
      {400, "inputs[0].data: is missing",
       post(infer, R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,2,2]}]})")},
      {400, "inputs[0].data: has 3 values, but its shape has 4", post(infer, v2("[1,2,2]", "[1,2,3]"))},
      {400, "inputs[0].data: has more than the 4 values", post(infer, v2("[1,2,2]", "[1,2,3,4,5]"))},
      {400, "inputs[0].data: an array has more than 2", post(infer, v2("[2,2,2]", "[[[1,2,3],[4]],[[5,6],[7,8]]]"))},
      {400, "inputs[0].data: an array has fewer than 2", post(infer, v2("[2,2,2]", "[[[1,2],[3]],[[4,5],[6,7,8]]]"))},
      {400, "inputs[0].data: an array has fewer than 2",
       post(infer, v2("[2,2,2]", "[[[1],[2]],[[3],[4]],[[5],[6]],[[7],[8]]]"))},
      {400, "inputs[0].data: an array has more than 2", post(infer, v2("[2,2,2]", "[[[1,2,3,4],[5,6,7,8]]]"))},
      {400, "inputs[0].data: has too few dimensions", post(infer, v2("[2,2,2]", "[[1,2,3,4],[5,6,7,8]]"))},
      {400, "inputs[0].data: has too few dimensions", post(infer, v2("[1,2,2]", "[[1,2],3,4]"))},
      {400, "inputs[0].data: value 2 is not FP32", post(infer, v2("[1,2,2]", "[1,2,[3,4]]"))},
      {400, "inputs[0].data: value 0 is not FP32", post(infer, v2("[1,2,2]", "[[[[1],[2]],[[3],[4]]]]"))},
      {400, "inputs[0].data: is not an array", post(infer, v2("[1,2,2]", "1"))},
      {400, "inputs[0].parameters: is not an object",
       post(infer, R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,2,2],"data":[1,2,3,4],"parameters":[]}]})")},
      {400, "id: is missing or not a string", post(infer, v2("[1,2,2]", "[1,2,3,4]", R"(,"id":7)"))},
      {400, "inputs[0].data: value 2 is not FP32", post(infer, v2("[1,2,2]", R"([1,2,"3",4])"))},
      {400, "inputs[0].data: value 1 is not FP32", post(infer, v2("[1,2,2]", "[1,1e39,3,4]"))},
      {400, "inputs[0].parameters.binary_data_size: is 12, but 16 bytes",
       binary_request(binary_json(1, 12), text_of({1, 2, 3, 4}))},
      {400, "inputs[0].parameters.binary_data_size: is 16, but the shape has 32",
       binary_request(binary_json(2, 16), text_of({1, 2, 3, 4}))},
      {400, "inputs[0].parameters.binary_data_size: is not a size",
       post(infer,
            R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,2,2],"parameters":{"binary_data_size":-1}}]})")},
      {400, "inputs[0].parameters.binary_data_size: is missing", binary_request(v2("[1,2,2]", "[1,2,3,4]"), "1234")},
      {400, "Inference-Header-Content-Length: is 9, but the body has 2",
       post(infer, "{}", "Inference-Header-Content-Length: 9\r\n")},
      {400, "Inference-Header-Content-Length: is not a size",
       post(infer, "{}", "Inference-Header-Content-Length: x\r\n")},
      {400, "outputs.name: is not an output", post(infer, v2("[1,2,2]", "[1,2,3,4]", R"(,"outputs":[{"name":"z"}])"))},
      {400, "parameters.binary_data_output: is neither",
       post(infer, v2("[1,2,2]", "[1,2,3,4]", R"(,"parameters":{"binary_data_output":1})"))},
      {400, "inputs[0], row 1: begins with -1", post(infer, v2("[2,2,2]", "[1,2,3,4,-1,2,3,4]"))},
      {500, "model: a row begins with -2", post(infer, v2("[1,2,2]", "[-2,2,3,4]"))},
      {400, "instances: is missing", post(predict_path, "{}")},
      {400, "inputs: has rows by columns", post(predict_path, R"({"inputs":[[[1,1],[1,1]]]})")},
      {400, "inputs: has rows by columns",
       post(predict_path, R"({"instances":[[[1,1],[1,1]]],"inputs":[[[2,2],[2,2]]]})")},
      {400, "signature_name: is not serving_default",
       post(predict_path, R"({"instances":[[[1,1],[1,1]]],"signature_name":"classify"})")},
      {400, "signature_name: is missing or not a string",
       post(predict_path, R"({"instances":[[[1,1],[1,1]]],"signature_name":7})")},
      {400, "instances: has no rows", post(predict_path, R"({"instances":[]})")},
      {400, "instances[1]: an array has fewer than 2",
       post(predict_path, R"({"instances":[[[1,1],[1,1]],[[1,1],[1]]]})")},
      {400, "instances[0]: an array has more than 2", post(predict_path, R"({"instances":[[[1,1],[1,1,1]]]})")},
      {400, "instances[0]: has too few dimensions", post(predict_path, R"({"instances":[[1,1,1,1]]})")},
      {400, "instances[0]: value 3 is not FP32", post(predict_path, R"({"instances":[[[1,1],[1,null]]]})")},
      {400, "instances[0]: begins with -1", post(predict_path, R"({"instances":[[[-1,1],[1,1]]]})")},
      {400, "instances[0].b64: is not base64", post("/v1/models/lengths:predict", R"({"instances":[{"b64":"YW="}]})")},
      {400, "instances[0].b64: is missing", post("/v1/models/lengths:predict", R"({"instances":["YWJj"]})")},
      {404, "model: 'none' is not served", post("/v2/models/none/infer", "{}")},
      {404, "model: 'none' is not served", get("/v1/models/none")},
      {404, "version: 7 is not served (1 is)", get("/v2/models/sums/versions/7")},
      {404, "path: is unknown", get("/")},
      {404, "path: is unknown", get("/v2/models/sums/versions/x")},
      {404, "path: is unknown", get("/v2/models/")},
      {405, "method: is not POST", get(infer)},
      {405, "method: is not GET", post("/metrics", "")},
      {405, "method: is neither", "DELETE /v2 HTTP/1.1\r\n\r\n"},
      {400, "request: is not HTTP/1.1", "hello\r\n\r\n"},
      {400, "request: is not HTTP/1.1", "POST /v2 HTTP/1.1\r\nContent-Length: 1x\r\n\r\n"},
      {400, "request: is not HTTP/1.1", chunked + "zz\r\n"},
      {400, "request: is not HTTP/1.1", chunked + "1;" + std::string(std::size_t{4} << 20, 'a')},
      {400, "request: is not HTTP/1.1", chunked + "0\r\na: " + std::string(std::size_t{4} << 20, 'a')},
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
    const auto reply = running.ask(each.request);
    CHECK(reply.status == each.status);
    CHECK_THAT(reply.body, contains(R"({"error":")" + each.field));
  }
  const auto metrics = running.ask(get("/metrics")).body;
  std::map<int, double> counted, expected;  // by status
  for (const auto& each : table) ++expected[each.status];
  for (auto at = metrics.find(",status=\""); at != std::string::npos; at = metrics.find(",status=\"", at + 1))
    counted[std::stoi(metrics.substr(at + 9, 3))] += std::stod(metrics.substr(at + 15));
  CHECK(counted == expected);
  // A proxy that parses the encoding differently treats the rest as a body, so the server must not parse it as a
  // request.
  http_client unclear(running.port());
  REQUIRE(unclear.send("POST " + infer + " HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n" + get("/v2")));
  const auto refused = unclear.receive().value();
  CHECK(refused.status == 400);
  CHECK(refused.closes());
  CHECK(unclear.is_closed());
  CHECK(running.ask(post(infer, v2("[1,2,2]", "[1,2,3,4]"))).status == 200);
}

TEST_CASE("headers and bodies that do not end, and predictions that take too long, are answered in time") {
  const running_server running({.header_timeout = muster::seconds(0.2),
                                .request_timeout = muster::seconds(0.4),
                                .idle_timeout = muster::seconds(0.2)});
  const auto slowly = [&](const std::string& begin, const std::string& rest) {
    http_client client(running.port());
    client.send(begin);
    std::thread sends([&] {
      while (client.send(rest)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    });
    auto reply = client.receive().value();
    while (!client.is_closed()) (void)client.receive();
    sends.join();
    return reply;
  };
  const auto headers = slowly("GET /v2 HTTP/1.1\r\n", "a: b\r\n");
  CHECK(headers.status == 408);
  CHECK_THAT(headers.body, contains("headers: did not end in time"));
  const auto body = slowly("POST " + infer + " HTTP/1.1\r\nContent-Length: 10000\r\n\r\n", " ");
  CHECK(body.status == 408);
  CHECK_THAT(body.body, contains("body: did not end in time"));
  running.gate->block();
  http_client client(running.port());
  const auto late = client.ask(post(infer, v2("[1,2,2]", "[1,2,3,4]"))).value();
  CHECK(late.status == 504);
  CHECK(client.is_closed());
  http_client queued(running.port());
  CHECK(queued.ask(post(infer, v2("[1,2,2]", "[1,2,3,4]"))).value().status == 504);
  running.gate->release();
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
  std::string chunks;  // single-byte chunks, so that the body stays small
  for (int k = 0; k < 64; ++k) chunks.append("1;").append(1000, 'a').append("\r\n \r\n");
  const auto began = muster::clock::now();
  while (muster::seconds_since(began) < 1 && client.send(chunks)) {
  }
  running.reset();         // the client sends nothing more and stays connected
  (void)client.receive();  // status 408, if a pause of the client allowed it
  CHECK(client.is_closed());
}

TEST_CASE("a connection that timed out ends in its own thread, when the model has done with it") {
  namespace asio = boost::asio;
  constexpr std::size_t count = 4;
  const temporary_folder folder;
  std::filesystem::create_directories(folder / "sums/1");
  const auto gate = std::make_shared<prediction_gate>();
  std::promise<void> all_replied;
  const auto replied = all_replied.get_future();
  std::optional<serve::repository> models;
  models.emplace(
      folder / "", [&](const std::string&) -> serve::any_predictor { return sums{.gate = gate}; },
      serve::batch_options{.max_batch = 8}, muster::seconds(1e6));
  models->scan();
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
    const auto added = std::make_shared<serve::connection>(acceptor.accept(), shared, set);
    added->start();
    connections.push_back(added);
  }
  auto work = asio::make_work_guard(io);
  std::thread thread([&] { io.run(); });
  const auto own_thread = thread.get_id();

  auto model = models->find("sums");
  const std::vector<float> numbers = {1, 2, 3, 4};
  const std::span<const std::byte> rows[] = {bytes_of(numbers)};
  gate->block();
  CHECK(model->requests.submit({rows, muster::clock::now() + std::chrono::hours(1), [](serve::prediction&&) {}}));
  gate->await_blocked();
  for (const auto& each : clients) CHECK(each->send(post(infer, v2("[1,2,2]", "[1,2,3,4]"))));
  for (const auto& each : clients) CHECK(each->receive().value_or(http_answer()).status == 504);
  clients.clear();
  for (const auto& each : connections) {
    while (each.use_count() > 1) std::this_thread::yield();  // until only the model's request owns it
  }
  // The callback of this expired request completes after the connections' thread has received all earlier replies. Only
  // then the model releases the requests.
  CHECK(model->requests.submit({rows, muster::clock::now() - std::chrono::hours(1), [&](serve::prediction&&) {
                                  asio::post(io, [&] { all_replied.set_value(); });
                                  replied.wait();
                                }}));
  gate->release();
  replied.wait();
  while (ended() < count) std::this_thread::yield();
  model.reset();
  models.reset();  // this also ends the model's thread
  work.reset();
  thread.join();
  CHECK(ended_in == std::vector<std::thread::id>(count, own_thread));
}
