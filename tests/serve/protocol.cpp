#include "serve/protocol.hpp"

#include <cmath>
#include <random>
#include <span>

#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "fuzz/serve.hpp"
#include "serve/json_text.hpp"
#include "serve/route.hpp"

using muster::serve::parse_route;
using muster::serve::resource;

TEST_CASE("the names of classes are in what describes a model and in its answers") {
  muster::serve::model_info model{.platform = "p", .input = {.name = "x"}, .output = {.name = "y", .shape = {2}}};
  const std::vector<float> values = {0.25f, 0.75f};
  const auto bytes = std::as_bytes(std::span(values));
  muster::serve::parsed_request request;
  request.rows.resize(1);
  const auto answers = [&] {
    std::vector<nlohmann::json> all;
    for (const bool binary : {false, true}) {
      request.is_binary = binary;
      all.push_back(nlohmann::json::parse(muster::serve::write_infer("m", 1, request, model, bytes)));
    }
    all.push_back(nlohmann::json::parse(muster::serve::write_metadata("m", 1, model)));
    for (auto& output : all) output = output["outputs"][0];
    all.push_back(nlohmann::json::parse(muster::serve::write_predictions(model, bytes)));
    return all;
  };
  for (const auto& output : answers())
    CHECK_FALSE(
        (output.contains("classes") || output.value("parameters", nlohmann::json::object()).contains("classes")));
  model.classes = {"cat", "a \"dog\""};
  const nlohmann::json names = {"cat", "a \"dog\""};
  const auto named = answers();
  CHECK(named[0]["parameters"] == nlohmann::json{{"classes", names}});
  CHECK(named[0]["data"] == nlohmann::json{0.25, 0.75});
  CHECK(named[1]["parameters"] == nlohmann::json{{"binary_data_size", 8}, {"classes", names}});
  CHECK(named[2]["parameters"] == nlohmann::json{{"classes", names}});
  CHECK(named[3] == nlohmann::json{{"predictions", {{0.25, 0.75}}}, {"classes", names}});
}

TEST_CASE("bodies of any bytes are taken or refused, whichever way they are damaged") {
  const std::string v2 = R"({"id":"a","inputs":[{"name":"x","datatype":)";
  const auto seed_of = [](char mode, const std::string& json, char size = '\0') {
    std::string text{mode, size, '\0'};
    text += json;
    return text;
  };
  const std::string seeds[] = {
      seed_of(0, v2 + R"("FP32","shape":[1,2,2],"data":[1,2.5,-3e2,4]}],"outputs":[{"name":"y"}]})"),
      seed_of(1, v2 + R"("BYTES","shape":[2],"data":["abc","\n"]}]})"),
      seed_of(2, v2 + R"("UINT8","shape":[2,3],"data":[[1,2,3],[4,5,255]]}]})"),
      seed_of(3, v2 + R"("BOOL","shape":[2],"data":[true,false]}]})"),
      seed_of(4, R"({"instances":[[[1,2],[3,4]],[[1e30,2],[3,4]]]})"),
      seed_of(5, R"({"instances":[{"b64":"YWJj"},{"b64":"YQ=="}]})"),
      seed_of(6, R"({"instances":[{"b64":"YWJj"},{"image_bytes":{"b64":"YQ=="}},{"x":{"b64":""}}]})"),
      seed_of(2, v2 + R"("BYTES","shape":[2],"data":[{"b64":"YWJj"},"a"]}]})"),
      seed_of(6, R"({"instances":[[1,2,3]]})"),
      seed_of(7, R"({"instances":[true,false,true]})"),
      seed_of(8,
              v2 + R"("FP32","shape":[1,2,2],"parameters":{"binary_data_size":16}}]})"
                   "1234567890123456",
              0x6a),
  };
  for (const auto& seed : seeds) {
    INFO(seed.substr(3));
    const std::size_t behind = seed[0] == 8 ? 16 : 0;
    std::string valid = seed;
    if (behind > 0) valid[1] = static_cast<char>(seed.size() - 3 - behind);
    CHECK(fuzz::check_serve(valid));
    std::mt19937 random(7);
    for (int k = 0; k < 2000; ++k) {
      std::string damaged = valid;
      for (auto changes = 1 + random() % 3; changes > 0; --changes) {
        const auto at = random() % damaged.size();
        const char letters[] = "[]{},:\"0-9e.\\a\xff";
        switch (random() % 4) {
          case 0:
            damaged[at] = letters[random() % (sizeof letters - 1)];
            break;
          case 1:
            damaged.erase(at, 1 + random() % 8);
            break;
          case 2:
            damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 8));
            break;
          default:
            damaged.resize(at);
        }
        if (damaged.empty()) damaged = valid;
      }
      CHECK_NOTHROW(fuzz::check_serve(damaged));
    }
  }
}

