// Buckets summed by PowerSGD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/codec/powersgd.hpp>

#include "../double_buffer.hpp"

namespace muster::inline v0::detail {

class powersgd_reducer final : public remembering_reducer {
 public:
  powersgd_reducer(std::size_t rank, const compress_options& options) : remembering_reducer(options), rank_(rank) {}

  ~powersgd_reducer() override { abandon(); }  // works before the buffers that they write

  void attach(arena& of, std::span<const gradient_bucket> buckets) override;

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

  [[nodiscard]] work send(group& ranks, std::size_t bucket) override;
  void receive(group& ranks, std::size_t bucket) override;

  std::size_t rank_;
  std::vector<one_bucket> buckets_;
  double_buffer residuals_{0};
  double_buffer rights_{0};
};

}  // namespace muster::inline v0::detail
