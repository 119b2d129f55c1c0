#include <muster/core/spec.hpp>

#include <cstdlib>
#include <functional>
#include <random>

#include <muster/core/env.hpp>

#include "catch.hpp"

using muster::spec_reader;
using Words = std::vector<std::string>;

namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const muster::configuration_error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a text is a name, values in their order and keys in any") {
  spec_reader spec("thing", "momentum:0.1,0.9,decay=1e-4,of=weights,n=8");
  CHECK(spec.name() == "momentum");
  CHECK(spec.name({"sgd", "momentum"}, "sgd") == "momentum");
  CHECK(spec.has_value());
  CHECK(spec.number("rate", 0.0, true) == 0.1);
  CHECK(spec.number("momentum", 0.0, false) == 0.9);
  CHECK_FALSE(spec.has_value());
  CHECK(spec.whole_of("n", 1) == 8);
  CHECK(spec.whole_of("m", 1) == 1);
  CHECK(spec.choice_of<int>("of", 0, {{"all", 1}, {"weights", 2}}) == 2);
  CHECK(spec.number_of("decay", 0.0, 0.0, false) == 1e-4);
  CHECK(spec.number_of("else", 0.5, 0.0, false) == 0.5);
  CHECK_FALSE(spec.take("decay").has_value());  // already read
  spec.finish("momentum:0.1,0.9");
}

TEST_CASE("values and keys may be empty, and a name alone has neither") {
  spec_reader alone("thing", "ps");
  CHECK_FALSE(alone.has_value());
  alone.finish("ps");
  spec_reader empty("thing", "ps:");
  CHECK(empty.has_value());
  CHECK(empty.value("number").empty());
  spec_reader key("thing", "ps,key=a=b");
  CHECK(key.take("key") == "a=b");
  CHECK(spec_reader("thing", "").name().empty());
}

TEST_CASE("whatever is wrong is said in one form: the text, why, and what would do") {
  const auto error_of = [](const std::string& text, auto&& use) {
    return refusal([&] {
      spec_reader spec("thing", text);
      use(spec);
      spec.finish("adam:1,beta=2");
    });
  };
  const auto nothing = [](spec_reader&) {};
  const auto read_rate = [](spec_reader& spec) { (void)spec.number("rate", 0.0, true); };
  const auto beta = [](spec_reader& spec) { (void)spec.whole_of("beta", 1); };
  for (const std::string& message :
       {error_of("adam:2", nothing), error_of("adam", read_rate), error_of("adam:", read_rate),
        error_of("adam:x", read_rate), error_of("adam:0", read_rate), error_of("adam:-1", read_rate),
        error_of("adam:nan", read_rate), error_of("adam:01", read_rate), error_of("adam:1,2", read_rate),
        error_of("adam,2", nothing), error_of("adam,betta=1", beta), error_of("adam,beta", beta),
        error_of("adam,beta=", beta), error_of("adam,beta=-1", beta), error_of("adam,beta=1.5", beta),
        error_of("adam,beta=1,beta=2", beta), error_of("adam,beta=1,", beta), error_of("adam:1,beta=1,2", beta)}) {
    INFO(message);
    CHECK(message.starts_with("thing 'adam"));
    CHECK(message.find("' cannot be used (") != std::string::npos);
    CHECK(message.find("); ") != std::string::npos);
  }
  CHECK(error_of("adam", read_rate) == "thing 'adam' cannot be used (it has no rate); write adam:RATE");
  CHECK_THAT(error_of("sgd:1,k=2", [](auto& spec) { (void)spec.value("rate"), (void)spec.value("momentum"); }),
             contains("(it has no momentum); write sgd:1,MOMENTUM"));
  CHECK_THAT(error_of("adam:1,2", read_rate), contains("'adam' takes no more values, and not '2'"));
  CHECK_THAT(error_of("adam:1", nothing), contains("'adam' takes no value, and not '1'"));
  CHECK_THAT(error_of("adam,betta=1", beta), contains("did you mean 'beta'?"));
  CHECK_THAT(error_of("adam,a=1", nothing), contains("'a' is one too many: it takes no keys"));
  CHECK_THAT(error_of("adam,beta=9", [](auto& spec) { (void)spec.read_whole("beta", *spec.take("beta"), 1, 8); }),
             contains("beta '9' is not a whole number from 1 to 8"));
  CHECK_THAT(error_of("adma",
                      [](auto& spec) {
                        (void)spec.name({"adam", "sgd"}, "adam");
                      }),
             contains("'adma' is not one of adam, sgd); did you mean 'adam'?"));
}

