#include <muster/data/sources/libsvm.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <string>
#include <vector>

#include <muster/core/random.hpp>
#include <muster/data/sources/text_format.hpp>
#include "../records.hpp"
#include "catch.hpp"

namespace {

struct sample {
  std::string label;
  std::map<std::uint32_t, std::string> features;  // numbers from 1, as written
};

float number(const std::string& text) {
  float value = 0;
  std::from_chars(text.data() + (text[0] == '+' ? 1 : 0), text.data() + text.size(), value);
  return value;
}

std::string random_feature(muster::random_stream& random) {
  char text[64];
  const double value = (random.uniform() - 0.5) * 20;
  const char* const patterns[] = {"%.0f", "%.1f", "%.6f", "%.9g", "%.17g", "%.3e", "%+.2f", "%.25f"};
  std::snprintf(text, sizeof text, patterns[random.below(8)], value);
  return text;
}

std::vector<sample> random_samples(muster::random_stream& random, std::size_t rows, std::uint32_t features,
                                   double density) {
  std::vector<sample> samples(rows);
  const char* const labels[] = {"-1", "+1", "1", "0", "3", "2.5", "-1e2"};
  for (auto& sample : samples) {
    sample.label = labels[random.below(7)];
    for (std::uint32_t j = 1; j <= features; ++j) {
      if (random.uniform() < density) sample.features[j] = random_feature(random);
    }
  }
  return samples;
}

// Writes the samples. All choices that the format permits are random.
std::string write(muster::random_stream& random, const std::vector<sample>& samples) {
  const auto blanks = [&](int least) {
    std::string text;
    for (auto n = least + static_cast<int>(random.below(8) == 0 ? random.below(3) : 0); n > 0; --n) {
      text += random.below(4) == 0 ? '\t' : ' ';
    }
    return text;
  };
  std::string text;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    while (random.below(10) == 0) text += blanks(0) + (random.below(2) == 0 ? "# a note: 1:2" : "") + "\n";
    text += blanks(0) + samples[i].label;
    for (const auto& [index, value] : samples[i].features) text += blanks(1) + std::to_string(index) + ":" + value;
    text += blanks(0);
    if (random.below(10) == 0) text += "# qid:3 7:1";
    if (random.below(3) == 0) text += "\r";
    if (i + 1 < samples.size() || random.below(2) == 0) text += "\n";
  }
  return text;
}

void check(const muster::dataset& read, const std::vector<sample>& samples, std::size_t features) {
  REQUIRE(read.size() == samples.size());
  REQUIRE(read.features() == features);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    CAPTURE(i);
    REQUIRE(read.label(i) == number(samples[i].label));
    std::vector<float> expected(features);
    for (const auto& [index, value] : samples[i].features) expected[index - 1] = number(value);
    if (read.is_sparse()) {
      const auto row = read.sparse(i);
      REQUIRE(row.indices.size() == samples[i].features.size());
      std::size_t k = 0;
      for (const auto& entry : samples[i].features) {
        REQUIRE(row.indices[k] == entry.first - 1);
        REQUIRE(std::bit_cast<std::uint32_t>(row.values[k]) == std::bit_cast<std::uint32_t>(expected[entry.first - 1]));
        ++k;
      }
    } else {
      REQUIRE(std::equal(expected.begin(), expected.end(), read.row(i).begin(), read.row(i).end()));
    }
  }
}

}  // namespace

TEST_CASE("what is written in LIBSVM's format is read back, in both layouts, in pieces of any size") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    muster::random_stream random(seed);
    const auto rows = 1 + random.below(60);
    const auto features = static_cast<std::uint32_t>(1 + random.below(40));
    auto samples = random_samples(random, rows, features, random.uniform());
    samples[0].features[features] = "1";  // determines the number of features
    const std::string text = write(random, samples);
    CAPTURE(text);

    std::size_t entries = 0;
    for (const auto& sample : samples) entries += sample.features.size();
    const auto read = muster::data::parse_libsvm(text, "text");
    CHECK(read.is_sparse() == (2 * entries < rows * features));
    check(read, samples, features);

    for (const auto layout : {muster::layout::dense, muster::layout::sparse}) {
      const std::size_t wider = features + random.below(10);
      const auto expected =
          muster::data::parse_libsvm(text, "text", {.layout = layout, .min_features = wider, .threads = 1});
      REQUIRE(expected.is_sparse() == (layout == muster::layout::sparse));
      check(expected, samples, wider);
      const muster::read_options options{
          .layout = layout, .min_features = wider, .threads = 1 + static_cast<int>(random.below(3))};
      const auto cut = muster::data::detail::dataset_of_text(
          text, *muster::data::detail::format_of_libsvm("text", options), "text", options, 1 + random.below(200));
      check(cut, samples, wider);
      REQUIRE(cut.digest() == expected.digest());
    }
  }
}

