#include <muster/data/dataset.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/dataset_builder.hpp>
#include "catch.hpp"

namespace {

muster::dataset make_sparse(std::vector<std::uint64_t> offsets, std::vector<std::uint32_t> indices) {
  auto builder = muster::data::dataset_builder::sparse("made", offsets.size() - 1, 5, indices.size());
  std::copy(offsets.begin(), offsets.end(), builder.offsets().begin());
  std::copy(indices.begin(), indices.end(), builder.indices().begin());
  for (std::size_t k = 0; k < indices.size(); ++k) builder.values()[k] = static_cast<float>(k + 1);
  return builder.finish();
}

muster::dataset make_dense(std::size_t rows, std::size_t features, int threads = 0) {
  auto builder = muster::data::dataset_builder::dense("made", rows, features);
  for (std::size_t i = 0; i < rows; ++i) {
    builder.labels()[i] = static_cast<float>(i % 3) - 1;
    for (std::size_t j = 0; j < features; ++j) builder.row(i)[j] = static_cast<float>(i * features + j);
  }
  return builder.finish(threads);
}

}  // namespace

TEST_CASE("dense rows are aligned, padded with zeros and shared by copies") {
  for (const std::size_t features : {1u, 15u, 16u, 17u, 2000u}) {
    const muster::dataset data = make_dense(7, features);
    REQUIRE(data.size() == 7);
    REQUIRE(data.features() == features);
    REQUIRE(data.stride() % 16 == 0);
    REQUIRE(data.stride() < features + 16);
    for (std::size_t i = 0; i < data.size(); ++i) {
      const auto row = data.row(i);
      REQUIRE(reinterpret_cast<std::uintptr_t>(row.data()) % muster::buffer_alignment == 0);
      REQUIRE(row.size() == features);
      REQUIRE(row[features - 1] == static_cast<float>((i + 1) * features - 1));
      for (std::size_t j = features; j < data.stride(); ++j) REQUIRE(row.data()[j] == 0);
    }
    const muster::dataset copy = data;
    CHECK(copy.row(0).data() == data.row(0).data());
  }
}

TEST_CASE("sparse rows are what was put in, empty ones too") {
  const muster::dataset data = make_sparse({0, 2, 2, 5}, {1, 4, 0, 2, 3});
  REQUIRE(data.is_sparse());
  REQUIRE(data.size() == 3);
  CHECK(data.sparse(1).indices.empty());
  const auto row = data.sparse(2);
  CHECK(std::vector<std::uint32_t>(row.indices.begin(), row.indices.end()) == std::vector<std::uint32_t>{0, 2, 3});
  CHECK(std::vector<float>(row.values.begin(), row.values.end()) == std::vector<float>{3, 4, 5});
}

TEST_CASE("a builder that was filled wrongly is refused") {
  // An entry that belongs to no row.
  CHECK_THROWS_AS(make_sparse({0, 2, 2, 4}, {1, 4, 0, 2, 3}), muster::configuration_error);
  CHECK_THROWS_AS(make_sparse({0, 3, 2, 5}, {1, 4, 0, 2, 3}), muster::configuration_error);  // descending
  CHECK_THROWS_AS(make_sparse({1, 2, 2, 5}, {1, 4, 0, 2, 3}), muster::configuration_error);
  CHECK_THROWS_AS(make_sparse({0, 2}, {4, 1}), muster::configuration_error);
  CHECK_THROWS_AS(make_sparse({0, 2}, {4, 4}), muster::configuration_error);
  CHECK_THROWS_AS(make_sparse({0, 2}, {4, 5}), muster::configuration_error);
  CHECK_THROWS_AS(muster::data::dataset_builder::sparse("wide", 1, std::size_t{1} << 32, 1),
                  muster::configuration_error);
}

TEST_CASE("the digest sees every bit, the shape and nothing else") {
  const auto digest_of = [](int threads, auto change) {
    auto builder = muster::data::dataset_builder::dense("made", 1000, 100);  // large enough for more than one block
    for (std::size_t i = 0; i < 1000; ++i) {
      builder.labels()[i] = static_cast<float>(i % 3) - 1;
      for (std::size_t j = 0; j < 100; ++j) builder.row(i)[j] = static_cast<float>(i * 100 + j);
    }
    change(builder);
    return builder.finish(threads).digest();
  };
  const std::uint64_t digest = make_dense(1000, 100).digest();
  for (const int threads : {1, 2, 5}) CHECK(digest_of(threads, [](auto&) {}) == digest);
  for (const std::size_t i : {0u, 1u, 699u, 999u}) {
    const auto change_value = [i](auto& builder) { builder.row(i)[(i * 7) % 100] += 1; };
    const auto change_label = [i](auto& builder) { builder.labels()[i] += 1; };
    const auto swap_rows = [i](auto& builder) {
      for (std::size_t j = 0; j < 100; ++j) std::swap(builder.row(i)[j], builder.row((i + 8) % 1000)[j]);
    };
    CHECK(digest_of(0, change_value) != digest);
    CHECK(digest_of(0, change_label) != digest);
    CHECK(digest_of(0, swap_rows) != digest);
  }
  CHECK(make_dense(1001, 100).digest() != digest);
  CHECK(make_dense(2, 3).digest() != make_dense(3, 2).digest());
  CHECK(make_sparse({0, 2, 2, 5}, {1, 4, 0, 2, 3}).digest() != make_sparse({0, 2, 3, 5}, {1, 4, 0, 2, 3}).digest());
}

TEST_CASE("the classes are the distinct labels") {
  CHECK(make_dense(7, 2).classes() == std::vector<float>{-1, 0, 1});
  CHECK(make_dense(1, 2).classes() == std::vector<float>{-1});
}

TEST_CASE("a dataset by default has no samples") {
  const muster::dataset none;
  CHECK(none.size() == 0);
  CHECK(none.classes().empty());
  CHECK(none.digest() == muster::dataset().digest());
}
