// Views with strides, against the elements by index.
#include <muster/comm/collectives/packed.hpp>

#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"
#include "comm/oracle.hpp"
#include "comm/ranks.hpp"
#include "require.hpp"

namespace {

// The interface of std::mdspan that a packed view uses.
template <class T, std::size_t Rank>
struct view_of {
  using element_type = T;
  using reference = T&;
  static constexpr std::size_t rank() { return Rank; }
  [[nodiscard]] T* data_handle() const { return at; }
  [[nodiscard]] std::size_t extent(std::size_t r) const { return extents[r]; }
  [[nodiscard]] std::size_t stride(std::size_t r) const { return strides[r]; }
  T* at;
  std::array<std::size_t, Rank> extents, strides;
};

// Returns the places of the elements of the view.
std::vector<std::size_t> places_of(const view_of<int, 3>& view) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < view.extents[0]; ++i) {
    for (std::size_t j = 0; j < view.extents[1]; ++j) {
      for (std::size_t k = 0; k < view.extents[2]; ++k)
        places.push_back(i * view.strides[0] + j * view.strides[1] + k * view.strides[2]);
    }
  }
  return places;
}

// The interface of a block of an Eigen matrix.
struct matrix_block {
  using Scalar = double;
  static constexpr bool IsRowMajor = false;
  [[nodiscard]] std::ptrdiff_t rows() const { return 2; }
  [[nodiscard]] std::ptrdiff_t cols() const { return 3; }
  [[nodiscard]] std::ptrdiff_t innerStride() const { return 1; }
  [[nodiscard]] std::ptrdiff_t outerStride() const { return 5; }
  [[nodiscard]] double* data() const { return at; }
  double* at;
};

}  // namespace

TEST_CASE("a collective of a packed view changes the elements of the view, and no others") {
  const auto seed = test::cases_of_run(1).seed;
  INFO("seed " << seed << " (MUSTER_TEST_SEED sets another)");
  REQUIRE_NOTHROW(test::run_ranks(3, [&](muster::group& world) {
    for (std::uint64_t c = 0; c < 300; ++c) {
      muster::random_stream random(seed, c);
      view_of<int, 3> view{};
      std::size_t reach = 1;
      std::array<std::size_t, 3> order = {0, 1, 2};
      std::swap(order[0], order[random.below(3)]);
      std::swap(order[1], order[1 + random.below(2)]);
      for (const std::size_t r : order) {
        view.extents[r] = random.below(5) == 0 ? random.below(2) : 1 + random.below(6);
        view.strides[r] = reach + (random.below(2) == 0 ? 0 : random.below(4));
        if (view.extents[r] > 0) reach += (view.extents[r] - 1) * view.strides[r];
      }
      std::vector<int> memory(reach + 3);
      std::iota(memory.begin(), memory.end(), world.rank());
      auto expected = memory;
      view.at = memory.data() + 1;
      for (const std::size_t place : places_of(view)) expected[place + 1] = static_cast<int>(3 * (place + 2));
      muster::allreduce(world, muster::packed(view), muster::sum);
      test::require(memory == expected, "the sums at the places of the view");
    }
    std::vector<double> matrix(20, world.rank());
    muster::broadcast(world, muster::packed(matrix_block{matrix.data() + 1}), 2);
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      const bool is_inside = i >= 1 && (i - 1) % 5 < 2 && i < 15;
      test::require(matrix[i] == (is_inside ? 2 : world.rank()), "the block of a matrix");
    }
  }));
}

TEST_CASE("one view is input and output of a call, in either order of evaluation") {
  REQUIRE_NOTHROW(test::run_ranks(2, [&](muster::group& world) {
    std::vector<int> memory = {1, 9, 2, 9, 3};
    const view_of<int, 1> view{memory.data(), {3}, {2}};
    muster::allreduce(world, muster::packed(view), muster::packed(view), muster::sum);
    test::require(memory == std::vector<int>{2, 9, 4, 9, 6}, "the sums");
  }));
  std::vector<int> memory = {1, 9, 2};
  const view_of<int, 1> view{memory.data(), {2}, {2}};
  {
    const muster::packed input(view);  // destroyed last, after the output
    const muster::packed output(view);
    output.data()[0] = 7;
  }
  CHECK(memory == std::vector<int>{7, 9, 2});
}

TEST_CASE("a contiguous view is packed without a copy, and a view that aliases itself is refused") {
  std::vector<float> memory(60);
  const muster::packed whole(view_of<float, 2>{memory.data(), {6, 10}, {1, 6}});
  CHECK(whole.data() == memory.data());
  CHECK(whole.size() == 60);
  const muster::packed rows(view_of<const float, 2>{memory.data(), {6, 5}, {10, 1}});
  CHECK(rows.data() != memory.data());
  CHECK_THROWS_WITH(
      (muster::packed(view_of<float, 2>{memory.data(), {4, 4}, {2, 1}})),
      contains("a view with a stride of 2 cannot be packed (the dimensions with smaller strides reach 4"));
  CHECK_THROWS_WITH((muster::packed(view_of<float, 1>{memory.data(), {4}, {0}})), contains("alias"));
  CHECK_THROWS_WITH((muster::packed(view_of<float, 1>{memory.data() + 9, {4}, {std::size_t(-1)}})),
                    contains("a stride of -1"));
}
