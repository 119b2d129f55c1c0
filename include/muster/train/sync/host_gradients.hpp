// Gradients in host memory, summed by the collectives of a group.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/error.hpp>
#include <muster/core/update/lars.hpp>
#include <muster/train/sync/gradient_backend.hpp>

namespace muster { inline namespace v0 {

/// Gradients in host memory whose buckets are each summed by one allreduce. A derived class may sum buckets in another
/// way: its `start` appends its collectives to `under_way`, its `wait` completes the sum of a bucket, and its `test`
/// returns true only for a bucket whose sum is complete.
class host_gradients : public gradient_backend {
 public:
  /// Refers to the arena, which must outlive the backend. `reproducible`: the sums are exact, see `sync_options`.
  explicit host_gradients(arena& tensors, bool reproducible = false) noexcept
      : arena_(&tensors), sum_options_{.reproducible = reproducible} {}

  /// Implements gradient_backend.
  [[nodiscard]] arena_base& base_arena() noexcept override { return *arena_; }
  void attach(std::span<const gradient_bucket> buckets) override { buckets_ = buckets; }
  void begin(group* ranks, std::uint64_t /*step*/) override {
    if (ranks == nullptr) {
      throw configuration_error(
          "a backward pass on the host cannot begin (the group that sums its gradients is not known); call "
          "begin(step.group())");
    }
    ranks_ = ranks;
    under_way_.clear();
  }
  std::size_t start(std::size_t bucket) override {
    auto& sums = under_way_.emplace_back();
    if (is_alone()) return 0;
    const auto values = part_of(buckets_[bucket].elements);
    const auto with_head = arena_->gradients_with_head().first(arena::head + values.size());
    sums = allreduce_async(*ranks_, bucket == 0 ? with_head : values, sum, sum_options_);
    return values.size_bytes();
  }
  [[nodiscard]] bool test(std::size_t bucket) override { return under_way_[bucket].test(); }
  std::size_t wait(std::size_t bucket) override {
    under_way_[bucket].wait();
    return 0;
  }
  void finish() override {}
  void abandon() noexcept override { under_way_.clear(); }

  void put_head(const std::array<float, 2>& numbers) override {
    const auto head = arena_->gradients_with_head().first(arena::head);
    for (std::size_t k = 0; k < head.size(); ++k) head[k] = k < numbers.size() ? numbers[k] : 0;
  }
  [[nodiscard]] std::array<float, 2> head() override {
    const auto numbers = arena_->gradients_with_head();
    return {numbers[0], numbers[1]};
  }
  void clear(const block& elements) override {
    for (float& value : part_of(elements)) value = 0;
  }
  void scale(const block& elements, double factor) override {
    const auto by = static_cast<float>(factor);
    for (float& value : part_of(elements)) value *= by;
  }
  // Adds in lanes, so that the compiler vectorises the loop. The order is the same on every rank, whatever its
  // instruction set.
  [[nodiscard]] double sum_of_squares(const block& elements) override {
    const auto values = part_of(elements);
    return detail::sum_of_squares(values.data(), values.size());
  }

 protected:
  /// Returns the arena, the buckets and the ranks of the current step.
  [[nodiscard]] arena& on_host() noexcept { return *arena_; }
  [[nodiscard]] std::span<const gradient_bucket> buckets() const noexcept { return buckets_; }
  [[nodiscard]] group& ranks() noexcept { return *ranks_; }
  [[nodiscard]] std::span<float> part_of(const block& elements) {
    return arena_->gradients().subspan(elements.first, elements.count);
  }
  /// Returns the options of the allreduces, and true if this rank needs none. A reproducible sum has no negative zero,
  /// also where it has one term.
  [[nodiscard]] const collective_options& sum_options() const noexcept { return sum_options_; }
  [[nodiscard]] bool is_alone() const noexcept { return ranks_->size() == 1 && !sum_options_.reproducible; }
  /// Returns the collectives of the started buckets, in the order of their start.
  [[nodiscard]] std::vector<work>& under_way() noexcept { return under_way_; }

 private:
  arena* arena_;
  collective_options sum_options_;
  std::span<const gradient_bucket> buckets_;
  group* ranks_ = nullptr;
  std::vector<work> under_way_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