TEST_CASE("whatever is written is read or refused in one line") {
  const std::uint64_t seed =
      std::strtoull(muster::environment("MUSTER_TEST_SEED").value_or("20261125").c_str(), nullptr, 10);
  INFO("MUSTER_TEST_SEED=" << seed);
  std::mt19937_64 draw(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (auto length = draw() % 16; length > 0; --length) text += "ab1:,=?&%.+-"[draw() % 12];
    CAPTURE(text);
    const std::string plain = refusal([&] {
      spec_reader spec("thing", text);
      if (spec.has_value()) (void)spec.number("number", 0.0, false);
      (void)spec.whole_of("a", 1);
      (void)spec.number_of("b", 1.0, 0.0, true);
      spec.finish("a:1");
    });
    const std::string source = refusal([&] {
      auto spec = spec_reader::of_source(text);
      (void)spec.take("a");
      (void)spec.paths(1, 2);
      spec.finish("a:PATH");
    });
    for (const auto& message : {plain, source})
      if (message != "accepted") CHECK(message.find("'" + text + "' cannot be used (") != std::string::npos);
  }
}

TEST_CASE("a source is a scheme, a path that may hold anything, and keys behind the last question mark") {
  auto plain = spec_reader::of_source("csv:/a,b:c?d/e.csv");
  CHECK(plain.name() == "csv");
  CHECK(plain.value("path") == "/a,b:c?d/e.csv");
  auto keyed = spec_reader::of_source("csv:/a?b?label=x%26y&header=1");
  CHECK(keyed.value("path") == "/a?b");
  CHECK(keyed.take("label") == "x&y");
  CHECK(keyed.take("header") == "1");
  keyed.finish("csv:PATH");
  CHECK(spec_reader::of_source("csv:/my%20data/50%25%2Fx").path() == "/my data/50%/x");
  auto address = spec_reader::of_source("csv:https://server/my%20x.csv?X-Amz-Date=1&sig=a%2B?label=y");
  CHECK(address.take("label") == "y");
  CHECK(address.path() == "https://server/my%20x.csv?X-Amz-Date=1&sig=a%2B");
  address.finish("csv:PATH");
  auto ended = spec_reader::of_source("npy:https://a/x?sig=a,https://a/y%20?sig=b?");
  CHECK(ended.paths(1, 2) == Words{"https://a/x?sig=a", "https://a/y%20?sig=b"});
  ended.finish("npy:PATH");
  CHECK(spec_reader::of_source("csv:what?").path() == "what?");
  CHECK(spec_reader::of_source("s3://bucket/my%20set?").path() == "//bucket/my%20set");
  CHECK_THAT(refusal([] {
               auto source = spec_reader::of_source("csv:https://server/x.csv?sig=secret");
               (void)source.take("label");
               (void)source.path();
               source.finish("csv:PATH");
             }),
             contains("'sig' is not one of label") && contains("write ADDRESS?QUERY?label=...") && !contains("secret"));
  auto several = spec_reader::of_source("raw:a%2Cb,%25,c?k=1");
  CHECK(several.paths(1, 3) == Words{"a,b", "%", "c"});
  CHECK_THAT(refusal([] { (void)spec_reader::of_source("raw:a,,b").paths(1, 3); }), contains("between two commas"));
  CHECK_THAT(refusal([] { (void)spec_reader::of_source("raw:a,b").paths(1, 1); }), contains("it names 2 files"));
  for (const char* const wrong : {"", ":", ":a", "a", "csv:", "csv:a?=1", "csv:a?b=1&c", "csv:?b=1", "csv:a?b=1&b=1"}) {
    CAPTURE(wrong);
    CHECK(refusal([&] {
            (void)spec_reader::of_source(wrong);
          }).starts_with("source '" + std::string(wrong) + "' cannot"));
  }
}
