// PowerSGD's arithmetic on a device: the steps of core/codec/powersgd.hpp. The order of sums depends on the shape
// alone: the bits are the same on any device, and equal the host's within rounding.
#pragma once

#include <cstddef>

#include <muster/core/codec/powersgd.hpp>
#include <muster/core/device/stream.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A row-major matrix with less than 2^31 rows and columns, aligned to 16 bytes, and its related arrays.
struct low_rank_arrays {
  low_rank_shape shape;
  float* gradient;
  const float* residual;     ///< residual of the last step
  float* target;             ///< gradient + residual, and at the end the residual in this step
  const float* right;        ///< Q of the last step
  float* left;               ///< P, row by row; initially zeros
  float* own_right;          ///< Q at this rank
  const float* all_right;    ///< sum of Q over all ranks
  const float* first_right;  ///< replacement for columns without a direction
  float* parts;              ///< low_rank_parts(shape) floats of scratch
};
/// Returns the number of floats in the scratch array of `low_rank_arrays`.
[[nodiscard]] std::size_t low_rank_parts(const low_rank_shape& shape);

/// Enqueues the computation of target = gradient + residual, and of this rank's P, which is then summed over the ranks.
void low_rank_left(const low_rank_arrays& arrays, device_stream_ref stream);
/// Makes the columns of P orthonormal, and computes this rank's Q, which is then summed to `all_right`. A zero column
/// of P gets the first Q's column, which the next step starts from and which adds nothing in this step.
void low_rank_right(const low_rank_arrays& arrays, device_stream_ref stream);
/// Computes the gradient as the approximation of the ranks' sum, and this rank's residual.
void low_rank_end(const low_rank_arrays& arrays, device_stream_ref stream);

}}}  // namespace muster::v0::detail
