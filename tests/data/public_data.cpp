// The Adult data set in LIBSVM's edition, where it is at hand.
#include <iostream>

#include <muster/data/libsvm.hpp>
#include "catch.hpp"
#include "files.hpp"

TEST_CASE("a9a is read") {
  const auto train_path = public_data("a9a");
  const auto test_path = public_data("a9a.t");
  if (!train_path || !test_path) {
    std::cout << "SKIPPED: a9a and a9a.t are neither in MUSTER_TEST_DATA nor in ../shared/data\n";
    return;
  }
  const auto train = muster::read_libsvm(*train_path);
  CHECK(train.size() == 32560);
  CHECK(train.features() == 122);  // the one sample with a 123rd is not in this copy
  CHECK(train.is_sparse());
  CHECK(train.classes() == std::vector<float>{-1, 1});
  std::size_t positive = 0;
  for (const float label : train.labels()) positive += label > 0 ? 1 : 0;
  CHECK(positive == 7841);
  for (std::size_t i = 0; i < train.size(); ++i) {
    for (const float value : train.sparse(i).values) REQUIRE(value == 1);
  }

  CHECK(muster::read_libsvm(*test_path).features() == 122);
  const auto test = muster::read_libsvm(*test_path, {.min_features = 123});
  CHECK(test.size() == 16281);
  CHECK(test.features() == 123);

  const muster::text_file text(*train_path);
  CHECK(muster::detail::parse_libsvm(text.text(), "a9a", "a9a", {.threads = 3}, 1000).digest() == train.digest());
  const auto dense = muster::read_libsvm(*train_path, {.layout = muster::layout::dense});
  for (std::size_t i = 0; i < train.size(); i += 97) {
    float sum = 0;
    for (const float value : dense.row(i)) sum += value;
    REQUIRE(sum == static_cast<float>(train.sparse(i).indices.size()));
    for (const std::uint32_t index : train.sparse(i).indices) REQUIRE(dense.row(i)[index] == 1);
  }
}
