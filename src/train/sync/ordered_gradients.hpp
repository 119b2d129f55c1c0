// Gradients that are summed in an order which no world changes: that of a fixed tree over the parts of a batch.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/train/sync/host_gradients.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A sum over the leaves of a binary tree, as it goes from the first leaf to the last: which partial sums there are.
/// Leaf i is node {0, i}; node {l, i} is the sum of {l - 1, 2 i} and {l - 1, 2 i + 1}, or the first of these where the
/// second has no leaves.
class tree_sum {
 public:
  struct node {
    int level = 0;
    int index = 0;
    friend bool operator==(const node&, const node&) = default;
  };

  explicit tree_sum(int leaves) noexcept : leaves_(leaves) {}

  /// Adds the node behind those that were added; returns how many partial sums, from the last one on, are added to it.
  int add(node next);
  /// That of these leaves alone, in order.
  void add_leaves(index_range leaves);

  [[nodiscard]] const std::vector<node>& nodes() const noexcept { return nodes_; }
  void clear() noexcept { nodes_.clear(); }

 private:
  int leaves_;
  std::vector<node> nodes_;
};

/// Sums the gradients of the parts of each batch in the order of a tree over these parts. Each pass of a step is one of
/// this rank's parts, from the first to the last; a rank without any has one pass that writes nothing. A rank sends the
/// partial sums that its parts make up; each rank completes a block of every bucket.
class ordered_gradients final : public host_gradients {
 public:
  ordered_gradients(arena& of, int parts) : host_gradients(of), parts_(parts), own_(parts) {}

  void attach(std::span<const gradient_bucket> buckets) override;
  void deal_by(const rank_weights& weights) override { weights_ = weights; }
  void begin(group* ranks, std::uint64_t step) override;
  void end_pass() override;
  std::size_t start(std::size_t bucket) override;
  [[nodiscard]] bool test(std::size_t) override { return false; }  // the sum is completed in the order of the buckets
  std::size_t wait(std::size_t bucket) override;

 private:
  /// The partial sums of a bucket, on their way to the ranks that complete them.
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
  std::size_t most_nodes_ = 1;                         // of a rank
  batch_shard layout_for_{-1, 0};
  tree_sum own_;
  std::vector<buffer<float>> sums_;  // of own_, apart from the last of the step, which stays where the gradients are
  int joined_ = 0;                   // how many of them the last part completes
  std::vector<messages> messages_;   // by bucket
  std::vector<float> scratch_;
};

}}}  // namespace muster::v0::detail
