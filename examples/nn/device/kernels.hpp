// The kernels for activations of a whole batch, except convolutions. A matrix has a row for each pixel in each image
// and a column for each channel. All functions put their work on the stream and do not wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/core/device/span.hpp>
#include <muster/core/device/stream.hpp>

#include "../activation.hpp"

namespace nn::device {

class column_scratch;

/// The arrays of a batch normalisation of `channels` channels. `parameters` belong to the network, the other arrays to
/// a pass.
struct norm_arrays {
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float* gamma_gradient = nullptr;
  float* beta_gradient = nullptr;
  float* running = nullptr;  ///< Running means, followed by the running variances.
  float* mean = nullptr;
  float* inverse = nullptr;  ///< Inverse of the standard deviation.
  float* scale = nullptr;    ///< Forward function: scale * x + shift.
  float* shift = nullptr;
  float* slope_factor = nullptr;  ///< Gradient: slope_factor * slope + value_factor * x + offset.
  float* value_factor = nullptr;
  float* offset = nullptr;
};

/// A matrix that is read raw or normalised, and the memory for its gradient.
template <class A>
struct term {
  const A* values = nullptr;
  const norm_arrays* norm = nullptr;
  A* gradient = nullptr;  ///< Null if no gradient is needed.
  bool adds = false;      ///< True to add to the present gradient.
};

struct matrix_size {
  std::size_t rows, columns;
};

/// Computes the function of the normalisation from the statistics of `values`, which also update the running
/// statistics; or from the running statistics alone.
template <class A>
void find_norm(const A* values, matrix_size size, const norm_arrays& norm, column_scratch& scratch,
               muster::device_stream_ref stream);
void find_norm_from_running(std::size_t columns, const norm_arrays& norm, muster::device_stream_ref stream);

/// Sets `out` to a sum with one or two terms, optionally rectified.
template <class A>
void combine(std::span<const term<A>> terms, bool rectified, matrix_size size, A* out,
             muster::device_stream_ref stream);
/// Computes the gradients of the terms from the gradient of `out`, which may be in the same memory as a term's
/// gradient. Adds to the gradients of the parameters of their normalisations.
template <class A>
void combine_backward(std::span<const term<A>> terms, bool rectified, matrix_size size, const A* slope,
                      column_scratch& scratch, muster::device_stream_ref stream);

/// Adds the bias of the first `biased` columns to each row; adds the sum over all rows to the bias' gradient.
template <class A>
void add_bias(const float* bias, matrix_size size, std::size_t biased, A* to, muster::device_stream_ref stream);
template <class A>
void add_bias_gradient(const A* slope, matrix_size size, std::size_t biased, float* to, column_scratch& scratch,
                       muster::device_stream_ref stream);

/// Computes He's shortcut of option A (see padded_shortcut). The gradient is added or set.
template <class A>
void pad_shortcut(const A* in, std::size_t images, const extent& from, const extent& to, std::size_t stride, A* out,
                  muster::device_stream_ref stream);
template <class A>
void pad_shortcut_backward(const A* slope, std::size_t images, const extent& from, const extent& to, std::size_t stride,
                           A* gradient, bool adds, muster::device_stream_ref stream);

/// Computes the maximum in each window, and its index in the window.
template <class A>
void max_pool(const A* in, std::size_t images, const extent& from, const extent& to, const pool_window& window, A* out,
              std::uint8_t* taps, muster::device_stream_ref stream);
template <class A>
void max_pool_backward(const A* slope, const std::uint8_t* taps, std::size_t images, const extent& from,
                       const extent& to, const pool_window& window, A* gradient, bool adds,
                       muster::device_stream_ref stream);

/// Computes the mean over the pixels in each image.
template <class A>
void average_pool(const A* in, std::size_t images, std::size_t pixels, std::size_t columns, A* out,
                  muster::device_stream_ref stream);
template <class A>
void average_pool_backward(const A* slope, std::size_t images, std::size_t pixels, std::size_t columns, A* gradient,
                           bool adds, muster::device_stream_ref stream);

/// Computes out = 1 / (1 + exp(-in)). The gradient, computed from the results, is added or set.
template <class A>
void sigmoid(const A* in, std::size_t size, A* out, muster::device_stream_ref stream);
template <class A>
void sigmoid_backward(const A* slope, const A* results, std::size_t size, A* gradient, bool adds,
                      muster::device_stream_ref stream);

/// Computes out = in * factors, or copies `in` if `factors` is null. The same function adds or sets the gradient, given
/// the slope.
template <class A>
void multiply(const A* in, const float* factors, std::size_t size, A* out, bool adds, muster::device_stream_ref stream);

/// Converts floats of `columns` channels to activations of at least as many channels, padded with zeros.
template <class A>
void widen(const float* in, matrix_size size, std::size_t out_columns, A* out, muster::device_stream_ref stream);
/// Converts the first `out_columns` columns in each row to floats.
template <class A>
void to_floats(const A* in, matrix_size size, std::size_t out_columns, float* out, muster::device_stream_ref stream);

/// Computes packed[i] = parameters[at[i]], zero where at[i] is negative; and gradients[at[i]] += packed[i].
template <class A>
void pack_weights(const float* parameters, const std::int32_t* at, std::size_t size, A* packed,
                  muster::device_stream_ref stream);
template <class A>
void add_weight_gradients(const A* packed, const std::int32_t* at, std::size_t size, float* gradients,
                          muster::device_stream_ref stream);

/// Computes the cross-entropy of softmax as nn::softmax_cross_entropy, for the first `classes` columns in each row of
/// logits. Sets the totals to the loss, and the numbers of images whose label has the highest logit and is among the
/// highest five. Writes the gradient of scale * the loss.
template <class A>
void softmax_cross_entropy(const A* logits, const float* labels, matrix_size size, std::size_t classes, double scale,
                           A* gradient, double* totals, column_scratch& scratch, muster::device_stream_ref stream);

}  // namespace nn::device
