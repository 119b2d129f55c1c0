// Tests of the orders that are computed and not stored: feistel_permutation, block_window_permutation, sampler.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include <muster/data/order/batch_sampler.hpp>
#include "catch.hpp"

namespace {

using ids = std::vector<muster::sample_id>;

template <class Order>
ids list_of(const Order& order) {
  ids list(order.size());
  for (std::uint64_t i = 0; i < order.size(); ++i) list[i] = order[i];
  return list;
}

// Returns the order, element by element.
ids list_of(const muster::data::detail::block_window_permutation& order, std::uint64_t size) {
  ids list(size);
  for (std::uint64_t i = 0; i < size; ++i) order.fill(i, {&list[i], 1});
  return list;
}

bool has_each_once(ids list) {
  std::sort(list.begin(), list.end());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] != i) return false;
  }
  return true;
}

// Returns the deviation of counts from their expected values, in units that are approximately normal for many classes.
double surplus(const std::vector<int>& counts, double expected) {
  double chi_squared = 0;
  for (const int count : counts) chi_squared += (count - expected) * (count - expected) / expected;
  const auto freedom = static_cast<double>(counts.size()) - 1;
  return (chi_squared - freedom) / std::sqrt(2 * freedom);
}

}  // namespace

TEST_CASE("a Feistel order has every id once and can be undone, at any size") {
  for (std::uint64_t size = 0; size < 600; ++size) {
    const muster::data::detail::feistel_permutation order(size, 3, size);
    const ids list = list_of(order);
    REQUIRE(has_each_once(list));
    for (std::uint64_t i = 0; i < size; ++i) REQUIRE(order.position_of(list[i]) == i);
  }
  for (const std::uint64_t size : {4095u, 4096u, 4097u, 65537u, 1000003u}) {
    REQUIRE(has_each_once(list_of(muster::data::detail::feistel_permutation(5, 1, size))));
  }
}

TEST_CASE("a Feistel order of 2^63 samples is one") {
  constexpr std::uint64_t size = std::uint64_t{1} << 63;
  muster::random_stream random(1);
  for (const std::uint64_t count : {size, size - 1, size - 25, size / 2 + 1, (size >> 20) + 7}) {
    const muster::data::detail::feistel_permutation order(9, 2, count);
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t position = random.below(count);
      const muster::sample_id id = order[position];
      REQUIRE(id < count);
      REQUIRE(order.position_of(id) == position);
    }
  }
  CHECK_THROWS_AS(muster::data::detail::feistel_permutation(1, 1, size + 1), muster::configuration_error);
}

TEST_CASE("all orders of four samples are equally likely over epochs of a Feistel order") {
  std::map<ids, int> counts;
  for (std::uint64_t epoch = 0; epoch < 24000; ++epoch)
    ++counts[list_of(muster::data::detail::feistel_permutation(17, epoch, 4))];
  REQUIRE(counts.size() == 24);
  std::vector<int> list;
  for (const auto& [order, count] : counts) list.push_back(count);
  CHECK(std::abs(surplus(list, 1000)) < 4);
}

TEST_CASE("a Feistel order mixes: where samples go says nothing of where they came from") {
  for (const std::uint64_t size : {31u, 256u, 1000u, 4099u}) {
    CAPTURE(size);
    // Position against id in 16 x 16 fields, and the distance of neighbours in 16, over epochs.
    constexpr std::uint64_t cells = 16;
    std::vector<int> fields(cells * cells);
    std::vector<int> gaps(size - 1);
    const std::uint64_t epochs = 400'000 / size;
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
      const ids list = list_of(muster::data::detail::feistel_permutation(23, epoch, size));
      for (std::uint64_t i = 0; i < size; ++i) {
        ++fields[(i % cells) * cells + list[i] % cells];
        if (i > 0) ++gaps[(list[i] + size - list[i - 1]) % size - 1];
      }
    }
    // Fields differ in size if 16 does not divide the size.
    double chi_squared = 0;
    for (std::uint64_t i = 0; i < cells; ++i) {
      for (std::uint64_t j = 0; j < cells; ++j) {
        const auto members = [&](std::uint64_t k) { return static_cast<double>((size - k + cells - 1) / cells); };
        const double expected = static_cast<double>(epochs) * members(i) * members(j) / static_cast<double>(size);
        const double difference = fields[i * cells + j] - expected;
        chi_squared += difference * difference / expected;
      }
    }
    CHECK(chi_squared < 225 + 4 * std::sqrt(2 * 225.0));
    CHECK(surplus(gaps, static_cast<double>(epochs)) < 4);
  }
}

