#include <muster/serve/server.hpp>

#include <chrono>
#include <thread>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "data/files.hpp"
#include "running_server.hpp"

using namespace served;

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
  CHECK(running
            .ask(post(infer, R"({"id":null,"outputs":null,"parameters":null,"inputs":[{"name":"x","datatype":"FP32",)"
                             R"("shape":[1,2,2],"parameters":{"binary_data_size":null},"data":[[[1,1],[1,1]]]}]})"))
            .body == R"({"model_name":"sums","model_version":"1","outputs":[{"name":"y","datatype":"FP32",)"
                     R"("shape":[1,2],"data":[4,1]}]})");
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
       {"muster_serve_requests_total{model=\"sums\",status=\"200\"} 8\n",
        "muster_serve_batch_rows_bucket{model=\"lengths\",le=\"2\"} 3\n",
        "muster_serve_request_seconds_count{model=\"sums\"} 8\n", "muster_serve_version{model=\"sums\"} 1\n",
        "muster_serve_waiting_requests{model=\"sums\"} 0\n", "muster_serve_failed_loads_total 0\n"}) {
    INFO(line);
    CHECK(metrics.find(line) != std::string::npos);
  }
}

TEST_CASE("binary tensors come and go bit by bit") {
  const running_server running;
  const std::vector<float> numbers = {0.1f, -0.0f, 1e-40f, 3e38f, 1, 2, 3, 4};
  const auto reply = running.ask(binary_request(
      binary_json(2, 32, R"(,"outputs":[{"name":"y","parameters":{"binary_data":true}}])"), text_of(numbers)));
  REQUIRE(reply.status == 200);
  const auto at = reply.headers.find("Inference-Header-Content-Length: ");
  REQUIRE(at != std::string::npos);
  const auto json = std::stoul(reply.headers.substr(at + 33));
  CHECK(reply.body.substr(0, json).find(R"("binary_data_size":16)") != std::string::npos);
  CHECK(reply.body.substr(json) == text_of({0.1f + -0.0f + 1e-40f + 3e38f, 0.1f, 10, 1}));
  const auto as_json = running.ask(binary_request(binary_json(2, 32), text_of(numbers)));
  CHECK(as_json.body.find("[3e+38,0.1,10,1]") != std::string::npos);
  const auto by_parameter =
      running.ask(post(infer, v2("[1,2,2]", "[1,2,3,4]", R"(,"parameters":{"binary_data_output":true})")));
  CHECK(by_parameter.body.ends_with(text_of({10, 1})));
}

TEST_CASE("a connection takes one request after another, pipelined or a byte at a time") {
  const running_server running;
  http_client client(running.port());
  std::string all;
  for (int k = 0; k < 20; ++k) {
    const std::string number = std::to_string(k);
    all += k % 3 == 0 ? get("/v2/models/sums/ready") : post(infer, v2("[1,2,2]", "[" + number + ",0,0,0]"));
    if (k == 10) all += post(infer, "{");  // an error in a well-framed request does not end the connection
  }
  REQUIRE(client.send(all));
  for (int k = 0; k < 20; ++k) {
    const auto reply = client.receive().value();
    CHECK(reply.status == 200);
    const std::string number = std::to_string(k);
    if (k % 3 != 0) CHECK(reply.body.find("[" + number + "," + number + "]") != std::string::npos);
    if (k == 10) CHECK(client.receive().value().status == 400);
  }
  const std::string request = "POST " + predict_path + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n" +
                              R"({"instances":[[[1,1])" + "\r\nA\r\n,[1,1]]]} \r\n0\r\n\r\n";
  for (const char byte : request) REQUIRE(client.send({&byte, 1}));
  CHECK(client.receive().value().body == R"({"predictions":[[4,1]]})");
  // The reply has no body.
  CHECK(client.ask("HEAD /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n") == std::nullopt);
  http_client patient(running.port());
  REQUIRE(patient.send("POST " + predict_path + " HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 31\r\n\r\n"));
  CHECK(patient.receive().value().status == 100);
  const auto reply = patient.ask(R"({"instances":[[[1,1],[1,1]]]}  )").value();
  CHECK(reply.status == 200);
  CHECK(reply.closes());
  CHECK(patient.is_closed());
}

