// The taps of a kernel that read pixels of the image, and not the zeros around it, for each output pixel.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels.hpp"

namespace nn {

/// A range of taps in a row or a column of a kernel.
struct tap_range {
  std::size_t first = 0, count = 0;
  bool operator==(const tap_range&) const = default;
};

/// A row or a column of pixels, and the line that its first tap reads; a negative line is in the border.
struct pixel_line {
  std::size_t at = 0;
  std::ptrdiff_t base = 0;
};

/// One side of a convolution: its lines of pixels, the number of taps, and the length of the image side that they read.
struct tap_axis {
  std::vector<pixel_line> lines;
  std::size_t taps = 0;
  std::size_t side = 0;
};

/// A group of lines that have the same taps.
struct line_group {
  tap_range taps;
  std::vector<pixel_line> lines;
};

/// A group of pixels that have the same taps. The pixels of several images are adjacent.
struct pixel_group {
  tap_range rows, columns;
  std::vector<pixel_place> places;
  std::size_t an_image = 0;  ///< Number of places in each image.
};

/// The division of a convolution's pixels into groups. At the border a group is cut where skipping the taps in the
/// border saves more than incomplete tiles cost.
class tap_groups {
 public:
  tap_groups(const tap_axis& rows, const tap_axis& columns, std::size_t images, std::size_t tile);

  /// Returns the number of multiplications of a tile with a tap for `images` images.
  [[nodiscard]] std::size_t cost() const noexcept { return cost_; }
  [[nodiscard]] const std::vector<line_group>& rows() const noexcept { return rows_; }
  [[nodiscard]] const std::vector<line_group>& columns() const noexcept { return columns_; }

 private:
  std::vector<line_group> rows_, columns_;
  std::size_t cost_ = 0;
};

}  // namespace nn
