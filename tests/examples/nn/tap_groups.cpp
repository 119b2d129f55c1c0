// Tests the division of pixels by their taps inside the image.
#include "tap_groups.hpp"

#include <cstddef>
#include <set>
#include <utility>

#include <muster/core/random.hpp>

#include "catch.hpp"

namespace {

nn::tap_axis random_axis(muster::random_stream& random) {
  nn::tap_axis axis{{}, 1 + random.below(5), 1 + random.below(12)};
  const std::size_t padding = random.below(axis.taps), stride = 1 + random.below(3);
  if (axis.side + 2 * padding < axis.taps) return random_axis(random);
  const std::size_t lines = (axis.side + 2 * padding - axis.taps) / stride + 1;
  for (std::size_t at = 0; at < lines; ++at) {
    axis.lines.push_back({at, static_cast<std::ptrdiff_t>(at * stride) - static_cast<std::ptrdiff_t>(padding)});
  }
  return axis;
}

/// Checks that each line is in one group, and that no tap inside the image is missing.
void check(const nn::tap_axis& axis, const std::vector<nn::line_group>& groups) {
  std::set<std::size_t> seen;
  for (const auto& group : groups) {
    for (const auto& line : group.lines) {
      CHECK(seen.insert(line.at).second);
      for (std::size_t tap = 0; tap < axis.taps; ++tap) {
        const std::ptrdiff_t looks_at = line.base + static_cast<std::ptrdiff_t>(tap);
        const bool inside = looks_at >= 0 && looks_at < static_cast<std::ptrdiff_t>(axis.side);
        const bool has = tap >= group.taps.first && tap < group.taps.first + group.taps.count;
        CHECK((has || !inside));
      }
    }
  }
  CHECK(seen.size() == axis.lines.size());
}

TEST_CASE("groups hold each pixel once with all of its taps, and cost no more than one group", "[nn]") {
  muster::random_stream random(7);
  for (int round = 0; round < 200; ++round) {
    const auto rows = random_axis(random), columns = random_axis(random);
    const std::size_t images = 1 + random.below(8), tile = 1 + random.below(12);
    const nn::tap_groups groups(rows, columns, images, tile);
    INFO("round " << round);
    check(rows, groups.rows());
    check(columns, groups.columns());
    const std::size_t pixels = images * rows.lines.size() * columns.lines.size();
    CHECK(groups.cost() <= (pixels + tile - 1) / tile * rows.taps * columns.taps);
  }
}

TEST_CASE("an image of two by two has four taps a pixel, not nine", "[nn]") {
  const nn::tap_axis axis{{{0, -1}, {1, 0}}, 3, 2};
  const nn::tap_groups groups(axis, axis, 12, 12);
  CHECK(groups.cost() == 4 * 4);
  CHECK(groups.rows().size() == 2);
  CHECK(groups.columns().size() == 2);
}

}  // namespace
