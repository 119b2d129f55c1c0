#include "tap_groups.hpp"

#include <algorithm>

namespace nn {
namespace {

std::vector<line_group> cut(const tap_axis& axis) {
  std::vector<line_group> groups;
  for (const auto& line : axis.lines) {
    const auto taps = static_cast<std::ptrdiff_t>(axis.taps), side = static_cast<std::ptrdiff_t>(axis.side);
    const std::ptrdiff_t first = std::clamp<std::ptrdiff_t>(-line.base, 0, taps);
    const std::ptrdiff_t end = std::clamp(side - line.base, first, taps);
    const tap_range range{static_cast<std::size_t>(first), static_cast<std::size_t>(end - first)};
    auto at = std::find_if(groups.begin(), groups.end(), [&](const line_group& each) { return each.taps == range; });
    if (at == groups.end()) at = groups.insert(groups.end(), {range, {}});
    at->lines.push_back(line);
  }
  return groups;
}

std::vector<line_group> whole(const tap_axis& axis) {
  if (axis.lines.empty()) return {};
  return {{{0, axis.taps}, axis.lines}};
}

std::size_t cost_of(const std::vector<line_group>& rows, const std::vector<line_group>& columns, std::size_t images,
                    std::size_t tile) {
  std::size_t sum = 0;
  for (const auto& y : rows) {
    for (const auto& x : columns) {
      const std::size_t tiles = (images * y.lines.size() * x.lines.size() + tile - 1) / tile;
      sum += tiles * y.taps.count * x.taps.count;
    }
  }
  return sum;
}

}  // namespace

tap_groups::tap_groups(const tap_axis& rows, const tap_axis& columns, std::size_t images, std::size_t tile)
    : rows_(whole(rows)), columns_(whole(columns)), cost_(cost_of(rows_, columns_, images, tile)) {
  const auto try_out = [&](std::vector<line_group> by_row, std::vector<line_group> by_column) {
    const std::size_t cost = cost_of(by_row, by_column, images, tile);
    if (cost >= cost_) return;
    cost_ = cost;
    rows_ = std::move(by_row);
    columns_ = std::move(by_column);
  };
  try_out(cut(rows), whole(columns));
  try_out(whole(rows), cut(columns));
  try_out(cut(rows), cut(columns));
}

}  // namespace nn
