#include "powersgd_reducer.hpp"

#include <algorithm>
#include <span>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/hash.hpp>

namespace muster::inline v0::detail {
namespace {

std::span<float> take(std::span<float>& from, std::size_t count) {
  const auto taken = from.first(count);
  from = from.subspan(count);
  return taken;
}

/// The first extents for rows and the others for columns, cut where rows + columns are least: what is sent grows with
/// them. A kernel of 3 x 3 x 16 x 16 is 144 rows of 16, and not, as its first extent alone would have it, 3 of 768.
low_rank_shape as_matrix(std::span<const std::size_t> extents, std::size_t rank) {
  std::size_t all = 1;
  for (const std::size_t extent : extents) all *= extent;
  low_rank_shape best{1, all, rank};
  std::size_t rows = 1;
  for (const std::size_t extent : extents) {
    rows *= extent;
    if (rows != 0 && rows + all / rows < best.rows + best.columns) best = {rows, all / rows, rank};
  }
  return best;
}

}  // namespace

void powersgd_reducer::attach(arena& of, std::span<const gradient_bucket> buckets) {
  std::size_t rights = 0;
  for (const auto& bucket : buckets) {
    one_bucket made;
    made.rights = rights;
    std::size_t size = 0;
    for (const std::size_t tensor : bucket.tensors) {
      const auto values = of.gradient(tensor);
      const auto shape = as_matrix(of.shapes()[tensor].extents, rank_);
      if (!shape.pays()) {
        made.plain.push_back(values);
        size += values.size();
        continue;
      }
      const auto place = static_cast<std::size_t>(values.data() - of.gradients().data());
      made.matrices.push_back({shape, values, place, rights, tensor});
      rights += shape.right_size();
      size += shape.left_size();
    }
    made.rights_size = rights - made.rights;
    made.first = buffer<float>(size);
    buckets_.push_back(std::move(made));
  }
  rights_ = double_buffer(rights);
  residuals_ = double_buffer(of.gradients().size());
  remember(residuals_, "residuals of error feedback", state_kind::rank_local);
  remember(rights_, "factors of PowerSGD", state_kind::replicated);
  set_buckets(buckets_.size());
  for (const auto& bucket : buckets_) {
    for (const auto& one : bucket.matrices) {
      low_rank_restart(one.shape, digest().add(options().seed).add(one.tensor).value(),
                       rights_.now().subspan(one.right, one.shape.right_size()));
    }
  }
}

work powersgd_reducer::send(group& ranks, std::size_t index) {
  auto& bucket = buckets_[index];
  auto left = bucket.first.span();
  for (const auto& one : bucket.matrices) {
    // The residuals of this step are first what is to be sent.
    const auto wanted = residuals_.next().subspan(one.place, one.values.size());
    const auto residual = residuals_.now().subspan(one.place, one.values.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      wanted[i] = options().feedback ? one.values[i] + residual[i] : one.values[i];
    low_rank_left(one.shape, wanted, rights_.now().subspan(one.right, one.shape.right_size()),
                  take(left, one.shape.left_size()));
  }
  for (const auto values : bucket.plain) std::ranges::copy(values, take(left, values.size()).begin());
  if (ranks.size() == 1) return {};
  count_sent(bucket.first.size() * sizeof(float));
  return allreduce_async(ranks, bucket.first.span(), sum);
}

void powersgd_reducer::receive(group& ranks, std::size_t index) {
  auto& bucket = buckets_[index];
  auto left = bucket.first.span();
  for (const auto& one : bucket.matrices) {
    const auto factor = take(left, one.shape.left_size());
    const auto wanted = residuals_.next().subspan(one.place, one.values.size());
    const auto right = rights_.next().subspan(one.right, one.shape.right_size());
    orthonormalise(one.shape, factor);
    low_rank_right(one.shape, wanted, factor, right);
    low_rank_add(one.shape, factor, right, -1.0f, wanted);
  }
  const auto rights = rights_.next().subspan(bucket.rights, bucket.rights_size);
  if (ranks.size() > 1 && !rights.empty()) {
    count_sent(rights.size_bytes());
    allreduce(ranks, rights, sum);
  }
  left = bucket.first.span();
  for (const auto& one : bucket.matrices) {
    const auto right = rights_.next().subspan(one.right, one.shape.right_size());
    std::ranges::fill(one.values, 0.0f);
    low_rank_add(one.shape, take(left, one.shape.left_size()), right, 1.0f, one.values);
    low_rank_restart(one.shape, digest().add(options().seed).add(one.tensor).add(step() + 1).value(), right);
  }
  for (const auto values : bucket.plain) std::ranges::copy(take(left, values.size()), values.begin());
}

}  // namespace muster::inline v0::detail
