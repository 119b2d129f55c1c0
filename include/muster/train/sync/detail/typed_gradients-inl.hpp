#pragma once

#include <muster/train/sync/typed_gradients.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/dtype.hpp>
#include <muster/core/float16.hpp>
#include <muster/core/inline.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

template <class F>
void typed_gradients::with_elements(const tensor_run& run, const F& f) {
  const auto bytes = std::as_writable_bytes(part_of(run.elements));
  detail::with_one_of<float, double, float16, bfloat16>(run.type, [&]<class T>(T /*kind*/) {
    f(std::span<T>(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)));
  });
}

template <class F>
void typed_gradients::for_each_run(const block& elements, const F& f) {
  for (std::size_t bucket = 0; bucket < runs_.size(); ++bucket) {
    if (buckets()[bucket].elements.first != elements.first || buckets()[bucket].elements.count != elements.count)
      continue;
    for (const auto& run : runs_[bucket]) with_elements(run, f);
    return;
  }
}

MUSTER_INLINE std::vector<typed_gradients::tensor_run> typed_gradients::runs_of(const gradient_bucket& bucket) {
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

MUSTER_INLINE void typed_gradients::attach(std::span<const gradient_bucket> buckets) {
  host_gradients::attach(buckets);
  for (const auto& bucket : buckets) runs_.push_back(runs_of(bucket));
  sums_.resize(buckets.size());
}

MUSTER_INLINE void typed_gradients::begin(group* ranks, std::uint64_t step) {
  abandon();
  host_gradients::begin(ranks, step);
}

MUSTER_INLINE std::size_t typed_gradients::start(std::size_t bucket) {
  if (is_alone()) return 0;
  if (bucket == 0)
    sums_[0].push_back(
        allreduce_async(ranks(), on_host().gradients_with_head().first(arena::head), sum, sum_options()));
  for (const auto& run : runs_[bucket]) {
    with_elements(run,
                  [&](auto values) { sums_[bucket].push_back(allreduce_async(ranks(), values, sum, sum_options())); });
  }
  return buckets()[bucket].elements.count * sizeof(float);
}

MUSTER_INLINE bool typed_gradients::test(std::size_t bucket) {
  for (auto& each : sums_[bucket]) {
    if (!each.test()) return false;
  }
  return true;
}

MUSTER_INLINE std::size_t typed_gradients::wait(std::size_t bucket) {
  for (auto& each : sums_[bucket]) each.wait();
  return 0;
}

MUSTER_INLINE void typed_gradients::abandon() noexcept {
  for (auto& sums : sums_) sums.clear();
  host_gradients::abandon();
}

MUSTER_INLINE void typed_gradients::scale(const block& elements, double factor) {
  for_each_run(elements, [&](auto values) {
    using T = typename decltype(values)::value_type;
    using wide = std::conditional_t<std::same_as<T, double>, double, float>;
    for (T& value : values) value = static_cast<T>(static_cast<wide>(value) * static_cast<wide>(factor));
  });
}

MUSTER_INLINE double typed_gradients::sum_of_squares(const block& elements) {
  double squares = 0;
  for_each_run(elements, [&](auto values) {
    for (const auto value : values) {
      const auto wide = static_cast<double>(value);
      squares += wide * wide;
    }
  });
  return squares;
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
