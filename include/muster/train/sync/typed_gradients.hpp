// Gradients of several element types in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <muster/comm/work.hpp>
#include <muster/core/dtype.hpp>
#include <muster/train/sync/host_gradients.hpp>

namespace muster { inline namespace v0 {

/// Gradients whose tensors have the element types of `tensor_shape::type`. A bucket is summed by one allreduce for each
/// run of adjacent tensors of one type.
class typed_gradients final : public host_gradients {
 public:
  /// Refers to the arena, which must outlive the backend.
  explicit typed_gradients(arena& tensors, bool reproducible = false) noexcept
      : host_gradients(tensors, reproducible) {}

  /// Implements gradient_backend.
  void attach(std::span<const gradient_bucket> buckets) override;
  void begin(group* ranks, std::uint64_t step) override;
  std::size_t start(std::size_t bucket) override;
  [[nodiscard]] bool test(std::size_t bucket) override;
  std::size_t wait(std::size_t bucket) override;
  void abandon() noexcept override;
  void scale(const block& elements, double factor) override;
  [[nodiscard]] double sum_of_squares(const block& elements) override;

 private:
  /// Adjacent tensors of one type, with the gaps between them, which hold zeros.
  struct tensor_run {
    block elements;
    dtype type;
  };

  [[nodiscard]] std::vector<tensor_run> runs_of(const gradient_bucket& bucket);
  // Calls `f` with the elements of a run.
  template <class F>
  void with_elements(const tensor_run& run, const F& f);
  // Calls `f` with the elements of each run in `elements`, which are a bucket.
  template <class F>
  void for_each_run(const block& elements, const F& f);

  std::vector<std::vector<tensor_run>> runs_;  // by bucket
  std::vector<std::vector<work>> sums_;        // by bucket: the collectives of the current step
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
