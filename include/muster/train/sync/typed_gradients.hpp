// Gradients of several element types in host memory.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/dtype.hpp>
#include <muster/train/sync/host_gradients.hpp>

namespace muster { inline namespace v0 {

/// Gradients whose tensors have the element types of `tensor_shape::type`. A bucket is summed by one allreduce for each
/// run of adjacent tensors of one type.
class typed_gradients final : public host_gradients {
 public:
  /// Refers to the arena, which must outlive the backend.
  explicit typed_gradients(arena& values) noexcept : host_gradients(values) {}

  /// Implements gradient_backend.
  void attach(std::span<const gradient_bucket> buckets) override {
    host_gradients::attach(buckets);
    for (const auto& bucket : buckets) runs_.push_back(runs_of(bucket));
    sums_.resize(buckets.size());
  }
  void begin(group* ranks, std::uint64_t step) override {
    abandon();
    host_gradients::begin(ranks, step);
  }
  std::size_t start(std::size_t bucket) override {
    if (ranks().size() == 1) return 0;
    if (bucket == 0)
      sums_[0].push_back(allreduce_async(ranks(), on_host().gradients_with_head().first(arena::head), sum));
    for (const auto& run : runs_[bucket]) {
      with_elements(run, [&](auto values) { sums_[bucket].push_back(allreduce_async(ranks(), values, sum)); });
    }
    return buckets()[bucket].elements.count * sizeof(float);
  }
  [[nodiscard]] bool test(std::size_t bucket) override {
    for (auto& each : sums_[bucket]) {
      if (!each.test()) return false;
    }
    return true;
  }
  std::size_t wait(std::size_t bucket) override {
    for (auto& each : sums_[bucket]) each.wait();
    return 0;
  }
  void abandon() noexcept override {
    for (auto& sums : sums_) sums.clear();
    host_gradients::abandon();
  }
  void scale(const block& elements, double factor) override {
    for_each_run(elements, [&](auto values) {
      using T = typename decltype(values)::value_type;
      using wide = std::conditional_t<std::same_as<T, double>, double, float>;
      for (T& value : values) value = static_cast<T>(static_cast<wide>(value) * static_cast<wide>(factor));
    });
  }
  [[nodiscard]] double sum_of_squares(const block& elements) override {
    double squares = 0;
    for_each_run(elements, [&](auto values) {
      for (const auto value : values) {
        const auto wide = static_cast<double>(value);
        squares += wide * wide;
      }
    });
    return squares;
  }

 private:
  /// Adjacent tensors of one type, with the gaps between them, which hold zeros.
  struct tensor_run {
    block elements;
    dtype type;
  };

  [[nodiscard]] std::vector<tensor_run> runs_of(const gradient_bucket& bucket) {
    std::vector<tensor_run> runs;
    for (const std::size_t tensor : bucket.tensors) {
      const block& place = on_host().places()[tensor];
      const dtype type = on_host().shapes()[tensor].type;
      if (place.count == 0) continue;
      if (!runs.empty() && runs.back().type == type)
        runs.back().elements.count += place.count;
      else
        runs.push_back({place, type});
    }
    return runs;
  }

  // Calls `f` with the elements of a run.
  template <class F>
  void with_elements(const tensor_run& run, const F& f) {
    const auto bytes = std::as_writable_bytes(part_of(run.elements));
    detail::with_one_of<float, double, float16, bfloat16>(run.type, [&]<class T>(T /*kind*/) {
      f(std::span<T>(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)));
    });
  }
  // Calls `f` with the elements of each run in `elements`, which are a bucket.
  template <class F>
  void for_each_run(const block& elements, const F& f) {
    for (std::size_t bucket = 0; bucket < runs_.size(); ++bucket) {
      if (buckets()[bucket].elements.first != elements.first || buckets()[bucket].elements.count != elements.count)
        continue;
      for (const auto& run : runs_[bucket]) with_elements(run, f);
      return;
    }
  }

  std::vector<std::vector<tensor_run>> runs_;  // by bucket
  std::vector<std::vector<work>> sums_;        // by bucket: the collectives of the current step
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
