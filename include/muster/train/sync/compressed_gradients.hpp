// The base of gradients that are sent in a compressed form, with the state that a step leaves to the next step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/codec/powersgd.hpp>
#include <muster/core/hash.hpp>
#include <muster/train/sync/host_gradients.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Seed for random numbers, the same at every rank.
inline constexpr std::uint64_t seed = 1;

class compressed_gradients : public host_gradients {
 public:
  explicit compressed_gradients(arena& tensors) : host_gradients(tensors) {}

  void begin(group* ranks, std::uint64_t step) final {
    host_gradients::begin(ranks, step);
    step_ = step;
  }
  std::size_t start(std::size_t bucket) final {
    if (bucket == 0) head_ = allreduce_async(ranks(), on_host().gradients_with_head().first(arena::head), sum);
    return send(bucket);
  }
  [[nodiscard]] bool test(std::size_t) final { return false; }  // decoding happens at the end of the pass
  std::size_t wait(std::size_t bucket) final {
    head_.wait();
    under_way()[bucket].wait();
    return receive(bucket);
  }
  void abandon() noexcept final {
    head_ = work();
    host_gradients::abandon();
  }
  void commit() noexcept final {
    for (auto& array : memories_) std::swap(array.current, array.next);
  }
  void describe(state_parts& parts) final {
    for (auto& array : memories_) {
      parts.add(
          array.name, array.kind,
          [&array] {
            const auto bytes = std::as_bytes(array.current.span());
            return std::vector<std::byte>(bytes.begin(), bytes.end());
          },
          [&array](std::span<const std::byte> bytes) {
            const std::size_t size = array.current.size() * sizeof(float);
            if (bytes.size() != size) {
              throw configuration_error("the " + array.name + " cannot be restored (the state has " +
                                        std::to_string(bytes.size()) + " bytes instead of " + std::to_string(size) +
                                        "); use the same model and compression");
            }
            if (!bytes.empty()) std::memcpy(array.current.data(), bytes.data(), bytes.size());
          });
    }
  }

 protected:
  /// An array with the values of the last committed step, and the values of the current step.
  struct memory {
    std::string name;
    state_kind kind;
    buffer<float> current;
    buffer<float> next;
  };
  /// Adds an array that belongs to the state. Called in `attach`; the array does not move afterwards.
  memory& remember(std::string name, state_kind kind, std::size_t size) {
    memories_.push_back({std::move(name), kind, buffer<float>(size), buffer<float>(size)});
    return memories_.back();
  }
  memory& remember_residuals() {
    return remember("residuals of error feedback", state_kind::rank_local, on_host().gradients().size());
  }
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }

 private:
  /// `send` encodes a bucket and starts its reduction; `receive` decodes the result. Both return the bytes put into
  /// collectives.
  virtual std::size_t send(std::size_t bucket) = 0;
  virtual std::size_t receive(std::size_t bucket) = 0;

  std::deque<memory> memories_;
  work head_;
  std::uint64_t step_ = 0;
};

/// Returns the shape as which PowerSGD treats a tensor with these extents.
[[nodiscard]] low_rank_shape as_matrix(std::span<const std::size_t> extents, std::size_t rank);

/// Returns gradients that are summed by PowerSGD.
[[nodiscard]] std::unique_ptr<gradient_backend> powersgd_gradients(arena& tensors, std::size_t rank);

inline std::span<float> take_front(std::span<float>& rest, std::size_t count) {
  const auto front = rest.first(count);
  rest = rest.subspan(count);
  return front;
}

class low_rank_gradients final : public compressed_gradients {
 public:
  low_rank_gradients(arena& tensors, std::size_t rank) : compressed_gradients(tensors), rank_(rank) {}

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

// Uses the first extents as rows and the other extents as columns, split where rows + columns is smallest, since the
// message grows with that sum. A kernel with extents 3 x 3 x 16 x 16 becomes 144 rows of 16. Its first extent alone
// would give 3 rows of 768.
inline low_rank_shape as_matrix(std::span<const std::size_t> extents, std::size_t rank) {
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

inline std::unique_ptr<gradient_backend> powersgd_gradients(arena& tensors, std::size_t rank) {
  return std::make_unique<low_rank_gradients>(tensors, rank);
}

}}}  // namespace muster::v0::detail

#include <muster/core/detail/exact_end.hpp>
