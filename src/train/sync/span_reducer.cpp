#include "span_reducer.hpp"

#include <algorithm>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/hash.hpp>

namespace muster::inline v0::detail {
namespace {

template <class T>
std::span<T> elements(buffer<std::byte>& bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace

void span_reducer::attach(arena& of, std::span<const gradient_bucket> buckets) {
  for (const auto& bucket : buckets) {
    one_bucket made{
        .values = of.gradients().subspan(bucket.part.first, bucket.part.count), .pieces = {}, .mine = {}, .all = {}};
    std::size_t bytes = 0;
    for (const std::size_t tensor : bucket.tensors) {
      const auto values = of.gradient(tensor);
      const auto place = static_cast<std::size_t>(values.data() - of.gradients().data());
      made.pieces.push_back({values, place, tensor, bytes});
      bytes += coder_.encoded_bytes(values.size());
    }
    made.mine = buffer<std::byte>(bytes);
    buckets_.push_back(std::move(made));
  }
  set_buckets(buckets_.size());
  if (!feeds_back()) return;
  residuals_ = double_buffer(of.gradients().size());
  remember(residuals_, "residuals of error feedback", state_kind::rank_local);
}

std::uint64_t span_reducer::draw_of(const piece& of, int rank) const noexcept {
  const auto whose = coder_.shares_draw() ? std::uint64_t{0} : static_cast<std::uint64_t>(rank) + 1;
  return digest().add(options().seed).add(step()).add(of.tensor).add(whose).value();
}

work span_reducer::send(group& ranks, std::size_t index) {
  auto& bucket = buckets_[index];
  for (const auto& one : bucket.pieces) {
    const auto encoded = bucket.mine.span().subspan(one.encoded, coder_.encoded_bytes(one.values.size()));
    if (feeds_back()) {
      encode_with_feedback(coder_, one.values, residuals_.now().subspan(one.place, one.values.size()),
                           draw_of(one, ranks.rank()), encoded,
                           residuals_.next().subspan(one.place, one.values.size()));
    } else {
      coder_.encode(one.values, draw_of(one, ranks.rank()), encoded);
    }
  }
  return ranks.size() > 1 ? sum_encoded(ranks, bucket) : work();
}

work span_reducer::sum_encoded(group& ranks, one_bucket& bucket) {
  count_sent(bucket.mine.size());
  switch (coder_.summed_as()) {
    case dtype::float32:
      return allreduce_async(ranks, elements<float>(bucket.mine), sum);
    case dtype::float16:
      return allreduce_async(ranks, elements<float16>(bucket.mine), sum);
    case dtype::bfloat16:
      return allreduce_async(ranks, elements<bfloat16>(bucket.mine), sum);
    default:
      break;
  }
  const std::size_t bytes = bucket.mine.size() * static_cast<std::size_t>(ranks.size());
  if (bucket.all.size() != bytes) bucket.all = buffer<std::byte>(bytes);
  return allgather_async(ranks, std::span<const std::uint8_t>(elements<std::uint8_t>(bucket.mine)),
                         elements<std::uint8_t>(bucket.all));
}

void span_reducer::add(const one_bucket& bucket, std::span<const std::byte> encoded, int rank) {
  for (const auto& one : bucket.pieces) {
    coder_.decode_add(encoded.subspan(one.encoded, coder_.encoded_bytes(one.values.size())), draw_of(one, rank), 1.0f,
                      one.values);
  }
}

void span_reducer::receive(group& ranks, std::size_t index) {
  auto& bucket = buckets_[index];
  const bool summed = ranks.size() == 1 || coder_.summed_as() != dtype::none;
  const auto voters = summed ? std::size_t{1} : static_cast<std::size_t>(ranks.size());
  const auto encoded = summed ? std::span<const std::byte>(bucket.mine.span()) : bucket.all.span();
  if (votes_) {
    for (const auto& one : bucket.pieces) {
      const std::size_t bytes = (voters - 1) * bucket.mine.size() + coder_.encoded_bytes(one.values.size());
      if (!one.values.empty())
        majority_vote(encoded.subspan(one.encoded, bytes), voters, bucket.mine.size(), one.values);
    }
  } else {
    std::ranges::fill(bucket.values, 0.0f);
    for (std::size_t voter = 0; voter < voters; ++voter)
      add(bucket, encoded.subspan(voter * bucket.mine.size(), bucket.mine.size()), static_cast<int>(voter));
  }
}

}  // namespace muster::inline v0::detail