TEST_CASE("what lies behind JSON of which a bracket is open is not read as JSON") {
  const std::string json = R"({"inputs":[{})", body = json + std::string(200, ',');
  CHECK_THROWS_WITH(muster::serve::parse_infer(body, json.size(), fuzz::served_models()[0], 5),
                    contains("body: is not JSON"));
}

TEST_CASE("an answer in JSON is refused of a type that has no form in it") {
  const std::string json = R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}])";
  for (const auto type : {muster::dtype::float16, muster::dtype::bfloat16, muster::dtype::extended}) {
    const muster::serve::model_info model{"", {.name = "x"}, {.name = "y", .type = type}};
    const auto infer = [&](const std::string& body) { return muster::serve::parse_infer(body, body.size(), model, 5); };
    CHECK_THROWS_WITH(infer(json + "}"), contains("has no form in JSON; request binary data"));
    CHECK(infer(json + R"(,"parameters":{"binary_data_output":true}})").is_binary);
    CHECK_THROWS_WITH(muster::serve::parse_predict(R"({"instances":[1]})", model, 5),
                      contains("has no form in JSON; use v2, and request binary data"));
  }
}

TEST_CASE("numbers and strings are written as they are read") {
  const auto text = [](auto value) {
    std::string json;
    muster::serve::append_number(json, value);
    return json;
  };
  CHECK(text(0.1f) == "0.1");
  CHECK(text(std::nextafter(1.0, 2.0)) == "1.0000000000000002");
  CHECK(text(std::int64_t{-9223372036854775807}) == "-9223372036854775807");
  CHECK(text(std::uint8_t{255}) == "255");
  CHECK(text(true) == "true");
  CHECK(text(NAN) == "null");
  std::string json;
  muster::serve::append_string(json, "a\"\\\n\x1f\xc3\xa4");
  CHECK(json == "\"a\\\"\\\\\\u000a\\u001f\xc3\xa4\"");
}

TEST_CASE("paths") {
  CHECK(parse_route("/v2/models/a/infer").target == resource::infer);
  CHECK(parse_route("/v2/models/a.b-c/versions/12/infer").version == 12u);
  CHECK(parse_route("/v2/models/a.b-c/versions/12/infer").model == "a.b-c");
  CHECK(parse_route("/v2/models/a/versions/12").target == resource::metadata);
  CHECK(parse_route("/v2/models/a/versions/12/ready").target == resource::model_ready);
  CHECK(parse_route("/v1/models/a:predict").target == resource::predict);
  for (const char* path : {"", "/", "/v2/models/a/", "/v2/models//infer", "/v2/models/a/versions/",
                           "/v2/models/a/versions/-1", "/v2/models/a/versions/1/", "/v2/models/a/infer/",
                           "/v1/models/a:explain", "/v1/models/:predict", "/v3/models/a", "/v1/models", "/metrics/"}) {
    INFO(path);
    CHECK(parse_route(path).target == resource::unknown);
  }
}
