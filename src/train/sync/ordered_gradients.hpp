// Gradients that are summed in the same order for any number of ranks: in the order of a fixed tree over the parts of a
// batch.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/train/sync/host_gradients.hpp>

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
  ordered_gradients(arena& values, int part_count) : host_gradients(values), parts_(part_count), own_(part_count) {}

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
  [[nodiscard]] std::size_t piece_of(std::size_t count) const noexcept;
  void complete(std::span<const float> received, std::size_t piece, std::span<float> block);

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

}}}  // namespace muster::v0::detail
