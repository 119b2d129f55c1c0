// Kernels that compute one number each.
#pragma once

#include <cstddef>

#include "launch.hpp"

namespace nn::device {

/// Calls each(row, column) for one column after the other, in kernels that gain nothing from neighbouring columns.
template <class Each>
struct cellwise {
  Each each;
  template <std::size_t W>
  struct columns {
    Each each;
    std::size_t column;
    NN_BOTH void operator()(std::size_t row) const {
      for (std::size_t w = 0; w < W; ++w) each(row, column + w);
    }
  };
  template <std::size_t W>
  NN_BOTH columns<W> at(std::size_t column) const {
    return {each, column};
  }
};
template <class Each>
void over_cells(muster::device_stream_ref stream, std::size_t rows, std::size_t columns, const Each& each) {
  per_column(stream, rows, columns, cellwise<Each>{each});
}

template <class A>
NN_BOTH void give(A* to, bool adds, float value) {
  *to = A(adds ? static_cast<float>(*to) + value : value);
}

}  // namespace nn::device
