// The checks that every record_source must pass: all ways to read are compared with the expected records.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include <muster/core/random.hpp>
#include <muster/data/record_source.hpp>
#include "catch.hpp"

/// The expected contents of a record.
struct expected_record {
  std::vector<std::byte> bytes;
  std::vector<float> labels;
  bool bad = false;
};

/// Returns the bytes of values.
template <class T>
std::vector<std::byte> bytes_of(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

/// Reads batches of random ids in every way, and compares them with the expected records.
inline void check_source(const muster::data::any_record_source& source, const std::vector<expected_record>& expected,
                         std::uint64_t seed) {
  CAPTURE(std::string(source.name()), seed);
  REQUIRE(source.size() == expected.size());
  const std::size_t labels = source.schema().labels.size();
  muster::random_stream random(seed);
  for (int round = 0; round < 30; ++round) {
    std::vector<muster::sample_id> ids(round == 0 ? expected.size() : random.below(2 * expected.size() + 1));
    for (std::size_t k = 0; k < ids.size(); ++k) ids[k] = round == 0 ? k : random.below(expected.size());
    std::vector<std::uint64_t> sizes(ids.size());
    source.sizes(ids, sizes);
    std::vector<std::size_t> offsets;
    std::size_t end = 0;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      REQUIRE(sizes[k] == expected[ids[k]].bytes.size());
      offsets.push_back(end);
      end += sizes[k];
    }
    std::vector<std::byte> bytes(end + 1, std::byte{0x5a});
    std::vector<float> got(ids.size() * labels + 1, -77);
    std::vector<muster::bad_record> bad;
    source.read(ids, {{bytes.data(), end}, {got.data(), got.size() - 1}}, &bad);
    CHECK(bytes.back() == std::byte{0x5a});
    CHECK(got.back() == -77);
    std::vector<muster::sample_id> expected_bad;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const expected_record& record = expected[ids[k]];
      if (record.bad) expected_bad.push_back(ids[k]);
      REQUIRE(std::equal(record.bytes.begin(), record.bytes.end(), bytes.begin() + std::ptrdiff_t(offsets[k])));
      for (std::size_t j = 0; j < labels; ++j) REQUIRE(got[k * labels + j] == record.labels[j]);
    }
    std::vector<muster::sample_id> found;
    for (const auto& record : bad) {
      found.push_back(record.id);
      CHECK_FALSE(record.location.file.empty());
      CHECK((record.location.line != 0 || record.location.offset));
      CHECK_FALSE(record.problem.empty());
    }
    REQUIRE(found == expected_bad);
    if (!expected_bad.empty()) {
      CHECK_THROWS_AS(source.read(ids, {{bytes.data(), end}, {}}), muster::data_error);
    }

    std::vector<float> alone(ids.size() * labels);
    source.read(ids, {{}, alone}, &bad);
    CHECK(std::equal(alone.begin(), alone.end(), got.begin()));
    if (!source.mapped()) continue;
    std::vector<std::span<const std::byte>> views(ids.size());
    bad.clear();
    source.views(ids, views, &bad);
    CHECK(bad.size() == expected_bad.size());
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const expected_record& record = expected[ids[k]];
      if (record.bad) {
        REQUIRE(views[k].empty());
      } else {
        REQUIRE(std::ranges::equal(views[k], record.bytes));
      }
    }
  }
}
