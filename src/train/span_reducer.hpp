// Buckets summed as the encoded forms of a codec of spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <muster/comm/work.hpp>
#include <muster/core/buffer.hpp>
#include <muster/train/compress.hpp>

#include "step_memory.hpp"

namespace muster::inline v0::detail {

class span_reducer final : public bucket_reducer {
 public:
  span_reducer(const compression& how, const compress_options& options)
      : coder_(how), options_(options), votes_(how.method == compression_method::sign && options.vote) {}

  void attach(arena& of, std::span<const gradient_bucket> buckets) override;
  void begin(group& ranks, std::size_t bucket, std::uint64_t step) override;
  void finish(group& ranks, std::size_t bucket) override;
  void abandon() noexcept override;
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept override { return bytes_sent_; }
  void describe(state_parts& parts) override;

 private:
  /// A tensor of a bucket.
  struct piece {
    std::span<float> values;
    std::size_t place;    // in the residuals
    std::size_t tensor;   // in the arena
    std::size_t encoded;  // where it begins in the bucket's encoded form
  };
  struct one_bucket {
    std::span<float> values;
    std::vector<piece> pieces;
    buffer<std::byte> mine;
    buffer<std::byte> all;  // of all ranks, where they have to be seen one by one
    work under_way;
  };

  [[nodiscard]] bool feeds_back() const noexcept { return options_.feedback && coder_.is_biased(); }
  [[nodiscard]] std::uint64_t draw_of(const piece& of, int rank) const noexcept;
  void send(group& ranks, one_bucket& bucket);
  void add(const one_bucket& bucket, std::span<const std::byte> encoded, int rank);

  any_codec coder_;
  compress_options options_;
  bool votes_;
  std::vector<one_bucket> buckets_;
  step_memory residuals_{0};
  step_progress progress_;
  std::uint64_t step_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace muster::inline v0::detail
