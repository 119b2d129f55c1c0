#include <algorithm>
#include <span>

#include <muster/core/codec/powersgd.hpp>
#include <muster/core/hash.hpp>

#include "compressed_gradients.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

std::span<float> take_front(std::span<float>& rest, std::size_t count) {
  const auto front = rest.first(count);
  rest = rest.subspan(count);
  return front;
}

class low_rank_gradients final : public compressed_gradients {
 public:
  low_rank_gradients(arena& values, std::size_t rank) : compressed_gradients(values), rank_(rank) {}

  void attach(std::span<const gradient_bucket> buckets) override {
    compressed_gradients::attach(buckets);
    std::size_t rights = 0;
    for (const auto& bucket : buckets) {
      bucket_plan plan;
      plan.rights = rights;
      std::size_t size = 0;
      for (const std::size_t tensor : bucket.tensors) {
        const auto values = on_host().gradient(tensor);
        const auto shape = as_matrix(on_host().shapes()[tensor].extents, rank_);
        if (!shape.pays()) {
          plan.plain.push_back(values);
          size += values.size();
          continue;
        }
        plan.matrices.push_back({shape, values, on_host().places()[tensor].first, rights, tensor});
        rights += shape.right_size();
        size += shape.left_size();
      }
      plan.rights_size = rights - plan.rights;
      plan.first = buffer<float>(size);
      buckets_.push_back(std::move(plan));
    }
    residuals_ = &remember_residuals();
    rights_ = &remember("factors of PowerSGD", state_kind::replicated, rights);
    for (const auto& bucket : buckets_) {
      for (const auto& entry : bucket.matrices)
        low_rank_refill(entry.shape, digest().add(seed).add(entry.tensor).value(), right_of(rights_->current, entry));
    }
  }

 private:
  /// A tensor that is sent as the factors P and Q.
  struct matrix {
    low_rank_shape shape;
    std::span<float> values;
    std::size_t place;  // offset in the residuals
    std::size_t right;  // offset in the right factors over all buckets
    std::size_t tensor;
  };
  struct bucket_plan {
    std::vector<matrix> matrices;
    std::vector<std::span<float>> plain;  // tensors that are sent uncompressed
    std::size_t rights = 0;               // offset and number of floats for its right factors
    std::size_t rights_size = 0;
    buffer<float> first;  // the left factors, followed by the plain tensors
  };

  static std::span<float> right_of(buffer<float>& rights, const matrix& entry) {
    return rights.span().subspan(entry.right, entry.shape.right_size());
  }
  /// Returns the values to send, which are first stored in this step's residuals.
  std::span<float> target_of(const matrix& entry) {
    return residuals_->next.span().subspan(entry.place, entry.values.size());
  }

  std::size_t send(std::size_t index) override {
    auto& bucket = buckets_[index];
    auto left = bucket.first.span();
    for (const auto& entry : bucket.matrices) {
      const auto target = target_of(entry);
      const auto residual = residuals_->current.span().subspan(entry.place, target.size());
      for (std::size_t i = 0; i < target.size(); ++i) target[i] = entry.values[i] + residual[i];
      low_rank_left(entry.shape, target, right_of(rights_->current, entry), take_front(left, entry.shape.left_size()));
    }
    for (const auto values : bucket.plain) std::ranges::copy(values, take_front(left, values.size()).begin());
    const bool alone = ranks().size() == 1;
    under_way().push_back(alone ? work() : allreduce_async(ranks(), bucket.first.span(), sum));
    return alone ? 0 : bucket.first.span().size_bytes();
  }

  std::size_t receive(std::size_t index) override {
    auto& bucket = buckets_[index];
    auto left = bucket.first.span();
    for (const auto& entry : bucket.matrices) {
      const auto factor = take_front(left, entry.shape.left_size());
      const auto right = right_of(rights_->next, entry);
      orthonormalise(entry.shape, factor);
      low_rank_right(entry.shape, target_of(entry), factor, right);
      low_rank_add(entry.shape, factor, right, -1.0f, target_of(entry));
    }
    const auto rights = rights_->next.span().subspan(bucket.rights, bucket.rights_size);
    const bool sends = ranks().size() > 1 && !rights.empty();
    if (sends) allreduce(ranks(), rights, sum);
    left = bucket.first.span();
    for (const auto& entry : bucket.matrices) {
      const auto right = right_of(rights_->next, entry);
      std::ranges::fill(entry.values, 0.0f);
      low_rank_add(entry.shape, take_front(left, entry.shape.left_size()), right, 1.0f, entry.values);
      low_rank_refill(entry.shape, digest().add(seed).add(entry.tensor).add(step() + 1).value(), right);
    }
    for (const auto values : bucket.plain) std::ranges::copy(take_front(left, values.size()), values.begin());
    return sends ? rights.size_bytes() : 0;
  }

  std::size_t rank_;
  std::vector<bucket_plan> buckets_;
  memory* residuals_ = nullptr;
  memory* rights_ = nullptr;
};

}  // namespace

// Uses the first extents as rows and the other extents as columns, split where rows + columns is smallest, since the
// message grows with that sum. A kernel with extents 3 x 3 x 16 x 16 becomes 144 rows of 16. Its first extent alone
// would give 3 rows of 768.
low_rank_shape as_matrix(std::span<const std::size_t> extents, std::size_t rank) {
  std::size_t all = 1;
  for (const std::size_t extent : extents) all *= extent;
  low_rank_shape best{1, all, rank};
  std::size_t row_count = 1;
  for (const std::size_t extent : extents) {
    row_count *= extent;
    if (row_count != 0 && row_count + all / row_count < best.rows + best.columns)
      best = {row_count, all / row_count, rank};
  }
  return best;
}

std::unique_ptr<gradient_backend> powersgd_gradients(arena& values, std::size_t rank) {
  return std::make_unique<low_rank_gradients>(values, rank);
}

}}}  // namespace muster::v0::detail
