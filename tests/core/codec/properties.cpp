// The guarantees of every codec, and the inequality that defines each codec.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <muster/core/codec/codec.hpp>
#include <muster/core/crc32c.hpp>

#include "../../fuzz/codec.hpp"
#include "catch.hpp"
#include "draws.hpp"

namespace {

constexpr std::size_t sizes[] = {0, 1, 2, 3, 31, 32, 33, 511, 512, 513, 1003, 4099, 20011};

}  // namespace

TEST_CASE("a codec repeats for a draw, adds with a weight, and keeps what it said of itself") {
  const auto name = GENERATE(from_range(span_codecs));
  const auto coder = codec_named(name);
  CAPTURE(name);
  CHECK(coder.name() == name);
  muster::random_stream random(1);
  for (const std::size_t size : sizes) {
    CAPTURE(size);
    const auto values = draw_gradient(random, size);
    auto first = encode(coder, values, 7);
    auto again = encode(coder, values, 7);
    REQUIRE(first.bytes % 4 == 0);
    REQUIRE(first.words == again.words);
    const auto once = decode(coder, first, size, 7);
    std::vector<float> sums(size, 2.0f);
    coder.decode_add(first.span(), 7, -0.5f, sums);
    for (std::size_t i = 0; i < size; ++i) REQUIRE(sums[i] == Approx(2.0f - 0.5f * once[i]).margin(1e-7));
  }
}

TEST_CASE("the encoded form has the same bits on every machine") {
  muster::random_stream random(2);
  const auto values = draw_gradient(random, 4099);
  const std::vector<std::pair<std::string, std::uint32_t>> expected = {
      {"none", 0xe0321a19},  {"float16", 0x2c01a122}, {"bfloat16", 0xdbd39b52},
      {"qsgd8", 0xcb093f1b}, {"sign", 0xd272e240},    {"topk:0.1", 0xf517936e}};
  for (const auto& [name, crc] : expected) {
    CAPTURE(name);
    const auto coder = codec_named(name);
    auto encoded = encode(coder, values, 3);
    CHECK(muster::crc32c(encoded.span()) == crc);
    const auto decoded = decode(coder, encoded, values.size(), 3);
    CHECK(squared_distance(decoded, there_and_back(coder, values, 3)) == 0);
  }
}

TEST_CASE("halves are off by their last bit") {
  muster::random_stream random(3);
  const auto values = draw_gradient(random, 4099);
  const auto half = there_and_back(muster::float16_codec(), values, 0);
  const auto brain = there_and_back(muster::bfloat16_codec(), values, 0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    REQUIRE(std::fabs(half[i] - values[i]) <= std::max(0x1p-11f * std::fabs(values[i]), 0x1p-25f));
    REQUIRE(std::fabs(brain[i] - values[i]) <= 0x1p-8f * std::fabs(values[i]));
  }
}

TEST_CASE("top-k leaves out at most its part, and the smallest") {
  const double share = GENERATE(0.001, 0.1, 0.5, 1.0);
  const muster::topk_codec coder(share);
  muster::random_stream random(4);
  for (const std::size_t size : sizes) {
    CAPTURE(share, size);
    auto values = draw_gradient(random, size);
    if (size % 2 == 1) {  // many equal values
      for (auto& value : values) value = std::copysign(std::ceil(std::fabs(value)), value);
    }
    const std::size_t chosen = muster::elements_of_share(share, size);
    auto encoded = encode(coder, values, 0);
    const auto decoded = decode(coder, encoded, size, 0);
    const double k = static_cast<double>(chosen), n = static_cast<double>(std::max<std::size_t>(size, 1));
    REQUIRE(squared_distance(values, decoded) <= (1 - k / n) * squares(values) * (1 + 1e-9));
    // The oracle sorts: magnitudes descending, places ascending.
    std::vector<std::uint32_t> order(size);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return std::fabs(values[a]) > std::fabs(values[b]); });
    order.resize(chosen);
    std::sort(order.begin(), order.end());
    REQUIRE(std::equal(order.begin(), order.end(), encoded.words.begin()));
  }
}

TEST_CASE("top-k sends what diverged first") {
  std::vector<float> values(100, 1e30f);
  values[40] = std::numeric_limits<float>::quiet_NaN();
  values[70] = std::numeric_limits<float>::infinity();
  auto encoded = encode(muster::topk_codec(0.02), values, 0);
  CHECK(encoded.words[0] == 40);
  CHECK(encoded.words[1] == 70);
}

