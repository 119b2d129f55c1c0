// Compressed reduction of gradient buckets.
#pragma once

#include <string_view>

#include <muster/core/codec/compression.hpp>
#include <muster/core/env.hpp>
#include <muster/train/sync/gradient_backend.hpp>

namespace muster { inline namespace v0 {

/// Returns the codec for `sync_options::codec` that sums buckets with a method of core/codec:
///
///     muster::gradient_sync sync(arena, {.codec = muster::compress("topk:0.1")});
///
/// Each tensor is compressed separately, so each tensor has its own scale and gaps stay zeros. Encoded forms that
/// support addition use an allreduce (float16 and bfloat16). The other methods use an allgather, after
/// which each rank sums all contributions, in the order of the ranks. powersgd needs two allreduces. It
/// sends uncompressed the tensors with one dimension, and matrices that two factors do not make smaller. All ranks get
/// the same bits.
///
/// Residuals of error feedback are rank-local state, and PowerSGD's factors are replicated. Both take effect when their
/// step commits, so a repeated step sends the same bytes. Residuals have the scale of the gradients as summed: where a
/// model leaves the division by the number of samples to gradient_sync, float16 must be able to represent their sums.
///
/// Returns an empty codec for a method without compression. Throws configuration_error for a text that
/// `parse_compression` rejects.
[[nodiscard]] bucket_codec compress(const compression& options);
[[nodiscard]] bucket_codec compress(std::string_view text);
/// Returns the codec of `--compress` or MUSTER_COMPRESS.
[[nodiscard]] bucket_codec compress(const settings& configuration);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
