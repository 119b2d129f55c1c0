// What a device does to the activations of a whole batch, beside convolutions. A matrix has a row for each pixel of
// each image and a column for each channel. Everything is put on the stream and not waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/core/device/span.hpp>
#include <muster/core/device/stream.hpp>

#include "../activation.hpp"

namespace nn::device {

class column_scratch;

/// Batch normalisation, of so many channels: `parameters` are the network's; the others are of the pass.
struct norm_arrays {
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float* gamma_gradient = nullptr;
  float* beta_gradient = nullptr;
  float* running = nullptr;  ///< means, and the variances behind them
  float* mean = nullptr;
  float* inverse = nullptr;  ///< of the standard deviation
  float* scale = nullptr;    ///< the function: scale * x + shift
  float* shift = nullptr;
  float* slope_factor = nullptr;  ///< its gradient: slope_factor * slope + value_factor * x + offset
  float* value_factor = nullptr;
  float* offset = nullptr;
};

/// A matrix that is read as it is or normalised, and where its gradient goes.
template <class A>
struct term {
  const A* values = nullptr;
  const norm_arrays* norm = nullptr;
  A* gradient = nullptr;  ///< null: none is needed
  bool adds = false;      ///< to what is there
};

struct matrix_size {
  std::size_t rows, columns;
};

/// The normalisation's function from the statistics of `values`, which also go into the running ones; or from the
/// running ones alone.
template <class A>
void find_norm(const A* values, matrix_size size, const norm_arrays& norm, column_scratch& scratch,
               muster::device_stream_ref stream);
void find_norm_from_running(std::size_t columns, const norm_arrays& norm, muster::device_stream_ref stream);

/// `out` becomes the sum of one term or two, rectified or not.
template <class A>
void combine(std::span<const term<A>> terms, bool rectified, matrix_size size, A* out,
             muster::device_stream_ref stream);
/// From the gradient of `out`, which may be the place of a term's gradient, those of the terms and of the parameters of
/// their normalisations, which are added to.
template <class A>
void combine_backward(std::span<const term<A>> terms, bool rectified, matrix_size size, const A* slope,
                      column_scratch& scratch, muster::device_stream_ref stream);

/// Adds the bias, of the first so many columns, to each row; adds the sum of all rows to the bias' gradient.
template <class A>
void add_bias(const float* bias, matrix_size size, std::size_t biased, A* to, muster::device_stream_ref stream);
template <class A>
void add_bias_gradient(const A* slope, matrix_size size, std::size_t biased, float* to, column_scratch& scratch,
                       muster::device_stream_ref stream);

/// He's shortcut of option A (see padded_shortcut); the gradient is added or set.
template <class A>
void pad_shortcut(const A* in, std::size_t images, const extent& from, const extent& to, std::size_t stride, A* out,
                  muster::device_stream_ref stream);
template <class A>
void pad_shortcut_backward(const A* slope, std::size_t images, const extent& from, const extent& to, std::size_t stride,
                           A* gradient, bool adds, muster::device_stream_ref stream);

/// The largest of each window, and which of it that is.
template <class A>
void max_pool(const A* in, std::size_t images, const extent& from, const extent& to, const pool_window& window, A* out,
              std::uint8_t* taps, muster::device_stream_ref stream);
template <class A>
void max_pool_backward(const A* slope, const std::uint8_t* taps, std::size_t images, const extent& from,
                       const extent& to, const pool_window& window, A* gradient, bool adds,
                       muster::device_stream_ref stream);

/// The mean over the pixels of each image.
template <class A>
void average_pool(const A* in, std::size_t images, std::size_t pixels, std::size_t columns, A* out,
                  muster::device_stream_ref stream);
template <class A>
void average_pool_backward(const A* slope, std::size_t images, std::size_t pixels, std::size_t columns, A* gradient,
                           bool adds, muster::device_stream_ref stream);

/// out = 1 / (1 + exp(-in)); its gradient, from the results, is added or set.
template <class A>
void sigmoid(const A* in, std::size_t size, A* out, muster::device_stream_ref stream);
template <class A>
void sigmoid_backward(const A* slope, const A* results, std::size_t size, A* gradient, bool adds,
                      muster::device_stream_ref stream);

/// out = in * factors, or in where these are null; its gradient, from the slope, is added or set by the same function.
template <class A>
void multiply(const A* in, const float* factors, std::size_t size, A* out, bool adds, muster::device_stream_ref stream);

/// From floats of `columns` channels to activations of at least as many, the others zeros.
template <class A>
void widen(const float* in, matrix_size size, std::size_t out_columns, A* out, muster::device_stream_ref stream);
/// The first `out_columns` of each row as floats.
template <class A>
void to_floats(const A* in, matrix_size size, std::size_t out_columns, float* out, muster::device_stream_ref stream);

/// packed[i] = parameters[at[i]], zero where that is negative; and gradients[at[i]] += packed[i].
template <class A>
void pack_weights(const float* parameters, const std::int32_t* at, std::size_t size, A* packed,
                  muster::device_stream_ref stream);
template <class A>
void add_weight_gradients(const A* packed, const std::int32_t* at, std::size_t size, float* gradients,
                          muster::device_stream_ref stream);

/// Cross-entropy of softmax as nn::softmax_cross_entropy, of the first `classes` of each row of logits: totals become
/// the loss and how many are among the first and the first five; writes the gradient of scale * the loss.
template <class A>
void softmax_cross_entropy(const A* logits, const float* labels, matrix_size size, std::size_t classes, double scale,
                           A* gradient, double* totals, column_scratch& scratch, muster::device_stream_ref stream);

}  // namespace nn::device