TEST_CASE("QSGD has the value for its mean over 10,000 draws") {
  constexpr std::size_t size = 97;
  constexpr int draws = 10000;
  muster::random_stream random(6);
  const auto values = draw_gradient(random, size);
  std::vector<double> sums(size);
  for (std::uint64_t draw = 0; draw < draws; ++draw) {
    const auto decoded = there_and_back(muster::qsgd8_codec(), values, draw);
    for (std::size_t i = 0; i < size; ++i) sums[i] += static_cast<double>(decoded[i]);
  }
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(static_cast<double>(value)));
  for (std::size_t i = 0; i < size; ++i) {
    CAPTURE(i, values[i]);
    const auto value = static_cast<double>(values[i]);
    const double step = largest / 127, levels = std::fabs(value) / step, part = levels - std::floor(levels);
    const double deviation = std::sqrt(step * step * part * (1 - part) / draws);
    REQUIRE(std::fabs(sums[i] / draws - value) <= 5 * deviation + 1e-9);
  }
}

TEST_CASE("QSGD is off by less than a level, and zeros stay zeros") {
  muster::random_stream random(7);
  for (const std::size_t size : sizes) {
    auto values = draw_gradient(random, size);
    if (size > 600) std::fill(values.begin(), values.begin() + 512, 0.0f);
    if (size == 1003) values[700] = 1e-42f;  // subnormal, among other values
    if (size == 33) std::fill(values.begin(), values.end(), -1e-42f);
    const auto decoded = there_and_back(muster::qsgd8_codec(), values, size);
    for (std::size_t begin = 0; begin < size; begin += muster::qsgd8_codec::group) {
      const std::size_t end = std::min(size, begin + muster::qsgd8_codec::group);
      float largest = 0;
      for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
      for (std::size_t i = begin; i < end; ++i) {
        CAPTURE(size, i, values[i], decoded[i], largest);
        REQUIRE(std::fabs(decoded[i] - values[i]) <= largest / 127 * 1.0001f + 1e-44f);
        if (values[i] == 0.0f) REQUIRE(decoded[i] == 0.0f);
      }
    }
  }
}

TEST_CASE("signs contract by what their paper says") {
  muster::random_stream random(8);
  for (const std::size_t size : sizes) {
    CAPTURE(size);
    const auto values = draw_gradient(random, size);
    const auto decoded = there_and_back(muster::sign_codec(), values, 0);
    double magnitudes = 0;
    for (const float value : values) magnitudes += std::fabs(static_cast<double>(value));
    const double n = static_cast<double>(std::max<std::size_t>(size, 1));
    CHECK(squared_distance(values, decoded) ==
          Approx(squares(values) - magnitudes * magnitudes / n).epsilon(1e-4).margin(1e-9));
    for (std::size_t i = 0; i < size; ++i) REQUIRE(std::signbit(decoded[i]) == std::signbit(values[i]));
  }
}

TEST_CASE("a majority decides each sign, and as many of either nothing") {
  const std::size_t voters = GENERATE(1u, 2u, 3u, 4u, 9u);
  const std::size_t size = GENERATE(1u, 31u, 32u, 33u, 1000u);
  CAPTURE(voters, size);
  muster::random_stream random(9);
  const muster::sign_codec coder;
  const std::size_t bytes = coder.encoded_bytes(size);
  encoded_form all(voters * bytes);
  std::vector<int> balance(size);
  float scales = 0;
  for (std::size_t voter = 0; voter < voters; ++voter) {
    const auto values = draw_gradient(random, size);
    coder.encode(values, 0, all.span().subspan(voter * bytes, bytes));
    float scale = 0;
    std::memcpy(&scale, all.span().data() + voter * bytes, sizeof scale);
    scales += scale;
    for (std::size_t i = 0; i < size; ++i) balance[i] += std::signbit(values[i]) ? -1 : 1;
  }
  std::vector<float> voted(size, 99.0f);
  muster::majority_vote(all.span(), voters, bytes, voted);
  for (std::size_t i = 0; i < size; ++i) {
    const float side = static_cast<float>((balance[i] > 0) - (balance[i] < 0));
    REQUIRE(voted[i] == Approx(side * scales));
  }
  CHECK_THROWS_AS(muster::majority_vote(all.span(), 0, bytes, voted), muster::configuration_error);
  CHECK_THROWS_AS(muster::majority_vote(all.span(), voters + 1, bytes, voted), muster::data_error);
}

