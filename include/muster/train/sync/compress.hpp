// Buckets of gradients that are summed over the ranks in a compressed form.
#pragma once

#include <string_view>

#include <muster/core/codec/compression.hpp>
#include <muster/core/env.hpp>
#include <muster/train/sync/gradient_backend.hpp>

namespace muster { inline namespace v0 {

/// What `sync_options::codec` takes, for a method of core/codec:
///
///     muster::gradient_sync sync(arena, {.codec = muster::compress("topk:0.1")});
///
/// Each tensor is compressed by itself, so that each has a scale of its own and gaps stay zeros. Encoded forms that can
/// be added go through an allreduce (float16, bfloat16, randomk, blockk), the others through an allgather, after which
/// each rank sums what all have sent, in the order of the ranks; powersgd needs two allreduces, and sends tensors of
/// one dimension, and matrices that two factors do not make smaller, as they are. All ranks get the same bits.
///
/// Residuals of error feedback are each rank's own state, and PowerSGD's factors are replicated; both count when their
/// step commits, and a step that is run again sends the same bytes. They are in the units of the gradients as they are
/// summed: where a model leaves the division by the number of samples to gradient_sync, float16 must hold their sums.
///
/// Methods without compression give an empty one. Throws configuration_error for a text that `parse_compression`
/// refuses.
[[nodiscard]] bucket_codec compress(const compression& how);
[[nodiscard]] bucket_codec compress(std::string_view how);
/// That of `--compress` or MUSTER_COMPRESS.
[[nodiscard]] bucket_codec compress(const settings& chosen);

}}  // namespace muster::v0
