// PowerSGD's arithmetic on a device: the steps of core/codec/powersgd.hpp. Sums are in an order that depends on the
// shape alone: the same bits on any device, and within rounding those of the host.
#pragma once

#include <cstddef>

#include <muster/core/codec/powersgd.hpp>
#include <muster/core/device/stream.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A matrix of less than 2^31 rows and columns, row by row at a multiple of 16 bytes, and what belongs to it.
struct low_rank_arrays {
  low_rank_shape shape;
  float* gradient;
  const float* residual;     ///< of the last step
  float* wanted;             ///< their sum, and in the end the residual of this step
  const float* right;        ///< Q of the last step
  float* left;               ///< P, row by row; zeros at first
  float* own_right;          ///< Q of this rank
  const float* all_right;    ///< Q of all ranks
  const float* first_right;  ///< for columns that have no direction
  float* parts;              ///< low_rank_parts(shape) floats of scratch
};
[[nodiscard]] std::size_t low_rank_parts(const low_rank_shape& shape);

/// Puts on a stream: wanted = gradient + residual, and this rank's P, which is then summed over the ranks.
void low_rank_left(const low_rank_arrays& of, device_stream_ref stream);
/// Makes the columns of P orthonormal, and this rank's Q, which is then summed to `all_right`. For a column of zeros in
/// P it is the first Q's: the next step begins with it, and it adds nothing to this one.
void low_rank_right(const low_rank_arrays& of, device_stream_ref stream);
/// gradient = what stands for that of all ranks, and this rank's residual.
void low_rank_end(const low_rank_arrays& of, device_stream_ref stream);

}}}  // namespace muster::v0::detail
