#include "ordered_gradients.hpp"

#include <algorithm>

#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>

namespace muster { inline namespace v0 { namespace detail {
namespace {

void add_to(std::span<float> sum, std::span<const float> more) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

}  // namespace

// ---- the tree ----

int tree_sum::add(node next) {
  int joined = 0;
  while (1 << next.level < leaves_) {
    const bool is_second = next.index % 2 != 0;
    if (is_second) {
      if (nodes_.empty() || nodes_.back() != node{next.level, next.index - 1}) break;
      nodes_.pop_back();
      ++joined;
    } else if ((next.index + 1) << next.level < leaves_) {
      break;
    }
    next = {next.level + 1, next.index / 2};
  }
  nodes_.push_back(next);
  return joined;
}

void tree_sum::add_leaves(index_range leaves) {
  for (auto leaf = leaves.first; leaf < leaves.last; ++leaf) add({0, static_cast<int>(leaf)});
}

// ---- a step ----

void ordered_gradients::attach(std::span<const gradient_bucket> buckets) {
  host_gradients::attach(buckets);
  messages_.resize(buckets.size());
}

void ordered_gradients::begin(group* ranks, std::uint64_t step) {
  host_gradients::begin(ranks, step);
  own_.clear();
  const batch_shard own_shard{ranks->rank(), ranks->size(), parts_, weights_};
  const auto parts_of = [&](int rank) {
    return v0::part_of(static_cast<std::uint64_t>(parts_), {rank, own_shard.world, 0, weights_});
  };
  next_part_ = static_cast<int>(parts_of(own_shard.rank).first);
  if (layout_for_ == own_shard) return;
  layout_for_ = own_shard;
  nodes_of_.clear();
  most_nodes_ = 1;
  for (int rank = 0; rank < own_shard.world; ++rank) {
    tree_sum rank_sum(parts_);
    rank_sum.add_leaves(parts_of(rank));
    nodes_of_.push_back(rank_sum.nodes());
    most_nodes_ = std::max(most_nodes_, rank_sum.nodes().size());
  }
}

// Adds the gradients of a pass, except the step's last pass, to the partial sums. A sum has the layout of the gradients
// with their head. Its head is zero: the head's numbers (put_head) are set only when the first bucket is started, in
// the last pass.
void ordered_gradients::end_pass() {
  const auto gradients = on_host().gradients_with_head();
  std::ranges::fill(gradients.first(arena::head), 0.0f);
  const int joined = own_.add({0, next_part_++});
  std::size_t target = own_.nodes().size() - 1 + static_cast<std::size_t>(joined);
  if (joined == 0) {
    if (sums_.size() <= target) sums_.emplace_back(gradients.size());
    std::ranges::copy(gradients, sums_[target].span().begin());
    return;
  }
  add_to(sums_[target - 1].span(), gradients);
  for (--target; target >= own_.nodes().size(); --target) add_to(sums_[target - 1].span(), sums_[target].span());
}

std::span<float> ordered_gradients::values_of(std::size_t bucket) {
  const auto part = buckets()[bucket].part;
  const auto all = on_host().gradients_with_head();
  return bucket == 0 ? all.first(arena::head + part.count) : all.subspan(arena::head + part.first, part.count);
}

// Returns the number of elements per partial sum in a message from one rank to another.
std::size_t ordered_gradients::piece_of(std::size_t count) const noexcept {
  const auto ranks = nodes_of_.size();
  return (count + ranks - 1) / ranks;
}

std::size_t ordered_gradients::start(std::size_t bucket) {
  const auto values = values_of(bucket);
  const auto at = static_cast<std::size_t>(values.data() - on_host().gradients_with_head().data());
  const auto& mine = nodes_of_[static_cast<std::size_t>(layout_for_.rank)];
  if (bucket == 0) {
    joined_ = mine.empty() ? 0 : own_.add({0, next_part_});
    if (own_.nodes() != mine) {
      throw configuration_error(
          "the gradients of a step cannot be summed by virtual shards (its passes do not match this rank's shards); "
          "call "
          "begin() with as many passes as the rank has shards");
    }
  }
  const auto sum = [&](std::size_t k) { return sums_[k].span().subspan(at, values.size()); };
  for (auto k = static_cast<std::size_t>(joined_); k > 0; --k) add_to(values, sum(mine.size() - 1 + k - 1));

  auto& sending = under_way().emplace_back();
  const int rank_count = layout_for_.world;
  if (rank_count == 1) return 0;
  auto& [sent, received] = messages_[bucket];
  const std::size_t piece = piece_of(values.size());
  sent.resize(piece * most_nodes_ * static_cast<std::size_t>(rank_count));
  received.resize(sent.size());
  auto destination = sent.begin();
  for (int rank = 0; rank < rank_count; ++rank) {
    const block theirs = block_of(values.size(), rank, rank_count);
    for (std::size_t k = 0; k < most_nodes_; ++k, destination += static_cast<std::ptrdiff_t>(piece)) {
      if (k >= mine.size()) continue;
      const std::span<const float> source = k + 1 == mine.size() ? values : sum(k);
      std::ranges::copy(source.subspan(theirs.first, theirs.count), destination);
    }
  }
  sending = all_to_all_async(this->ranks(), std::span<const float>(sent), std::span(received));
  return sent.size() * sizeof(float);
}

// Adds up every rank's partial sums for a block, in the order of the parts.
void ordered_gradients::complete(std::span<const float> received, std::size_t piece, std::span<float> block) {
  tree_sum total(parts_);
  std::size_t rank_begin = 0;
  for (const auto& nodes : nodes_of_) {
    for (std::size_t k = 0; k < nodes.size(); ++k) {
      const std::size_t depth = total.nodes().size();
      const auto joined = static_cast<std::size_t>(total.add(nodes[k]));
      scratch_.resize(std::max(scratch_.size(), (depth + 1) * piece));
      const auto sum = [&](std::size_t d) { return std::span(scratch_).subspan(d * piece, block.size()); };
      std::ranges::copy(received.subspan(rank_begin + k * piece, block.size()), sum(depth).begin());
      for (std::size_t d = depth; d > depth - joined; --d) add_to(sum(d - 1), sum(d));
    }
    rank_begin += most_nodes_ * piece;
  }
  std::ranges::copy(std::span(scratch_).first(block.size()), block.begin());
}

std::size_t ordered_gradients::wait(std::size_t bucket) {
  const int rank_count = layout_for_.world;
  if (rank_count == 1) return 0;
  under_way()[bucket].wait();
  const auto values = values_of(bucket);
  const block own = block_of(values.size(), layout_for_.rank, rank_count);
  const auto mine = values.subspan(own.first, own.count);
  complete(messages_[bucket].received, piece_of(values.size()), mine);
  allgather(this->ranks(), std::span<const float>(mine), values);
  return mine.size_bytes();
}

}}}  // namespace muster::v0::detail
