#include "layout.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>

#include "../core/round_up.hpp"

namespace muster::inline v0::detail {
namespace {

constexpr std::size_t elements_a_line = buffer_alignment / sizeof(float);

}  // namespace

std::vector<block> lay_out(const std::vector<tensor_shape>& shapes) {
  std::set<std::string_view> names;
  for (const auto& shape : shapes) {
    if (shape.name.empty()) {
      throw configuration_error("tensor " + std::to_string(names.size()) +
                                " of the arena has no name (views and checkpoints go by it); name it");
    }
    if (!names.insert(shape.name).second) {
      throw configuration_error("two tensors of the arena are named '" + shape.name +
                                "' (views and checkpoints go by the name); rename one");
    }
  }
  std::vector<block> extents(shapes.size());
  std::size_t end = 0;
  for (std::size_t tensor = shapes.size(); tensor-- > 0;) {
    extents[tensor] = {end, round_up(shapes[tensor].size(), elements_a_line)};
    end += extents[tensor].count;
  }
  return extents;
}

// Full buckets first, since each costs a meeting of all ranks; towards the end no bucket is more than a third of what
// is left, down to an eighth of a full one: what leaves last is what no backward pass can hide. A third, since a bucket
// travels while what is left is computed: by half each would end later than the next is ready, unless the pass is
// twice as fast as the link.
std::vector<gradient_bucket> plan_buckets(std::span<const block> extents, std::size_t bucket,
                                          std::size_t first_bucket) {
  const std::size_t all = size_of(extents);
  std::vector<gradient_bucket> buckets;
  std::size_t begin = 0, end = 0;
  gradient_bucket open;
  const auto close = [&] {
    open.part = {begin, end - begin};
    buckets.push_back(std::exchange(open, {}));
    begin = end;
  };
  for (std::size_t tensor = extents.size(); tensor-- > 0;) {
    const std::size_t left = (all - begin) * sizeof(float);
    const std::size_t bytes = std::min(bucket, std::max(bucket / 8, left / 3));
    const std::size_t limit = (buckets.empty() ? first_bucket : bytes) / sizeof(float);
    const std::size_t count = extents[tensor].count;
    if (!open.tensors.empty() && end - begin + count > limit) close();
    open.tensors.push_back(tensor);
    end += count;
  }
  close();
  return buckets;
}

std::vector<tensor_run> runs_of(std::span<const tensor_shape> shapes, std::span<const block> extents,
                                const tensor_filter& filter) {
  std::vector<tensor_run> runs;
  for (std::size_t tensor = shapes.size(); tensor-- > 0;) {  // as they lie
    if (extents[tensor].count == 0) continue;
    const bool chosen = !filter || filter(shapes[tensor]);
    if (runs.empty() || runs.back().chosen != chosen) runs.push_back({extents[tensor].first, 0, chosen});
    runs.back().count += extents[tensor].count;
  }
  return runs;
}

std::vector<tensor_run> tensors_of(std::span<const tensor_shape> shapes, std::span<const block> extents,
                                   const tensor_filter& filter) {
  std::vector<tensor_run> tensors;
  for (std::size_t tensor = shapes.size(); tensor-- > 0;) {  // as they lie
    if (extents[tensor].count > 0)
      tensors.push_back({extents[tensor].first, shapes[tensor].size(), !filter || filter(shapes[tensor])});
  }
  return tensors;
}

}  // namespace muster::inline v0::detail
