// Buckets summed by PowerSGD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <muster/comm/work.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/codec/powersgd.hpp>
#include <muster/train/compress.hpp>

#include "step_memory.hpp"

namespace muster::inline v0::detail {

class powersgd_reducer final : public bucket_reducer {
 public:
  powersgd_reducer(std::size_t rank, const compress_options& options) : rank_(rank), options_(options) {}

  void attach(arena& of, std::span<const gradient_bucket> buckets) override;
  void begin(group& ranks, std::size_t bucket, std::uint64_t step) override;
  void finish(group& ranks, std::size_t bucket) override;
  void abandon() noexcept override;
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept override { return bytes_sent_; }
  void describe(state_parts& parts) override;

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
    work under_way;
  };

  std::size_t rank_;
  compress_options options_;
  std::vector<one_bucket> buckets_;
  step_memory residuals_{0};
  step_memory rights_{0};
  step_progress progress_;
  std::uint64_t step_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace muster::inline v0::detail
