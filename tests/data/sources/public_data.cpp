// Tests with public data sets, if they are available: LIBSVM's edition of Adult, MNIST, and CIFAR-10.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include <muster/data/sources/cifar.hpp>
#include <muster/data/sources/idx.hpp>
#include <muster/data/sources/libsvm.hpp>
#include <muster/data/sources/text_format.hpp>
#include "../files.hpp"
#include "catch.hpp"

TEST_CASE("a9a is read") {
  const auto train_path = public_data("a9a");
  const auto test_path = public_data("a9a.t");
  if (!train_path || !test_path) {
    std::cout << "SKIPPED: a9a and a9a.t are neither in MUSTER_TEST_DATA nor in ../shared/data\n";
    return;
  }
  const auto train = muster::data::read_libsvm(*train_path);
  CHECK(train.size() == 32560);
  CHECK(train.features() == 122);  // the sample with feature 123 is not in this copy
  CHECK(train.is_sparse());
  CHECK(train.classes() == std::vector<float>{-1, 1});
  std::size_t positive = 0;
  for (const float label : train.labels()) positive += label > 0 ? 1 : 0;
  CHECK(positive == 7841);
  for (std::size_t i = 0; i < train.size(); ++i) {
    for (const float value : train.sparse(i).values) REQUIRE(value == 1);
  }

  CHECK(muster::data::read_libsvm(*test_path).features() == 122);
  const auto test = muster::data::read_libsvm(*test_path, {.min_features = 123});
  CHECK(test.size() == 16281);
  CHECK(test.features() == 123);

  const muster::data::mapped_file text(*train_path);
  const auto format = muster::data::detail::format_of_libsvm("a9a", {});
  CHECK(muster::data::detail::dataset_of_text(text.text(), *format, "a9a", {.threads = 3}, 1000).digest() ==
        train.digest());
  const auto dense = muster::data::read_libsvm(*train_path, {.layout = muster::layout::dense});
  for (std::size_t i = 0; i < train.size(); i += 97) {
    float sum = 0;
    for (const float value : dense.row(i)) sum += value;
    REQUIRE(sum == static_cast<float>(train.sparse(i).indices.size()));
    for (const std::uint32_t index : train.sparse(i).indices) REQUIRE(dense.row(i)[index] == 1);
  }
}

TEST_CASE("MNIST is read from its compressed files") {
  const auto images = public_data("mnist/t10k-images-idx3-ubyte.gz");
  const auto labels = public_data("mnist/t10k-labels-idx1-ubyte.gz");
  if (!images || !labels) {
    std::cout << "SKIPPED: mnist is neither in MUSTER_TEST_DATA nor in ../shared/data\n";
    return;
  }
#ifdef MUSTER_HAS_ZLIB
  const auto mnist = muster::data::open_idx(*images, *labels);
  CHECK(muster::data::to_string(mnist.schema()) == "image uint8[28x28], label label");
  std::vector<std::uint64_t> counts(10);
  double sum = 0;
  for (muster::sample_id id = 0; id < mnist.size(); ++id) {
    ++counts.at(static_cast<std::size_t>(mnist.label(id)));
    for (const std::byte pixel : mnist.view(id)) sum += static_cast<double>(pixel);
  }
  CHECK(counts == std::vector<std::uint64_t>{980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009});
  CHECK(sum / (10000 * 784 * 255.0) == Approx(0.1325).margin(0.0001));  // the known mean for this data set
#else
  CHECK_THROWS_AS(muster::data::open_idx(*images, *labels), muster::data_error);
#endif
}

TEST_CASE("CIFAR-10 is read", "[slow]") {
  const auto maker = public_data("cifar10/make_cifar10.py");
  if (!maker) {
    std::cout << "SKIPPED: cifar10 is neither in MUSTER_TEST_DATA nor in ../shared/data\n";
    return;
  }
  const temporary_folder folder;
  if (std::system(("/usr/bin/python3 '" + *maker + "' '" + folder / "" + "' --limit 600 >/dev/null 2>&1").c_str()) !=
      0) {
    std::cout << "SKIPPED: make_cifar10.py fails here (it needs python3-pil and python3-numpy)\n";
    return;
  }
  const auto train = muster::data::open_cifar10(folder / "data_batch_1.bin");
  const auto test = muster::data::open_cifar10(folder / "", muster::data::cifar_split::test);
  CHECK(train.digest() != test.digest());
  for (const auto& split : {train, test}) {
    REQUIRE(split.size() >= 600);
    std::vector<int> counts(10);
    double sum = 0, neighbours = 0;
    for (muster::sample_id id = 0; id < split.size(); ++id) {
      ++counts.at(static_cast<std::size_t>(split.label(id)));
      const auto image = split.view(id);
      for (std::size_t i = 0; i < image.size(); ++i) {
        sum += static_cast<double>(image[i]);
        if (i % 32 != 0) neighbours += std::abs(static_cast<double>(image[i]) - static_cast<double>(image[i - 1]));
      }
    }
    const auto pixels = static_cast<double>(split.size() * 3072);
    CHECK(*std::min_element(counts.begin(), counts.end()) > 20);
    // Photographs have a medium mean, and neighbouring pixels are similar.
    CHECK(sum / pixels == Approx(120).margin(10));
    CHECK(neighbours / pixels < 20);
  }
}