TEST_CASE("what exceeds the queue is refused with a time to come back") {
  const running_server running({.threads = 2}, {.max_batch = 1, .queue = 2});
  running.gate->block();
  const std::string request = post(infer, v2("[1,2,2]", "[1,2,3,4]"));
  http_client first(running.port());
  first.send(request);
  running.gate->await_blocked();
  http_client a(running.port()), b(running.port());
  a.send(request);
  b.send(request);
  while (running.models->find("sums")->requests.waiting() < 2) std::this_thread::yield();
  const auto reply = running.ask(request);
  CHECK(reply.status == 503);
  CHECK_THAT(reply.headers, contains("Retry-After: 1\r\n"));
  CHECK_THAT(reply.body, contains("model: its queue is full"));
  CHECK(running.ask(get("/v2/health/ready")).status == 200);
  running.gate->release();
  for (auto* each : {&first, &a, &b}) CHECK(each->receive().value().status == 200);
}

TEST_CASE("beyond the limit the connection that has waited longest for a request goes") {
  const running_server running({.max_connections = 2});
  http_client a(running.port()), b(running.port());
  CHECK(a.ask(get("/v2")).value().status == 200);
  REQUIRE(a.send("GET /v2 HTTP/1.1\r\n"));  // an incomplete request
  CHECK(b.ask(get("/v2")).value().status == 200);
  http_client c(running.port());
  CHECK(c.ask(get("/v2")).value().status == 200);
  CHECK(a.is_closed());
  CHECK(b.ask(get("/v2")).value().status == 200);
}

TEST_CASE("connections beyond the limit wait to be accepted while all are busy") {
  const running_server running({.max_connections = 2});
  running.gate->block();
  http_client a(running.port()), b(running.port());
  for (auto* each : {&a, &b}) REQUIRE(each->send(post(infer, v2("[1,2,2]", "[1,2,3,4]"))));
  running.gate->await_blocked();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until both requests are read: no connection is idle
  http_client c(running.port());
  REQUIRE(c.send(get("/v2")));
  running.gate->release();
  for (auto* each : {&a, &b, &c}) CHECK(each->receive().value().status == 200);
}

TEST_CASE("the bodies of all requests are bounded") {
  const running_server running({.max_body = 100'000, .max_bodies = 150'000});
  const std::string head = "POST " + infer + " HTTP/1.1\r\nContent-Length: 90000\r\n\r\n";
  std::optional<http_client> first(std::in_place, running.port());
  REQUIRE(first->send(head + std::string(80'000, ' ')));
  for (int turn = 0; turn < 20; ++turn)
    CHECK(running.ask(get("/v2")).status == 200);  // until the bytes of the first client are read
  const auto reply = running.ask(head + std::string(90'000, ' '));
  CHECK(reply.status == 503);
  CHECK_THAT(reply.headers, contains("Retry-After: 1\r\n"));
  CHECK_THAT(reply.body, contains("body: the bodies of other requests have reached the limit"));
  CHECK(running.ask(post(infer, v2("[1,2,2]", "[1,2,3,4]"))).status == 200);
  REQUIRE(first->send(std::string(10'000, ' ')));
  CHECK(first->receive().value().status == 400);
  first.reset();
  CHECK(running.ask(head + std::string(90'000, ' ')).status == 400);
}

TEST_CASE("an address that cannot be listened at is refused") {
  const temporary_folder folder;
  serve::repository models(folder / "", [](const std::string&) -> serve::any_predictor { return lengths(); });
  for (const char* address : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "192.0.2.1:80", "[::1:80"}) {
    INFO(address);
    CHECK_THROWS_AS(serve::server(models, {.listen = address}), muster::configuration_error);
  }
}
