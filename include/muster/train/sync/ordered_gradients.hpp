// Gradients that are summed in the same order for any number of ranks: in the order of a fixed tree over the parts of a
// batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/core/buffer.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/train/sync/host_gradients.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The partial sums that remain while the leaves of a binary tree are added from the first to the last. Leaf i is node
/// {0, i}. Node {l, i} is the sum of {l - 1, 2 i} and {l - 1, 2 i + 1}, or equals the first child where the second has
/// no leaves.
class tree_sum {
 public:
  struct node {
    int level = 0;
    int index = 0;
    friend bool operator==(const node&, const node&) = default;
  };

  explicit tree_sum(int leaves) noexcept : leaves_(leaves) {}

  /// Adds the node `next`. Replaces the last partial sums by their sum with the node where both children of a parent
  /// are present. Returns how many of the last partial sums were replaced.
  int add(node next);
  /// Adds these leaves, in order.
  void add_leaves(index_range leaves);

  [[nodiscard]] const std::vector<node>& nodes() const noexcept { return nodes_; }
  void clear() noexcept { nodes_.clear(); }

 private:
  int leaves_;
  std::vector<node> nodes_;
};

/// Gradients that are summed over the parts in a batch, in the order of a tree over the parts. Each pass of a step is
/// one part of this rank, from the first to the last. A rank without parts has a single pass that writes nothing. A
/// rank sends the partial sums of its own parts, and each rank completes a block of every bucket.
class ordered_gradients final : public host_gradients {
 public:
  ordered_gradients(arena& tensors, int part_count) : host_gradients(tensors), parts_(part_count), own_(part_count) {}

  void attach(std::span<const gradient_bucket> buckets) override;
  void deal_by(const rank_weights& weights) override { weights_ = weights; }
  void begin(group* ranks, std::uint64_t step) override;
  void end_pass() override;
  std::size_t start(std::size_t bucket) override;
  [[nodiscard]] bool test(std::size_t) override {
    return false;
  }  // `wait` completes the sums in the order of the buckets
  std::size_t wait(std::size_t bucket) override;

 private:
  /// The partial sums of a bucket, in transit to the ranks that complete them.
  struct messages {
    std::vector<float> sent, received;
  };

  [[nodiscard]] std::span<float> values_of(std::size_t bucket);
  [[nodiscard]] std::size_t partial_sum_stride_for(std::size_t count) const noexcept;
  void add_partial_sums(std::span<const float> received, std::size_t partial_sum_stride, std::span<float> block);

  int parts_;
  rank_weights weights_;
  int next_part_ = 0;
  std::vector<std::vector<tree_sum::node>> nodes_of_;  // by rank
  std::size_t most_nodes_ = 1;                         // maximum over the ranks
  batch_shard layout_for_{-1, 0};
  tree_sum own_;
  std::vector<buffer<float>>
      sums_;        // partial sums of own_, except the step's last sum, which remains in the gradients' array
  int joined_ = 0;  // number of the last partial sums that are added to the gradients of the rank's last part
  std::vector<messages> messages_;  // by bucket
  std::vector<float> scratch_;
};

inline void add_to(std::span<float> sum, std::span<const float> more) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

// ---- the tree ----

inline int tree_sum::add(node next) {
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

inline void tree_sum::add_leaves(index_range leaves) {
  for (auto leaf = leaves.first; leaf < leaves.last; ++leaf) add({0, static_cast<int>(leaf)});
}

// ---- a step ----

inline void ordered_gradients::attach(std::span<const gradient_bucket> buckets) {
  host_gradients::attach(buckets);
  messages_.resize(buckets.size());
}

inline void ordered_gradients::begin(group* ranks, std::uint64_t step) {
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
inline void ordered_gradients::end_pass() {
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

inline std::span<float> ordered_gradients::values_of(std::size_t bucket) {
  const auto elements = buckets()[bucket].elements;
  const auto all = on_host().gradients_with_head();
  return bucket == 0 ? all.first(arena::head + elements.count)
                     : all.subspan(arena::head + elements.first, elements.count);
}

// Returns the number of elements that a message reserves for each partial sum of a bucket with `count` values: the
// largest block of a rank.
inline std::size_t ordered_gradients::partial_sum_stride_for(std::size_t count) const noexcept {
  const auto ranks = nodes_of_.size();
  return (count + ranks - 1) / ranks;
}

inline std::size_t ordered_gradients::start(std::size_t bucket) {
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
  const std::size_t partial_sum_stride = partial_sum_stride_for(values.size());
  sent.resize(partial_sum_stride * most_nodes_ * static_cast<std::size_t>(rank_count));
  received.resize(sent.size());
  auto destination = sent.begin();
  for (int rank = 0; rank < rank_count; ++rank) {
    const block theirs = block_of(values.size(), rank, rank_count);
    for (std::size_t k = 0; k < most_nodes_; ++k, destination += static_cast<std::ptrdiff_t>(partial_sum_stride)) {
      if (k >= mine.size()) continue;
      const std::span<const float> source = k + 1 == mine.size() ? values : sum(k);
      std::ranges::copy(source.subspan(theirs.first, theirs.count), destination);
    }
  }
  sending = all_to_all_async(this->ranks(), std::span<const float>(sent), std::span(received));
  return sent.size() * sizeof(float);
}

// Adds up the partial sums of all ranks for this rank's block, in the order of the parts. `received` has the ranks'
// messages one after another, each with `most_nodes_` partial sums of `partial_sum_stride` elements.
inline void ordered_gradients::add_partial_sums(std::span<const float> received, std::size_t partial_sum_stride,
                                                std::span<float> block) {
  tree_sum total(parts_);
  std::size_t rank_begin = 0;
  for (const auto& nodes : nodes_of_) {
    for (std::size_t k = 0; k < nodes.size(); ++k) {
      const std::size_t depth = total.nodes().size();
      const auto joined = static_cast<std::size_t>(total.add(nodes[k]));
      scratch_.resize(std::max(scratch_.size(), (depth + 1) * partial_sum_stride));
      const auto sum = [&](std::size_t d) { return std::span(scratch_).subspan(d * partial_sum_stride, block.size()); };
      std::ranges::copy(received.subspan(rank_begin + k * partial_sum_stride, block.size()), sum(depth).begin());
      for (std::size_t d = depth; d > depth - joined; --d) add_to(sum(d - 1), sum(d));
    }
    rank_begin += most_nodes_ * partial_sum_stride;
  }
  std::ranges::copy(std::span(scratch_).first(block.size()), block.begin());
}

inline std::size_t ordered_gradients::wait(std::size_t bucket) {
  const int rank_count = layout_for_.world;
  if (rank_count == 1) return 0;
  under_way()[bucket].wait();
  const auto values = values_of(bucket);
  const block own = block_of(values.size(), layout_for_.rank, rank_count);
  const auto mine = values.subspan(own.first, own.count);
  add_partial_sums(messages_[bucket].received, partial_sum_stride_for(values.size()), mine);
  allgather(this->ranks(), std::span<const float>(mine), values);
  return mine.size_bytes();
}

}}}  // namespace muster::v0::detail

#include <muster/core/detail/exact_end.hpp>