TEST_CASE("the labels of the public sets mean what they say") {
  const auto read = muster::data::parse_libsvm("+1 1:1\n-1 1:1\n0 1:1\n1 1:1\n7 1:1\n", "text");
  CHECK(std::vector<float>(read.labels().begin(), read.labels().end()) == std::vector<float>{1, -1, 0, 1, 7});
  CHECK(read.classes() == std::vector<float>{-1, 0, 1, 7});
  CHECK(read.name() == "text");
}

TEST_CASE("samples without features, zeros that are written and numbers too small for a float are all right") {
  const auto read =
      muster::data::parse_libsvm("1\n0 2:0 3:1e-60\n1 # nothing\n", "text", {.layout = muster::layout::sparse});
  REQUIRE(read.size() == 3);
  CHECK(read.features() == 3);
  CHECK(read.sparse(0).values.empty());
  CHECK(read.sparse(1).values.size() == 2);
  CHECK(read.sparse(1).values[1] == 0);
}

TEST_CASE("the largest index there is can be read, sparse") {
  const auto read = muster::data::parse_libsvm("1 4294967295:2\n", "text");
  CHECK(read.is_sparse());
  CHECK(read.features() == 4294967295u);
  CHECK(read.sparse(0).indices[0] == 4294967294u);
}

TEST_CASE("lines that say no sample can be kept as bad records, dense or sparse, in pieces of any size") {
  std::string text;
  std::vector<expected_record> dense, sparse;
  std::vector<std::uint64_t> bad_lines;
  const std::uint64_t seed = 5;
  muster::random_stream random(seed);
  std::uint64_t line = 0;
  for (int i = 0; i < 200; ++i) {
    ++line;
    if (random.below(6) == 0) {
      text += "# nothing\n";
      continue;
    }
    expected_record in_dense{std::vector<std::byte>(8 * sizeof(float)), {0}};
    expected_record in_sparse{{}, {0}};
    if (random.below(5) == 0) {
      text += "1 3:x 4294967295:1 : : :\n";
      in_dense.bad = in_sparse.bad = true;
      bad_lines.push_back(line);
    } else {
      const auto label = static_cast<float>(random.below(3));
      text += std::to_string(label);
      in_dense.labels = in_sparse.labels = {label};
      for (std::uint32_t index = i == 0 ? 7 : std::uint32_t(random.below(8)); index < 8;
           index += 1 + std::uint32_t(random.below(4))) {
        const muster::data::sparse_entry entry{index, static_cast<float>(random.below(100))};
        text += " " + std::to_string(index + 1) + ":" + std::to_string(entry.value);
        std::memcpy(in_dense.bytes.data() + 4 * index, &entry.value, 4);
        const auto bytes = bytes_of(std::span(&entry, 1));
        in_sparse.bytes.insert(in_sparse.bytes.end(), bytes.begin(), bytes.end());
      }
      text += "\n";
    }
    dense.push_back(in_dense);
    sparse.push_back(in_sparse);
  }
  for (const auto layout : {muster::layout::dense, muster::layout::sparse}) {
    std::uint64_t digest = 0;
    for (const std::size_t piece : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 20}) {
      const muster::read_options options{.layout = layout, .threads = 2, .keep_bad_records = true};
      const auto read = muster::data::detail::dataset_of_text(
          text, *muster::data::detail::format_of_libsvm("t", options), "t", options, piece);
      CHECK(read.features() == 8);
      check_source(read, layout == muster::layout::dense ? dense : sparse, seed);
      REQUIRE(read.bad().size() == bad_lines.size());
      for (std::size_t k = 0; k < bad_lines.size(); ++k) {
        REQUIRE(read.bad()[k].location.line == bad_lines[k]);
        REQUIRE(read.bad()[k].location.column == 5);
      }
      if (digest != 0) CHECK(read.digest() == digest);
      digest = read.digest();
    }
  }
}
