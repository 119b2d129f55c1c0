#include <muster/train/sync/compress.hpp>

#include <algorithm>
#include <memory>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/core/hash.hpp>
#include <muster/ps/settings.hpp>

#include "compressed_gradients.hpp"

namespace muster::inline v0 {
namespace {

template <class T>
std::span<T> elements(buffer<std::byte>& bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

/// Summed as the encoded forms of a codec of spans.
class encoded_gradients final : public detail::compressed_gradients {
 public:
  encoded_gradients(arena& of, const compression& how)
      : compressed_gradients(of), coder_(how), votes_(how.method == compression_method::sign) {}

  void attach(std::span<const gradient_bucket> buckets) override {
    compressed_gradients::attach(buckets);
    for (const auto& bucket : buckets) {
      one_bucket made{.values = part_of(bucket.part), .pieces = {}, .mine = {}, .all = {}};
      std::size_t bytes = 0;
      for (const std::size_t tensor : bucket.tensors) {
        const auto values = on_host().gradient(tensor);
        made.pieces.push_back({values, on_host().extents()[tensor].first, tensor, bytes});
        bytes += coder_.encoded_bytes(values.size());
      }
      made.mine = buffer<std::byte>(bytes);
      buckets_.push_back(std::move(made));
    }
    if (coder_.is_biased()) residuals_ = &remember_residuals();
  }

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

  [[nodiscard]] std::uint64_t draw_of(const piece& of, int rank) const noexcept {
    const auto own = coder_.shares_draw() ? std::uint64_t{0} : static_cast<std::uint64_t>(rank) + 1;
    return digest().add(detail::seed).add(step()).add(of.tensor).add(own).value();
  }

  std::size_t send(std::size_t index) override {
    auto& bucket = buckets_[index];
    for (const auto& one : bucket.pieces) {
      const std::size_t size = one.values.size();
      const auto encoded = bucket.mine.span().subspan(one.encoded, coder_.encoded_bytes(size));
      const auto draw = draw_of(one, ranks().rank());
      if (residuals_ == nullptr) {
        coder_.encode(one.values, draw, encoded);
      } else {
        encode_with_feedback(coder_, one.values, residuals_->now.span().subspan(one.place, size), draw, encoded,
                             residuals_->next.span().subspan(one.place, size));
      }
    }
    if (ranks().size() == 1) {
      under_way().emplace_back();
      return 0;
    }
    under_way().push_back(sum_encoded(bucket));
    return bucket.mine.size();
  }

  [[nodiscard]] work sum_encoded(one_bucket& bucket) {
    switch (coder_.summed_as()) {
      case dtype::float32:
        return allreduce_async(ranks(), elements<float>(bucket.mine), sum);
      case dtype::float16:
        return allreduce_async(ranks(), elements<float16>(bucket.mine), sum);
      case dtype::bfloat16:
        return allreduce_async(ranks(), elements<bfloat16>(bucket.mine), sum);
      default:
        break;
    }
    const std::size_t bytes = bucket.mine.size() * static_cast<std::size_t>(ranks().size());
    if (bucket.all.size() != bytes) bucket.all = buffer<std::byte>(bytes);
    return allgather_async(ranks(), std::span<const std::uint8_t>(elements<std::uint8_t>(bucket.mine)),
                           elements<std::uint8_t>(bucket.all));
  }

  std::size_t receive(std::size_t index) override {
    auto& bucket = buckets_[index];
    const bool summed = ranks().size() == 1 || coder_.summed_as() != dtype::none;
    const auto voters = summed ? std::size_t{1} : static_cast<std::size_t>(ranks().size());
    const auto encoded = summed ? std::span<const std::byte>(bucket.mine.span()) : bucket.all.span();
    const std::size_t stride = bucket.mine.size();
    if (!votes_) std::ranges::fill(bucket.values, 0.0f);
    for (const auto& one : bucket.pieces) {
      const std::size_t bytes = coder_.encoded_bytes(one.values.size());
      if (votes_) {
        if (!one.values.empty())
          majority_vote(encoded.subspan(one.encoded, (voters - 1) * stride + bytes), voters, stride, one.values);
        continue;
      }
      for (std::size_t voter = 0; voter < voters; ++voter) {
        coder_.decode_add(encoded.subspan(voter * stride + one.encoded, bytes), draw_of(one, static_cast<int>(voter)),
                          1.0f, one.values);
      }
    }
    return 0;
  }

  any_codec coder_;
  bool votes_;
  std::vector<one_bucket> buckets_;
  memory* residuals_ = nullptr;  // where errors are fed back
};

}  // namespace

bucket_codec compress(const compression& how) {
  if (how.method == compression_method::none) return {};
  return [=](arena& of) -> std::unique_ptr<gradient_backend> {
    if (how.method == compression_method::powersgd) return detail::powersgd_gradients(of, how.rank);
    return std::make_unique<encoded_gradients>(of, how);
  };
}

bucket_codec compress(std::string_view how) { return compress(parse_compression(how)); }

bucket_codec compress(const settings& chosen) { return compress(chosen.value(setting::compress)); }

}  // namespace muster::inline v0
