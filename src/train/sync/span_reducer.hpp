// Buckets summed as the encoded forms of a codec of spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <muster/core/buffer.hpp>

#include "../double_buffer.hpp"

namespace muster::inline v0::detail {

class span_reducer final : public remembering_reducer {
 public:
  span_reducer(const compression& how, const compress_options& options)
      : remembering_reducer(options), coder_(how), votes_(how.method == compression_method::sign && options.vote) {}

  ~span_reducer() override { abandon(); }  // works before the buffers that they write

  void attach(arena& of, std::span<const gradient_bucket> buckets) override;

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
  };

  [[nodiscard]] work send(group& ranks, std::size_t bucket) override;
  void receive(group& ranks, std::size_t bucket) override;
  [[nodiscard]] bool feeds_back() const noexcept { return options().feedback && coder_.is_biased(); }
  [[nodiscard]] std::uint64_t draw_of(const piece& of, int rank) const noexcept;
  [[nodiscard]] work sum_encoded(group& ranks, one_bucket& bucket);
  void add(const one_bucket& bucket, std::span<const std::byte> encoded, int rank);

  any_codec coder_;
  bool votes_;
  std::vector<one_bucket> buckets_;
  double_buffer residuals_{0};
};

}  // namespace muster::inline v0::detail
