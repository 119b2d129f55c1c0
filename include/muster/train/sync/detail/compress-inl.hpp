#pragma once

#include <muster/train/sync/compress.hpp>

#include <memory>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/ps/ps_settings.hpp>
#include <muster/train/sync/compressed_gradients.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

template <class T>
std::span<T> elements(buffer<std::byte>& bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

/// Gradients that are summed in the encoded forms of a codec.
class encoded_gradients final : public detail::compressed_gradients {
 public:
  encoded_gradients(arena& tensors, const compression& options)
      : compressed_gradients(tensors), coder_(options), votes_(options.method == compression_method::sign) {}

  void attach(std::span<const gradient_bucket> buckets) override {
    compressed_gradients::attach(buckets);
    for (const auto& bucket : buckets) {
      std::size_t bytes = 0;
      for (const std::size_t tensor : bucket.tensors) bytes += coder_.encoded_bytes(on_host().gradient(tensor).size());
      encoded_.push_back({buffer<std::byte>(bytes), {}});
    }
    if (coder_.is_biased()) residuals_ = &remember_residuals();
  }

 private:
  /// The encoded form of a bucket, tensor by tensor.
  struct encoded_form {
    buffer<std::byte> mine;
    buffer<std::byte> all;  // every rank's form, for codecs that decode each form separately
  };

  /// Calls f(tensor, its gradient, offset of its encoded form, size of that form in bytes).
  template <class F>
  void for_each_tensor(std::size_t bucket, const F& f) {
    std::size_t at = 0;
    for (const std::size_t tensor : buckets()[bucket].tensors) {
      const auto values = on_host().gradient(tensor);
      const std::size_t bytes = coder_.encoded_bytes(values.size());
      f(tensor, values, at, bytes);
      at += bytes;
    }
  }

  [[nodiscard]] std::uint64_t draw_of(std::size_t tensor, int rank) const noexcept {
    const auto own = coder_.shares_draw() ? std::uint64_t{0} : static_cast<std::uint64_t>(rank) + 1;
    return digest().add(detail::seed).add(step()).add(tensor).add(own).value();
  }

  std::size_t send(std::size_t bucket) override {
    auto& form = encoded_[bucket];
    for_each_tensor(bucket, [&](std::size_t tensor, std::span<float> values, std::size_t at, std::size_t bytes) {
      const auto encoded = form.mine.span().subspan(at, bytes);
      const auto draw = draw_of(tensor, ranks().rank());
      const auto part_of_tensor = [&](buffer<float>& residuals) {
        return residuals.span().subspan(on_host().places()[tensor].first, values.size());
      };
      if (residuals_ == nullptr) {
        coder_.encode(values, draw, encoded);
      } else {
        encode_with_feedback(coder_, values, part_of_tensor(residuals_->current), draw, encoded,
                             part_of_tensor(residuals_->next));
      }
    });
    const bool alone = ranks().size() == 1;
    under_way().push_back(alone ? work() : sum_encoded(form));
    return alone ? 0 : form.mine.size();
  }

  [[nodiscard]] work sum_encoded(encoded_form& form) {
    switch (coder_.summed_as()) {
      case dtype::float32:
        return allreduce_async(ranks(), elements<float>(form.mine), sum);
      case dtype::float16:
        return allreduce_async(ranks(), elements<float16>(form.mine), sum);
      case dtype::bfloat16:
        return allreduce_async(ranks(), elements<bfloat16>(form.mine), sum);
      default:
        break;
    }
    const std::size_t bytes = form.mine.size() * static_cast<std::size_t>(ranks().size());
    if (form.all.size() != bytes) form.all = buffer<std::byte>(bytes);
    return allgather_async(ranks(), std::span<const std::byte>(form.mine.span()), form.all.span());
  }

  std::size_t receive(std::size_t bucket) override {
    auto& form = encoded_[bucket];
    const bool summed = ranks().size() == 1 || coder_.summed_as() != dtype::none;
    const auto voters = summed ? std::size_t{1} : static_cast<std::size_t>(ranks().size());
    const auto encoded = summed ? std::span<const std::byte>(form.mine.span()) : form.all.span();
    const std::size_t stride = form.mine.size();
    if (!votes_) clear(buckets()[bucket].elements);
    for_each_tensor(bucket, [&](std::size_t tensor, std::span<float> values, std::size_t at, std::size_t bytes) {
      if (votes_ && !values.empty())
        majority_vote(encoded.subspan(at, (voters - 1) * stride + bytes), voters, stride, values);
      for (std::size_t voter = 0; voter < voters && !votes_; ++voter) {
        coder_.decode_add(encoded.subspan(voter * stride + at, bytes), draw_of(tensor, static_cast<int>(voter)), 1.0f,
                          values);
      }
    });
    return 0;
  }

  any_codec coder_;
  bool votes_;
  std::vector<encoded_form> encoded_;  // by bucket
  memory* residuals_ = nullptr;        // set where errors are fed back
};

}  // namespace detail

MUSTER_INLINE bucket_codec compress(const compression& options) {
  if (options.method == compression_method::none) return {};
  return [=](arena& tensors) -> std::unique_ptr<gradient_backend> {
    if (options.method == compression_method::powersgd) return detail::powersgd_gradients(tensors, options.rank);
    return std::make_unique<detail::encoded_gradients>(tensors, options);
  };
}

MUSTER_INLINE bucket_codec compress(std::string_view text) { return compress(parse_compression(text)); }

MUSTER_INLINE bucket_codec compress(const settings& configuration) {
  return compress(configuration.value(setting::compress));
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
