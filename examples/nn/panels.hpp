// Weights in the order in which the kernels read them, and images with zeros around them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <muster/core/buffer.hpp>

#include "activation.hpp"
#include "kernels.hpp"

namespace nn {

/// Packs weights of `terms` rows, weight(t, c) = from[t * term_step + c * column_step], as rows first, first + 1 ... of
/// panels that have `all` rows. A panel has set.panel columns, or set.lanes where fewer columns remain. The last panel
/// is padded with zeros.
template <class T>
void pack_panels(const T* from, std::size_t terms, std::size_t term_step, std::size_t columns, std::size_t column_step,
                 const kernel_set<T>& set, std::size_t first, std::size_t all, T* to) {
  for (std::size_t column = 0, panel = 0; column < columns; column += panel) {
    panel = columns - column < set.panel ? set.lanes : set.panel;
    const std::size_t width = std::min(panel, columns - column);
    T* const base = to + column * all + first * panel;
    for (std::size_t t = 0; t < terms; ++t) {
      const T* const source = from + t * term_step + column * column_step;
      if (column_step == 1) {
        std::memcpy(base + t * panel, source, width * sizeof(T));
      } else {
        for (std::size_t c = 0; c < width; ++c) base[t * panel + c] = source[c * column_step];
      }
      std::fill(base + t * panel + width, base + (t + 1) * panel, T{0});
    }
  }
}

/// Returns the number of columns in all panels together: `columns` rounded up to whole vectors.
template <class T>
std::size_t panel_columns(std::size_t columns, const kernel_set<T>& set) {
  return (columns + set.lanes - 1) / set.lanes * set.lanes;
}

/// Images with `border` zeros around each, and `behind` more zeros below and on the right.
template <class T>
struct framed_images {
  std::size_t border = 0, behind = 0;
  extent inner;
  muster::buffer<T> memory;

  void reserve(std::size_t images) { memory = muster::buffer<T>(images * image_size()); }
  [[nodiscard]] std::size_t row_step() const { return (inner.width + 2 * border + behind) * inner.channels; }
  [[nodiscard]] std::size_t image_size() const { return (inner.height + 2 * border + behind) * row_step(); }
  [[nodiscard]] T* pixel(std::size_t image, std::size_t y, std::size_t x) {
    return memory.data() + image * image_size() + (y + border) * row_step() + (x + border) * inner.channels;
  }
  [[nodiscard]] image_view<T> view(std::size_t image) {
    return {pixel(image, 0, 0), inner.height, inner.width, inner.channels, row_step()};
  }
};

}  // namespace nn
