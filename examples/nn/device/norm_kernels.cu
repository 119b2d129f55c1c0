// Sums of normalised matrices, rectified, and their gradients.
#include <cmath>

#include <muster/core/float16.hpp>

#include "../batch_norm.hpp"
#include "kernels.hpp"
#include "launch.hpp"

namespace nn::device {
namespace {

// ---- terms of a sum ----

/// A term in the registers of a thread: W columns of a row.
template <class A, std::size_t W>
struct columns_of_term {
  const A* values;
  A* gradient;
  std::size_t width;
  pack<W> scale, shift, mean, slope_factor, value_factor, offset;
  bool normalised, adds;

  NN_BOTH void add_to(pack<W>& sum, const pack<W>& x) const {
    for (std::size_t w = 0; w < W; ++w) sum.at[w] += normalised ? std::fma(scale.at[w], x.at[w], shift.at[w]) : x.at[w];
  }
  NN_BOTH pack<W> read(std::size_t row) const { return load<W>(values + row * width); }
  NN_BOTH void give(std::size_t row, const pack<W>& slope, const pack<W>& x) const {
    if (gradient == nullptr) return;
    pack<W> sum;
    if (adds) sum = load<W>(gradient + row * width);
    for (std::size_t w = 0; w < W; ++w) {
      const float mine =
          normalised ? std::fma(slope_factor.at[w], slope.at[w], std::fma(value_factor.at[w], x.at[w], offset.at[w]))
                     : slope.at[w];
      sum.at[w] = adds ? sum.at[w] + mine : mine;
    }
    store(gradient + row * width, sum);
  }
};

/// The plain pointers of a term that a kernel receives.
template <class A>
struct given_term {
  const A* values;
  A* gradient;
  bool adds, normalised;
  norm_arrays norm;

  given_term() = default;
  explicit given_term(const term<A>& from)
      : values(from.values),
        gradient(from.gradient),
        adds(from.adds),
        normalised(from.norm != nullptr),
        norm(from.norm != nullptr ? *from.norm : norm_arrays{}) {}

  template <std::size_t W>
  NN_BOTH columns_of_term<A, W> at(std::size_t column, std::size_t width, bool backward) const {
    columns_of_term<A, W> term{};
    term.values = values + column;
    term.gradient = gradient == nullptr ? nullptr : gradient + column;
    term.width = width;
    term.normalised = normalised;
    term.adds = adds;
    if (!normalised) return term;
    term.scale = load<W>(norm.scale + column);
    term.shift = load<W>(norm.shift + column);
    if (!backward) return term;
    term.mean = load<W>(norm.mean + column);
    term.slope_factor = load<W>(norm.slope_factor + column);
    term.value_factor = load<W>(norm.value_factor + column);
    term.offset = load<W>(norm.offset + column);
    return term;
  }
};

template <std::size_t W>
NN_BOTH void rectify(pack<W>& values, const pack<W>& by) {
  for (std::size_t w = 0; w < W; ++w) values.at[w] = by.at[w] > 0 ? values.at[w] : 0.0f;
}

template <class A, std::size_t N>
struct combined {
  given_term<A> terms[N];
  std::size_t width;
  bool rectified;
  A* out;

