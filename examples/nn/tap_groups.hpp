// Which taps of a kernel a pixel has that do not lie in the zeros around the image.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels.hpp"

namespace nn {

/// Some taps of a row or a column of a kernel.
struct tap_range {
  std::size_t first = 0, count = 0;
  bool operator==(const tap_range&) const = default;
};

/// A row or a column of pixels, and where its first tap looks: in the border if that is negative.
struct pixel_line {
  std::size_t at = 0;
  std::ptrdiff_t base = 0;
};

/// One side of a convolution: its lines of pixels, how many taps each has, and how long the image is that they look at.
struct tap_axis {
  std::vector<pixel_line> lines;
  std::size_t taps = 0;
  std::size_t side = 0;
};

/// Lines that have the same taps.
struct line_group {
  tap_range taps;
  std::vector<pixel_line> lines;
};

/// Pixels that have the same taps: those of images one behind another.
struct pixel_group {
  tap_range rows, columns;
  std::vector<pixel_place> places;
  std::size_t an_image = 0;  ///< places of each
};

/// How the pixels of a convolution are cut into groups: at the border, where leaving out the taps that lie in it saves
/// more than tiles that are not full cost.
class tap_groups {
 public:
  tap_groups(const tap_axis& rows, const tap_axis& columns, std::size_t images, std::size_t tile);

  /// Multiplications of a tile with a tap that `images` images cost.
  [[nodiscard]] std::size_t cost() const noexcept { return cost_; }
  [[nodiscard]] const std::vector<line_group>& rows() const noexcept { return rows_; }
  [[nodiscard]] const std::vector<line_group>& columns() const noexcept { return columns_; }

 private:
  std::vector<line_group> rows_, columns_;
  std::size_t cost_ = 0;
};

}  // namespace nn