TEST_CASE("epochs and seeds have Feistel orders of their own") {
  const ids list = list_of(muster::data::detail::feistel_permutation(3, 1, 1000));
  CHECK(list_of(muster::data::detail::feistel_permutation(3, 1, 1000)) == list);
  for (const auto& second :
       {muster::data::detail::feistel_permutation(3, 2, 1000), muster::data::detail::feistel_permutation(4, 1, 1000),
        muster::data::detail::feistel_permutation(1, 3, 1000)}) {
    int equal = 0;
    for (std::uint64_t i = 0; i < 1000; ++i) equal += second[i] == list[i] ? 1 : 0;
    CHECK(equal < 10);
  }
}

TEST_CASE("a block-window order has every id once, whatever its sizes") {
  const std::uint64_t seed = 4;
  CAPTURE(seed);
  muster::random_stream random(seed);
  for (int round = 0; round < 3000; ++round) {
    const std::uint64_t size = random.below(round % 10 == 0 ? 3000 : 60);
    const std::uint64_t block = 1 + random.below(20);
    const std::uint64_t window = 1 + random.below(8);
    CAPTURE(size, block, window);
    const muster::data::detail::block_window_permutation order(random(), random.below(5), size, block, window);
    const ids list = list_of(order, size);
    REQUIRE(has_each_once(list));
    // A part that is filled by one call is equal to the elements that are computed one by one.
    const std::uint64_t first = random.below(size + 1);
    ids part(random.below(size - first + 1));
    order.fill(first, part);
    REQUIRE(std::equal(part.begin(), part.end(), list.begin() + static_cast<std::ptrdiff_t>(first)));
  }
}

TEST_CASE("a window of a block-window order has whole blocks, shuffled") {
  constexpr std::uint64_t block = 10, window = 4, size = 1000;
  const ids list = list_of(muster::data::detail::block_window_permutation(3, 0, size, block, window), size);
  std::set<std::uint64_t> found;
  int in_order = 0;
  for (std::uint64_t first = 0; first < size; first += block * window) {
    std::map<std::uint64_t, int> blocks;
    for (std::uint64_t i = first; i < first + block * window; ++i) {
      ++blocks[list[i] / block];
      if (i > first && list[i] == list[i - 1] + 1) ++in_order;
    }
    REQUIRE(blocks.size() == window);
    for (const auto& [number, count] : blocks) {
      REQUIRE(count == block);
      REQUIRE(found.insert(number).second);
    }
  }
  CHECK(in_order < 60);  // the average is 25
  CHECK(list_of(muster::data::detail::block_window_permutation(3, 1, size, block, window), size) != list);
  CHECK_THROWS_AS(muster::data::detail::block_window_permutation(3, 1, size, 0, window), muster::configuration_error);
  CHECK_THROWS_AS(muster::data::detail::block_window_permutation(3, 1, size, block, 0), muster::configuration_error);
}

TEST_CASE("an epoch's order is the one its cursor names, and is entered anywhere") {
  for (const auto kind : {muster::sample_order::sequential, muster::sample_order::shuffled,
                          muster::sample_order::feistel, muster::sample_order::block_window}) {
    muster::cursor at{.order = kind, .size = 997, .seed = 6, .block = 20, .window = 3, .batch = 10, .epoch = 2};
    muster::data::detail::sampler order;
    order.assign(at);
    ids all(at.size);
    order.fill(0, all);
    REQUIRE(has_each_once(all));
    ids part(100);
    order.fill(300, part);
    CHECK(std::equal(part.begin(), part.end(), all.begin() + 300));
    at.position = 50;  // does not affect the order
    order.assign(at);
    order.fill(300, part);
    CHECK(std::equal(part.begin(), part.end(), all.begin() + 300));
    at.epoch = 3;
    order.assign(at);
    ids second(at.size);
    order.fill(0, second);
    CHECK((second == all) == (kind == muster::sample_order::sequential));
  }
  muster::cursor unknown{.order = static_cast<muster::sample_order>(9), .size = 10};
  CHECK_THROWS_WITH(muster::data::detail::sampler().assign(unknown), contains("sample order 9"));
}

TEST_CASE("computed orders are the same on every platform and in every version") {
  CHECK(list_of(muster::data::detail::feistel_permutation(1, 0, 10)) == ids{6, 8, 0, 5, 1, 9, 4, 2, 3, 7});
  CHECK(list_of(muster::data::detail::block_window_permutation(1, 0, 10, 2, 2), 10) ==
        ids{9, 8, 7, 6, 5, 1, 4, 0, 3, 2});
}
