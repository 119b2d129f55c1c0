#include "kernels.hpp"

#include <cmath>

#include <muster/core/float16.hpp>

#include "cells.hpp"
#include "launch.hpp"

namespace nn::device {
namespace {

// ---- biases ----

template <class A>
struct biased {
  const float* bias;
  A* to;
  std::size_t width, biased_columns;
  template <std::size_t W>
  struct columns {
    pack<W> bias;
    A* to;
    std::size_t width;
    NN_BOTH void operator()(std::size_t row) const {
      pack<W> x = load<W>(to + row * width);
      for (std::size_t w = 0; w < W; ++w) x.at[w] += bias.at[w];
      store(to + row * width, x);
    }
  };
  template <std::size_t W>
  NN_BOTH columns<W> at(std::size_t column) const {
    columns<W> part{{}, to + column, width};
    for (std::size_t w = 0; w < W; ++w) part.bias.at[w] = column + w < biased_columns ? bias[column + w] : 0.0f;
    return part;
  }
};

template <class A>
struct rows_of {
  const A* values;
  std::size_t width;
  template <std::size_t W>
  struct columns {
    const A* values;
    std::size_t width;
    NN_BOTH sums<1, W> operator()(std::size_t row) const {
      const pack<W> x = load<W>(values + row * width);
      sums<1, W> terms;
      for (std::size_t w = 0; w < W; ++w) terms.at[0][w] = x.at[w];
      return terms;
    }
  };
  template <std::size_t W>
  NN_BOTH columns<W> at(std::size_t column) const {
    return {values + column, width};
  }
};

struct add_totals {
  float* to;
  std::size_t columns;
  NN_BOTH void operator()(std::size_t c, const column_totals<1>& totals) const {
    if (c < columns) to[c] += static_cast<float>(totals.at[0]);
  }
};

// ---- functions of a number ----

template <class A>
struct logistic {
  const A* in;
  A* out;
  NN_BOTH void operator()(std::size_t i, std::size_t) const {
    out[i] = A(1.0f / (1.0f + std::exp(-static_cast<float>(in[i]))));
  }
};

template <class A>
struct logistic_slope {
  const A* slope;
  const A* results;
  A* gradient;
  bool adds;
  NN_BOTH void operator()(std::size_t i, std::size_t) const {
    const auto y = static_cast<float>(results[i]);
    give(gradient + i, adds, static_cast<float>(slope[i]) * y * (1.0f - y));
  }
};

template <class A>
struct multiplied {
  const A* in;
  const float* factors;
  A* out;
  bool adds;
  NN_BOTH void operator()(std::size_t i, std::size_t) const {
    give(out + i, adds, static_cast<float>(in[i]) * (factors == nullptr ? 1.0f : factors[i]));
  }
};

template <class A>
struct widened {
  const float* in;
  A* out;
  std::size_t from, to;
  NN_BOTH void operator()(std::size_t row, std::size_t column) const {
    out[row * to + column] = A(column < from ? in[row * from + column] : 0.0f);
  }
};

template <class A>
struct as_float {
  const A* in;
  float* out;
  std::size_t from, to;
  NN_BOTH void operator()(std::size_t row, std::size_t column) const {
    out[row * to + column] = static_cast<float>(in[row * from + column]);
  }
};

template <class A>
struct packed_weight {
  const float* parameters;
  const std::int32_t* at;
  A* packed;
  NN_BOTH void operator()(std::size_t i, std::size_t) const { packed[i] = A(at[i] < 0 ? 0.0f : parameters[at[i]]); }
};

template <class A>
struct unpacked_gradient {
  const A* packed;
  const std::int32_t* at;
  float* gradients;
  NN_BOTH void operator()(std::size_t i, std::size_t) const {
    if (at[i] >= 0) gradients[at[i]] += static_cast<float>(packed[i]);
  }
};

// ---- the loss ----

template <class A>
struct cross_entropy {
  const A* logits;
  const float* labels;
  A* gradient;
  std::size_t width, classes;
  double scale;
  template <std::size_t W>  // There is one column.
  struct columns {
    cross_entropy of;
    NN_BOTH sums<3, W> operator()(std::size_t image) const {
      const A* const row = of.logits + image * of.width;
      const auto label = static_cast<std::size_t>(of.labels[image]);
      const auto mine = static_cast<double>(static_cast<float>(row[label]));
      double largest = mine;
      std::size_t before = 0;
      for (std::size_t c = 0; c < of.classes; ++c) {
        const auto value = static_cast<double>(static_cast<float>(row[c]));
        if (!(value <= largest)) largest = value;  // A logit that is NaN makes the loss NaN.
        before += value > mine || (value == mine && c < label) ? 1 : 0;
      }
      double sum = 0;
      for (std::size_t c = 0; c < of.classes; ++c)
        sum += std::exp(static_cast<double>(static_cast<float>(row[c])) - largest);
      for (std::size_t c = 0; c < of.classes; ++c) {
        const double share = std::exp(static_cast<double>(static_cast<float>(row[c])) - largest) / sum;
        of.gradient[image * of.width + c] = A(static_cast<float>(of.scale * (share - (c == label ? 1.0 : 0.0))));
      }
      for (std::size_t c = of.classes; c < of.width; ++c) of.gradient[image * of.width + c] = A(0.0f);
      sums<3, W> terms{};
      terms.at[0][0] = static_cast<float>(std::log(sum) + largest - mine);
      terms.at[1][0] = before < 1 ? 1.0f : 0.0f;
      terms.at[2][0] = before < 5 ? 1.0f : 0.0f;
      return terms;
    }
  };
  template <std::size_t W>
  NN_BOTH columns<W> at(std::size_t) const {
    return {*this};
  }
};

struct keep_totals {
  double* to;
  NN_BOTH void operator()(std::size_t, const column_totals<3>& totals) const {
    for (std::size_t k = 0; k < 3; ++k) to[k] = totals.at[k];
  }
};

}  // namespace

template <class A>
void add_bias(const float* bias, matrix_size size, std::size_t columns, A* to, muster::device_stream_ref stream) {
  per_column(stream, size.rows, size.columns, biased<A>{bias, to, size.columns, columns});
}

template <class A>
void add_bias_gradient(const A* slope, matrix_size size, std::size_t columns, float* to, column_scratch& scratch,
                       muster::device_stream_ref stream) {
  column_sums<1>(stream, scratch, size.rows, size.columns, rows_of<A>{slope, size.columns}, add_totals{to, columns});
}

template <class A>
void sigmoid(const A* in, std::size_t size, A* out, muster::device_stream_ref stream) {
  over_cells(stream, size, 1, logistic<A>{in, out});
}

template <class A>
void sigmoid_backward(const A* slope, const A* results, std::size_t size, A* gradient, bool adds,
                      muster::device_stream_ref stream) {
  over_cells(stream, size, 1, logistic_slope<A>{slope, results, gradient, adds});
}

template <class A>
void multiply(const A* in, const float* factors, std::size_t size, A* out, bool adds,
              muster::device_stream_ref stream) {
  over_cells(stream, size, 1, multiplied<A>{in, factors, out, adds});
}

template <class A>
void widen(const float* in, matrix_size size, std::size_t out_columns, A* out, muster::device_stream_ref stream) {
  over_cells(stream, size.rows, out_columns, widened<A>{in, out, size.columns, out_columns});
}

template <class A>
void to_floats(const A* in, matrix_size size, std::size_t out_columns, float* out, muster::device_stream_ref stream) {
  over_cells(stream, size.rows, out_columns, as_float<A>{in, out, size.columns, out_columns});
}

template <class A>
void pack_weights(const float* parameters, const std::int32_t* at, std::size_t size, A* packed,
                  muster::device_stream_ref stream) {
  over_cells(stream, size, 1, packed_weight<A>{parameters, at, packed});
}

template <class A>
void add_weight_gradients(const A* packed, const std::int32_t* at, std::size_t size, float* gradients,
                          muster::device_stream_ref stream) {
  over_cells(stream, size, 1, unpacked_gradient<A>{packed, at, gradients});
}

template <class A>
void softmax_cross_entropy(const A* logits, const float* labels, matrix_size size, std::size_t classes, double scale,
                           A* gradient, double* totals, column_scratch& scratch, muster::device_stream_ref stream) {
  column_sums<3>(stream, scratch, size.rows, 1,
                 cross_entropy<A>{logits, labels, gradient, size.columns, classes, scale}, keep_totals{totals});
}

#define NN_INSTANTIATE(A)                                                                                            \
  template void add_bias(const float*, matrix_size, std::size_t, A*, muster::device_stream_ref);                     \
  template void add_bias_gradient(const A*, matrix_size, std::size_t, float*, column_scratch&,                       \
                                  muster::device_stream_ref);                                                        \
  template void sigmoid(const A*, std::size_t, A*, muster::device_stream_ref);                                       \
  template void sigmoid_backward(const A*, const A*, std::size_t, A*, bool, muster::device_stream_ref);              \
  template void multiply(const A*, const float*, std::size_t, A*, bool, muster::device_stream_ref);                  \
  template void widen(const float*, matrix_size, std::size_t, A*, muster::device_stream_ref);                        \
  template void to_floats(const A*, matrix_size, std::size_t, float*, muster::device_stream_ref);                    \
  template void pack_weights(const float*, const std::int32_t*, std::size_t, A*, muster::device_stream_ref);         \
  template void add_weight_gradients(const A*, const std::int32_t*, std::size_t, float*, muster::device_stream_ref); \
  template void softmax_cross_entropy(const A*, const float*, matrix_size, std::size_t, double, A*, double*,         \
                                      column_scratch&, muster::device_stream_ref);
NN_INSTANTIATE(float)
NN_INSTANTIATE(muster::bfloat16)
#undef NN_INSTANTIATE

}  // namespace nn::device