  template <std::size_t W>
  struct columns {
    columns_of_term<A, W> terms[N];
    bool rectified;
    A* out;
    NN_BOTH void operator()(std::size_t row) const {
      pack<W> sum{};
      for (std::size_t n = 0; n < N; ++n) terms[n].add_to(sum, terms[n].read(row));
      if (rectified) rectify(sum, sum);
      store(out + row * terms[0].width, sum);
    }
  };
  template <std::size_t W>
  NN_BOTH columns<W> at(std::size_t column) const {
    columns<W> part{{}, rectified, out + column};
    for (std::size_t n = 0; n < N; ++n) part.terms[n] = terms[n].template at<W>(column, width, false);
    return part;
  }
};

/// The gradient of the sum before the ReLU, together with the values of the terms.
template <class A, std::size_t N, std::size_t W>
struct slope_of_sum {
  columns_of_term<A, W> terms[N];
  bool rectified;
  const A* slope;
  NN_BOTH pack<W> read(std::size_t row, pack<W> (&x)[N]) const {
    pack<W> found = load<W>(slope + row * terms[0].width);
    pack<W> sum{};
    for (std::size_t n = 0; n < N; ++n) {
      x[n] = terms[n].read(row);
      terms[n].add_to(sum, x[n]);
    }
    if (rectified) rectify(found, sum);
    return found;
  }
};

template <class A, std::size_t N>
struct backward_of_sum {
  given_term<A> terms[N];
  std::size_t width;
  bool rectified;
  const A* slope;
  template <std::size_t W>
  NN_BOTH slope_of_sum<A, N, W> read(std::size_t column) const {
    slope_of_sum<A, N, W> part{{}, rectified, slope + column};
    for (std::size_t n = 0; n < N; ++n) part.terms[n] = terms[n].template at<W>(column, width, true);
    return part;
  }
};

/// Sums of the slope, and of the slope's product with each term's distance from the mean.
template <class A, std::size_t N>
struct slope_sums : backward_of_sum<A, N> {
  template <std::size_t W>
  struct columns : slope_of_sum<A, N, W> {
    NN_BOTH sums<N + 1, W> operator()(std::size_t row) const {
      pack<W> x[N];
      const pack<W> found = this->read(row, x);
      sums<N + 1, W> terms_of_sums;
      for (std::size_t w = 0; w < W; ++w) {
        terms_of_sums.at[0][w] = found.at[w];
        for (std::size_t n = 0; n < N; ++n)
          terms_of_sums.at[n + 1][w] = found.at[w] * (x[n].at[w] - this->terms[n].mean.at[w]);
      }
      return terms_of_sums;
    }
  };
  template <std::size_t W>
  NN_BOTH columns<W> at(std::size_t column) const {
    return {this->template read<W>(column)};
  }
};

template <class A, std::size_t N>
struct finish_slopes {
  given_term<A> terms[N];
  double rows;
  NN_BOTH void operator()(std::size_t c, const column_totals<N + 1>& totals) const {
    for (std::size_t n = 0; n < N; ++n) {
      if (!terms[n].normalised) continue;
      const norm_arrays& norm = terms[n].norm;
      // With x^ = (x - mean) * inverse: dx = gamma * inverse * (g - mean of g - x^ * mean of g x^).
      const double scale = static_cast<double>(norm.scale[c]), inverse = static_cast<double>(norm.inverse[c]);
      const double products = totals.at[n + 1] * inverse;
      norm.beta_gradient[c] += static_cast<float>(totals.at[0]);
      norm.gamma_gradient[c] += static_cast<float>(products);
      const double of_slopes = totals.at[0] / rows, of_products = products / rows;
      norm.slope_factor[c] = norm.scale[c];
      norm.value_factor[c] = static_cast<float>(-scale * of_products * inverse);
      norm.offset[c] =
          static_cast<float>(-scale * of_slopes + scale * of_products * inverse * static_cast<double>(norm.mean[c]));
    }
  }
};

template <class A, std::size_t N>
struct give_slopes : backward_of_sum<A, N> {
  template <std::size_t W>
  struct columns : slope_of_sum<A, N, W> {
    NN_BOTH void operator()(std::size_t row) const {
      pack<W> x[N];
      const pack<W> found = this->read(row, x);
      for (std::size_t n = 0; n < N; ++n) this->terms[n].give(row, found, x[n]);
    }
  };
  template <std::size_t W>
  NN_BOTH columns<W> at(std::size_t column) const {
    return {this->template read<W>(column)};
  }
};

// ---- batch normalisation ----

/// Sums relative to the first row, so that the squares do not cancel.
template <class A>
struct moments {
  const A* values;
  std::size_t width;
  template <std::size_t W>
  struct columns {
    const A* values;
    std::size_t width;
    pack<W> pivot;
    NN_BOTH sums<2, W> operator()(std::size_t row) const {
      const pack<W> x = load<W>(values + row * width);
      sums<2, W> terms;
      for (std::size_t w = 0; w < W; ++w) {
        const float away = x.at[w] - pivot.at[w];
        terms.at[0][w] = away;
        terms.at[1][w] = away * away;
      }
      return terms;
    }
  };
  template <std::size_t W>
  NN_BOTH columns<W> at(std::size_t column) const {
    return {values + column, width, load<W>(values + column)};
  }
};

NN_BOTH inline void set_function(const norm_arrays& norm, std::size_t c, double mean, double variance) {
  const double inverse = 1 / std::sqrt(variance + static_cast<double>(batch_norm<float>::epsilon));
  const double scale = static_cast<double>(norm.gamma[c]) * inverse;
  norm.mean[c] = static_cast<float>(mean);
  norm.inverse[c] = static_cast<float>(inverse);
  norm.scale[c] = static_cast<float>(scale);
  norm.shift[c] = static_cast<float>(static_cast<double>(norm.beta[c]) - mean * scale);
}

NN_BOTH inline void blend(float& old, double fresh) {
  constexpr auto momentum = static_cast<double>(batch_norm<float>::momentum);
  old = static_cast<float>((1 - momentum) * static_cast<double>(old) + momentum * fresh);
}

template <class A>
struct finish_moments {
  const A* values;
  std::size_t width;
  double rows;
  norm_arrays norm;
  NN_BOTH void operator()(std::size_t c, const column_totals<2>& totals) const {
    const double away = totals.at[0] / rows;
    const double mean = static_cast<double>(static_cast<float>(values[c])) + away;
    const double spread = totals.at[1] - totals.at[0] * away;
    const double variance = spread > 0 ? spread / rows : 0;
    blend(norm.running[c], mean);
    blend(norm.running[width + c], variance * rows / (rows > 1 ? rows - 1 : 1));
    set_function(norm, c, mean, variance);
  }
};

struct from_running {
  std::size_t width;
  norm_arrays norm;
  template <std::size_t W>
  struct columns {
    std::size_t column, width;
    norm_arrays norm;
    NN_BOTH void operator()(std::size_t) const {
      for (std::size_t c = column; c < column + W; ++c)
        set_function(norm, c, static_cast<double>(norm.running[c]), static_cast<double>(norm.running[width + c]));
    }
  };
  template <std::size_t W>
  NN_BOTH columns<W> at(std::size_t column) const {
    return {column, width, norm};
  }
};

template <class A, std::size_t N>
void combine_backward_of(std::span<const term<A>> terms, bool rectified, matrix_size size, const A* slope,
                         column_scratch& scratch, muster::device_stream_ref stream) {
  backward_of_sum<A, N> of{{}, size.columns, rectified, slope};
  finish_slopes<A, N> finish{{}, static_cast<double>(size.rows)};
  bool any = false;
  for (std::size_t n = 0; n < N; ++n) {
    of.terms[n] = finish.terms[n] = given_term<A>(terms[n]);
    any = any || terms[n].norm != nullptr;
  }
  if (any) column_sums<N + 1>(stream, scratch, size.rows, size.columns, slope_sums<A, N>{of}, finish);
  per_column(stream, size.rows, size.columns, give_slopes<A, N>{of});
}

}  // namespace

template <class A>
void find_norm(const A* values, matrix_size size, const norm_arrays& norm, column_scratch& scratch,
               muster::device_stream_ref stream) {
  column_sums<2>(stream, scratch, size.rows, size.columns, moments<A>{values, size.columns},
                 finish_moments<A>{values, size.columns, static_cast<double>(size.rows), norm});
}

void find_norm_from_running(std::size_t columns, const norm_arrays& norm, muster::device_stream_ref stream) {
  per_column(stream, 1, columns, from_running{columns, norm});
}

template <class A>
void combine(std::span<const term<A>> terms, bool rectified, matrix_size size, A* out,
             muster::device_stream_ref stream) {
  if (terms.size() == 1) {
    per_column(stream, size.rows, size.columns,
               combined<A, 1>{{given_term<A>(terms[0])}, size.columns, rectified, out});
  } else {
    per_column(stream, size.rows, size.columns,
               combined<A, 2>{{given_term<A>(terms[0]), given_term<A>(terms[1])}, size.columns, rectified, out});
  }
}

template <class A>
void combine_backward(std::span<const term<A>> terms, bool rectified, matrix_size size, const A* slope,
                      column_scratch& scratch, muster::device_stream_ref stream) {
  if (terms.size() == 1)
    combine_backward_of<A, 1>(terms, rectified, size, slope, scratch, stream);
  else
    combine_backward_of<A, 2>(terms, rectified, size, slope, scratch, stream);
}

#define NN_INSTANTIATE(A)                                                                                         \
  template void find_norm(const A*, matrix_size, const norm_arrays&, column_scratch&, muster::device_stream_ref); \
  template void combine(std::span<const term<A>>, bool, matrix_size, A*, muster::device_stream_ref);              \
  template void combine_backward(std::span<const term<A>>, bool, matrix_size, const A*, column_scratch&,          \
                                 muster::device_stream_ref);
NN_INSTANTIATE(float)
NN_INSTANTIATE(muster::bfloat16)
#undef NN_INSTANTIATE

}  // namespace nn::device