TEST_CASE("with error feedback all that is decoded and the last residual sum to all that was encoded") {
  const auto name = GENERATE(from_range(span_codecs));
  const auto coder = codec_named(name);
  CAPTURE(name);
  constexpr std::size_t size = 1003;
  muster::random_stream random(10);
  std::vector<float> residual(size), next(size);
  std::vector<double> exact(size), got(size);
  for (std::uint64_t step = 0; step < 50; ++step) {
    const auto values = draw_gradient(random, size);
    encoded_form encoded(coder.encoded_bytes(size));
    const auto before = residual;
    muster::encode_with_feedback(coder, values, residual, step, encoded.span(), next);
    REQUIRE(residual == before);  // an abandoned step does not change it
    residual.swap(next);
    const auto decoded = decode(coder, encoded, size, step);
    for (std::size_t i = 0; i < size; ++i) {
      exact[i] += static_cast<double>(values[i]);
      got[i] += static_cast<double>(decoded[i]);
    }
  }
  double largest_residual = 0;
  for (std::size_t i = 0; i < size; ++i) {
    REQUIRE(got[i] + static_cast<double>(residual[i]) == Approx(exact[i]).margin(1e-4));
    largest_residual = std::max(largest_residual, std::fabs(static_cast<double>(residual[i])));
  }
  CHECK(largest_residual < 100);  // the residual does not grow with the steps: values are below 8
  CHECK_THROWS_AS(muster::encode_with_feedback(coder, next, std::span(residual).first(3), 0, {}, next),
                  muster::configuration_error);
}

TEST_CASE("a value that is not finite is decoded as not finite") {
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  for (const std::string name : {"none", "float16", "bfloat16", "qsgd8", "sign", "topk:0.1"}) {
    CAPTURE(name, bad);
    std::vector<float> values(600, 0.5f);
    values[555] = bad;
    const auto decoded = there_and_back(codec_named(name), values, 0);
    CHECK(!std::isfinite(decoded[555]));
  }
  encoded_form voted(2 * muster::sign_codec().encoded_bytes(10));
  muster::sign_codec().encode(std::vector<float>(10, bad), 0, voted.span().first(voted.bytes / 2));
  muster::sign_codec().encode(std::vector<float>(10, -bad), 0, voted.span().last(voted.bytes / 2));
  std::vector<float> result(10);
  muster::majority_vote(voted.span(), 2, voted.bytes / 2, result);
  if (std::isnan(bad)) CHECK(std::isnan(result[0]));
}

TEST_CASE("bytes that no encoder writes are refused, by their place, and change nothing") {
  const auto refused = [](const std::string& name, encoded_form encoded, std::size_t size) {
    std::vector<float> sums(size, 1.0f);
    std::string text;
    try {
      codec_named(name).decode_add(encoded.span(), 0, 1.0f, sums);
    } catch (const muster::data_error& error) {
      text = error.what();
    }
    CHECK(sums == std::vector<float>(size, 1.0f));
    return text;
  };
  const std::vector<float> values = {1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11};
  for (const auto& name : span_codecs) {
    CAPTURE(name);
    const auto good = encode(codec_named(name), values, 0);
    encoded_form shorter(good.bytes - 4), longer(good.bytes + 4);
    CHECK_THAT(refused(name, shorter, values.size()), contains("values take"));
    CHECK_THAT(refused(name, longer, values.size()),
               contains("compressed by " + name.substr(0, name.find(':')) + ": byte "));
  }
  auto topk = encode(codec_named("topk:0.2"), values, 0);  // 3 of 11 values
  topk.words[2] = 11;
  CHECK_THAT(refused("topk:0.2", topk, values.size()), contains("byte 8: ") && contains("index 11 is not below 11"));
  topk.words[2] = topk.words[1];
  CHECK_THAT(refused("topk:0.2", topk, values.size()), contains("byte 8: "));
  auto qsgd = encode(codec_named("qsgd8"), values, 0);
  auto spoiled = qsgd;
  spoiled.span()[4 + 6] = std::byte{0x80};
  CHECK_THAT(refused("qsgd8", spoiled, values.size()), contains("byte 10: ") && contains("level -128 does not exist"));
  spoiled = qsgd;
  spoiled.span()[4 + 11] = std::byte{1};
  CHECK_THAT(refused("qsgd8", spoiled, values.size()), contains("byte 15: "));
  spoiled = qsgd;
  spoiled.words[0] |= 0x80000000u;
  CHECK_THAT(refused("qsgd8", spoiled, values.size()), contains("byte 0: ") && contains("negative"));
  auto sign = encode(codec_named("sign"), values, 0);
  sign.words[1] |= 1u << 11;
  CHECK_THAT(refused("sign", sign, values.size()), contains("byte 4: "));
  auto half = encode(codec_named("float16"), values, 0);
  half.span()[23] = std::byte{1};
  CHECK_THAT(refused("float16", half, values.size()), contains("byte 23: "));
}

