#include "span_reducer.hpp"

#include <algorithm>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/codec/error_feedback.hpp>
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
    one_bucket made{.values = bucket.values, .pieces = {}, .mine = {}, .all = {}, .under_way = {}};
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
  if (feeds_back()) residuals_ = step_memory(of.gradients().size());
}

std::uint64_t span_reducer::draw_of(const piece& of, int rank) const noexcept {
  const auto whose = coder_.shares_draw() ? std::uint64_t{0} : static_cast<std::uint64_t>(rank) + 1;
  return digest().add(options_.seed).add(step_).add(of.tensor).add(whose).value();
}

void span_reducer::begin(group& ranks, std::size_t index, std::uint64_t step) {
  if (index == 0) {
    if (progress_.begin(step)) residuals_.adopt();
    step_ = step;
    bytes_sent_ = 0;
  }
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
  if (ranks.size() > 1) send(ranks, bucket);
}

void span_reducer::send(group& ranks, one_bucket& bucket) {
  bytes_sent_ += bucket.mine.size();
  switch (coder_.summed_as()) {
    case dtype::float32:
      bucket.under_way = allreduce_async(ranks, elements<float>(bucket.mine), sum);
      return;
    case dtype::float16:
      bucket.under_way = allreduce_async(ranks, elements<float16>(bucket.mine), sum);
      return;
    case dtype::bfloat16:
      bucket.under_way = allreduce_async(ranks, elements<bfloat16>(bucket.mine), sum);
      return;
    default:
      break;
  }
  const std::size_t bytes = bucket.mine.size() * static_cast<std::size_t>(ranks.size());
  if (bucket.all.size() != bytes) bucket.all = buffer<std::byte>(bytes);
  bucket.under_way = allgather_async(ranks, std::span<const std::uint8_t>(elements<std::uint8_t>(bucket.mine)),
                                     elements<std::uint8_t>(bucket.all));
}

void span_reducer::add(const one_bucket& bucket, std::span<const std::byte> encoded, int rank) {
  for (const auto& one : bucket.pieces) {
    coder_.decode_add(encoded.subspan(one.encoded, coder_.encoded_bytes(one.values.size())), draw_of(one, rank), 1.0f,
                      one.values);
  }
}

void span_reducer::finish(group& ranks, std::size_t index) {
  auto& bucket = buckets_[index];
  bucket.under_way.wait();
  bucket.under_way = work();
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
  if (index + 1 == buckets_.size()) progress_.complete();
}

void span_reducer::abandon() noexcept {
  for (auto& bucket : buckets_) bucket.under_way = work();
}

void span_reducer::describe(state_parts& parts) {
  if (!feeds_back()) return;
  residuals_.describe(parts, "residuals of error feedback", state_kind::rank_local);
  parts.hook(
      [this] {
        if (progress_.commit()) residuals_.adopt();
      },
      [this] { progress_.discard(); });
}

}  // namespace muster::inline v0::detail
