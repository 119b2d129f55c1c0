#include <muster/data/minibatch.hpp>

#include <numeric>
#include <vector>

#include <muster/core/random.hpp>
#include "catch.hpp"

namespace {

// A batch of n samples with labels. All samples have one size if `fixed`, and random sizes otherwise.
struct test_batch {
  test_batch(std::size_t n, bool fixed, muster::random_stream& draw) : ids(n), labels(2 * n) {
    std::iota(ids.begin(), ids.end(), 10u);
    std::iota(labels.begin(), labels.end(), 0.0f);
    if (!fixed) offsets.push_back(0);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t size = fixed ? 3 : static_cast<std::size_t>(draw.below(5));
      for (std::size_t k = 0; k < size; ++k) bytes.push_back(static_cast<std::byte>(i));
      if (!fixed) offsets.push_back(bytes.size());
    }
  }
  [[nodiscard]] muster::minibatch view() const {
    return {.samples = ids, .global_size = 1000, .labels = labels, .bytes = bytes, .offsets = offsets, .left_out = 4};
  }
  std::vector<muster::sample_id> ids;
  std::vector<float> labels;
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> offsets;
};

}  // namespace

TEST_CASE("the micro-batches of a batch are its samples, in order, each with what is its own") {
  muster::random_stream draw(5);
  for (int trial = 0; trial < 300; ++trial) {
    const auto n = static_cast<std::size_t>(draw.below(20));
    const bool fixed = draw.below(2) == 0;
    const test_batch all(n, fixed, draw);
    const auto batch = all.view();
    const int count = 1 + static_cast<int>(draw.below(6));
    CAPTURE(n, fixed, count);
    const auto parts = batch.split(count);
    REQUIRE(parts.size() == static_cast<std::size_t>(count));
    std::size_t at = 0;
    std::uint64_t left_out = 0;
    for (const auto& part : parts) {
      REQUIRE(part.global_size == 1000);
      left_out += part.left_out;
      for (std::size_t i = 0; i < part.samples.size(); ++i, ++at) {
        REQUIRE(part.samples[i] == batch.samples[at]);
        REQUIRE(part.labels[2 * i + 1] == batch.labels[2 * at + 1]);
        const auto record = part.record(i), expected = batch.record(at);
        REQUIRE(record.data() == expected.data());
        REQUIRE(record.size() == expected.size());
      }
    }
    CHECK(at == n);
    CHECK(left_out == 4);
  }
  CHECK_THROWS_AS(muster::minibatch{}.split(0), muster::configuration_error);
}