TEST_CASE("any bytes whatever are decoded or refused") {
  muster::random_stream random(11);
  int decoded = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto which = random.below(std::size(fuzz::codecs));
    const std::size_t size = random.below(round % 10 == 0 ? 2048 : 40);
    const auto values = draw_gradient(random, size);
    auto encoded = encode(codec_named(span_codecs[which]), values, 0);
    std::vector<std::uint8_t> data = {static_cast<std::uint8_t>(which), static_cast<std::uint8_t>(size % 256),
                                      static_cast<std::uint8_t>(size / 256), 0};
    for (const auto byte : encoded.span()) data.push_back(static_cast<std::uint8_t>(byte));
    for (auto changes = random.below(4); changes > 0 && data.size() > 4; --changes) {
      const auto at = 4 + random.below(data.size() - 4);
      if (random.below(8) == 0)
        data.erase(data.begin() + static_cast<std::ptrdiff_t>(at));
      else
        data[at] = static_cast<std::uint8_t>(random());
    }
    decoded += fuzz::check_codec(data) ? 1 : 0;
  }
  CHECK(decoded > 5000);
  CHECK(decoded < 20000);
}

TEST_CASE("buffers of a wrong size are the caller's fault") {
  const auto coder = codec_named(GENERATE(from_range(span_codecs)));
  const std::vector<float> values(40, 1.0f);
  encoded_form room(coder.encoded_bytes(40) + 8);
  CHECK_THROWS_AS(coder.encode(values, 0, room.span()), muster::configuration_error);
  CHECK_THROWS_AS(coder.encode(values, 0, room.span().subspan(2, room.bytes - 8)), muster::configuration_error);
}

TEST_CASE("a compression is read as it is written, and the ratio follows") {
  for (const std::string text :
       {"none", "float16", "bfloat16", "qsgd8", "sign", "topk:0.1", "powersgd:2", "topk:1", "trim:3"}) {
    CHECK(muster::to_string(muster::parse_compression(text)) == text);
  }
  const auto ratio = [](const std::string& name) {
    return static_cast<double>(codec_named(name).encoded_bytes(1 << 20)) / (4.0 * (1 << 20));
  };
  CHECK(ratio("none") == 1.0);
  CHECK(ratio("float16") == 0.5);
  CHECK(ratio("qsgd8") == Approx(0.252).epsilon(0.001));
  CHECK(ratio("sign") == Approx(1.0 / 32).epsilon(0.001));
  CHECK(ratio("topk:0.01") == Approx(0.02).epsilon(0.001));
  CHECK(ratio("trim:3") == 0.75);
}

TEST_CASE("a registered codec is one of --compress, with what it says of itself") {
  CHECK(codec_named("trim:2").is_biased());
  CHECK_FALSE(codec_named("trim:4").is_biased());
  CHECK(codec_named("trim:2").summed_as() == muster::dtype::none);
  CHECK(muster::parse_compression("trim:2") == muster::parse_compression("trim:2"));
  CHECK(muster::parse_compression("trim:2") != muster::parse_compression("trim:3"));
  CHECK_THROWS_WITH(muster::parse_compression("trin:2"), contains("did you mean 'trim'?"));
  CHECK_THROWS_WITH(muster::parse_compression("x"), contains("powersgd, stride, trim"));
  CHECK_THROWS_WITH(muster::parse_compression("trim"), contains("it has no bytes"));
  CHECK_THROWS_WITH(muster::parse_compression("trim:5"), contains("not a whole number from 1 to 4"));
  CHECK_THROWS_WITH(muster::parse_compression("trim:2,3"), contains("no more values"));
  CHECK_THROWS_WITH(muster::parse_compression("trim:2,scale=3"), contains("'scale' is one too many"));
  CHECK_THROWS_WITH(muster::any_codec({.method = muster::compression_method::registered, .text = "lost"}),
                    contains("call register_codec"));

  const auto make = [](muster::spec_reader&) { return muster::any_codec(); };
  for (const char* const invalid_name : {"trim", "topk", "none", "", "Trim", "trim:2"})
    CHECK_THROWS_WITH(muster::register_codec(invalid_name, make), contains("cannot be registered"));
  CHECK_THROWS_AS(muster::register_codec("nothing", nullptr), muster::configuration_error);
}

TEST_CASE("a compression that cannot be read is refused with its text, the fault and a way out") {
  const auto text =
      GENERATE("", "non", "float16:2", "topk", "topk:", "topk:0", "topk:1.5", "topk:-0.1", "topk:x", "topk:0.1x",
               "topk:nan", "powersgd", "powersgd:0", "powersgd:1.5", "powersgd:-1", "none ", "qsgd", "sign:1");
  CAPTURE(text);
  std::string message;
  try {
    (void)muster::parse_compression(text);
  } catch (const muster::configuration_error& error) {
    message = error.what();
  }
  CHECK(message.starts_with("compression '" + std::string(text) + "' cannot be used ("));
  CHECK(message.find("); ") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
  CHECK_THROWS_WITH(muster::parse_compression("topkk:0.1"), contains("did you mean 'topk'?"));
  CHECK_THROWS_WITH(muster::any_codec(muster::parse_compression("powersgd:2")), contains("matrices"));
}
