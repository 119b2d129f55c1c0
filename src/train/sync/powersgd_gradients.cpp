#include <algorithm>
#include <span>

#include <muster/core/codec/powersgd.hpp>
#include <muster/core/hash.hpp>

#include "compressed_gradients.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

std::span<float> take(std::span<float>& from, std::size_t count) {
  const auto taken = from.first(count);
  from = from.subspan(count);
  return taken;
}

class low_rank_gradients final : public compressed_gradients {
 public:
  low_rank_gradients(arena& of, std::size_t rank) : compressed_gradients(of), rank_(rank) {}

  void attach(std::span<const gradient_bucket> buckets) override {
    compressed_gradients::attach(buckets);
    std::size_t rights = 0;
    for (const auto& bucket : buckets) {
      one_bucket made;
      made.rights = rights;
      std::size_t size = 0;
      for (const std::size_t tensor : bucket.tensors) {
        const auto values = on_host().gradient(tensor);
        const auto shape = as_matrix(on_host().shapes()[tensor].extents, rank_);
        if (!shape.pays()) {
          made.plain.push_back(values);
          size += values.size();
          continue;
        }
        made.matrices.push_back({shape, values, on_host().extents()[tensor].first, rights, tensor});
        rights += shape.right_size();
        size += shape.left_size();
      }
      made.rights_size = rights - made.rights;
      made.first = buffer<float>(size);
      buckets_.push_back(std::move(made));
    }
    residuals_ = &remember_residuals();
    rights_ = &remember("factors of PowerSGD", state_kind::replicated, rights);
    for (const auto& bucket : buckets_) {
      for (const auto& one : bucket.matrices)
        low_rank_restart(one.shape, digest().add(seed).add(one.tensor).value(), right_of(rights_->now, one));
    }
  }

 private:
  /// A tensor that is sent as P and Q.
  struct matrix {
    low_rank_shape shape;
    std::span<float> values;
    std::size_t place;  // in the residuals
    std::size_t right;  // in the right factors of all buckets
    std::size_t tensor;
  };
  struct one_bucket {
    std::vector<matrix> matrices;
    std::vector<std::span<float>> plain;  // tensors that are sent as they are
    std::size_t rights = 0;               // where its right factors begin, and how many floats they are
    std::size_t rights_size = 0;
    buffer<float> first;  // the left factors, then the plain tensors
  };

  static std::span<float> right_of(buffer<float>& rights, const matrix& of) {
    return rights.span().subspan(of.right, of.shape.right_size());
  }
  /// The residuals of this step are first what is to be sent.
  std::span<float> wanted_of(const matrix& of) { return residuals_->next.span().subspan(of.place, of.values.size()); }

  std::size_t send(std::size_t index) override {
    auto& bucket = buckets_[index];
    auto left = bucket.first.span();
    for (const auto& one : bucket.matrices) {
      const auto wanted = wanted_of(one);
      const auto residual = residuals_->now.span().subspan(one.place, wanted.size());
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = one.values[i] + residual[i];
      low_rank_left(one.shape, wanted, right_of(rights_->now, one), take(left, one.shape.left_size()));
    }
    for (const auto values : bucket.plain) std::ranges::copy(values, take(left, values.size()).begin());
    const bool alone = ranks().size() == 1;
    under_way().push_back(alone ? work() : allreduce_async(ranks(), bucket.first.span(), sum));
    return alone ? 0 : bucket.first.span().size_bytes();
  }

  std::size_t receive(std::size_t index) override {
    auto& bucket = buckets_[index];
    auto left = bucket.first.span();
    for (const auto& one : bucket.matrices) {
      const auto factor = take(left, one.shape.left_size());
      const auto right = right_of(rights_->next, one);
      orthonormalise(one.shape, factor);
      low_rank_right(one.shape, wanted_of(one), factor, right);
      low_rank_add(one.shape, factor, right, -1.0f, wanted_of(one));
    }
    const auto rights = rights_->next.span().subspan(bucket.rights, bucket.rights_size);
    const bool sends = ranks().size() > 1 && !rights.empty();
    if (sends) allreduce(ranks(), rights, sum);
    left = bucket.first.span();
    for (const auto& one : bucket.matrices) {
      const auto right = right_of(rights_->next, one);
      std::ranges::fill(one.values, 0.0f);
      low_rank_add(one.shape, take(left, one.shape.left_size()), right, 1.0f, one.values);
      low_rank_restart(one.shape, digest().add(seed).add(one.tensor).add(step() + 1).value(), right);
    }
    for (const auto values : bucket.plain) std::ranges::copy(take(left, values.size()), values.begin());
    return sends ? rights.size_bytes() : 0;
  }

  std::size_t rank_;
  std::vector<one_bucket> buckets_;
  memory* residuals_ = nullptr;
  memory* rights_ = nullptr;
};

}  // namespace

// The first extents for rows and the others for columns, cut where rows + columns are least: what is sent grows with
// them. A kernel of 3 x 3 x 16 x 16 is 144 rows of 16, and not, as its first extent alone would have it, 3 of 768.
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

std::unique_ptr<gradient_backend> powersgd_gradients(arena& of, std::size_t rank) {
  return std::make_unique<low_rank_gradients>(of, rank);
}

}}}  // namespace muster::v0::detail
