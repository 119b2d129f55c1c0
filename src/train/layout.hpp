// Where tensors lie in an arena, of the host or of a device, and how its gradients are cut into buckets.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/sync/bucket.hpp>
#include <muster/train/sync/tensor_filter.hpp>

namespace muster::inline v0::detail {

/// The extent of each tensor, by its index; see arena. Throws as arena's constructor.
[[nodiscard]] std::vector<block> lay_out(const std::vector<tensor_shape>& shapes);

/// Elements of all.
[[nodiscard]] inline std::size_t size_of(std::span<const block> extents) noexcept {
  return extents.empty() ? 0 : extents.front().first + extents.front().count;
}

/// Cuts gradients into buckets of about so many bytes, the first of another size.
[[nodiscard]] std::vector<gradient_bucket> plan_buckets(std::span<const block> extents, std::size_t bucket,
                                                        std::size_t first_bucket);

/// The whole of the arrays in as few runs as can be, in their order.
[[nodiscard]] std::vector<tensor_run> runs_of(std::span<const tensor_shape> shapes, std::span<const block> extents,
                                              const tensor_filter& filter);
/// The tensors one by one, in the order in which they lie, without the gaps.
[[nodiscard]] std::vector<tensor_run> tensors_of(std::span<const tensor_shape> shapes, std::span<const block> extents,
                                                 const tensor_filter& filter);

}  // namespace muster::inline v0::detail
