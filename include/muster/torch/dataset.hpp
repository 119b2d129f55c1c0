// Sources and orders of muster for programs that keep LibTorch's DataLoader.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>
#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>

#include <muster/core/error.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/record_source.hpp>
#include <muster/torch/tensors.hpp>

namespace muster { inline namespace v0 { namespace torch {

/// A source of muster as a dataset of LibTorch, whose batches are one tensor: no `Stack` is needed.
///
///     muster::torch::dataset images(muster::open_source("cifar10:/data"));
///     auto batches = torch::data::make_data_loader(
///         images, muster::torch::sampler(images.size().value(), 1, world.rank(), world.size()), 64);
///
/// Copies are cheap and share the source. Threads may read at once.
class dataset : public ::torch::data::datasets::BatchDataset<dataset, ::torch::data::Example<>> {
 public:
  /// Throws mismatch_error unless the records have one field of fixed shape.
  template <class Source>
  requires(!std::derived_from<Source, dataset> && data::record_source<Source>) explicit dataset(Source source)
      : source_(std::move(source)) {
    minibatch none;
    none.schema = &source_.schema();
    (void)tensors(none);
  }

  /// Returns the records with these numbers and their classes; undefined targets for records without labels. Throws
  /// data_error for a record that cannot be read, and mismatch_error for a label that is no class.
  ::torch::data::Example<> get_batch(at::ArrayRef<std::size_t> indices) override {
    const auto& schema = source_.schema();
    const std::vector<sample_id> ids(indices.begin(), indices.end());
    std::vector<float> label_values(ids.size() * schema.labels.size());
    at::Tensor bytes = at::empty({static_cast<std::int64_t>(ids.size() * schema.record_bytes())}, at::kByte);
    const std::span<std::byte> memory(static_cast<std::byte*>(bytes.data_ptr()),
                                      static_cast<std::size_t>(bytes.numel()));
    source_.read(ids, {.bytes = memory, .labels = label_values});
    minibatch batch;
    batch.samples = ids;
    batch.labels = label_values;
    batch.bytes = memory;
    batch.schema = &schema;
    const auto views = tensors(batch);
    // The tensor owns the bytes that it views.
    return {at::from_blob(
                views.input.data_ptr(), views.input.sizes(), [bytes](void*) {}, views.input.options()),
            views.target};
  }
  /// Returns the number of records.
  [[nodiscard]] c10::optional<std::size_t> size() const override { return static_cast<std::size_t>(source_.size()); }

 private:
  data::any_record_source source_;
};

/// The samples of a rank in the order of muster: in each epoch a permutation of (seed, epoch), of which every rank
/// takes other samples, without padding. A loader resets it at the start of each epoch.
class sampler : public ::torch::data::samplers::Sampler<> {
 public:
  /// Throws configuration_error for a rank that the world does not have.
  sampler(std::size_t size, std::uint64_t seed, int rank, int world)
      : source_{size}, seed_(seed), part_{.rank = rank, .world = world} {
    if (rank < 0 || rank >= world) {
      throw configuration_error("a sampler cannot have rank " + std::to_string(rank) + " of " + std::to_string(world) +
                                " ranks (ranks count from 0); give a rank below the number of ranks");
    }
  }

  /// Starts the next epoch, at the first call the first.
  void reset(c10::optional<std::size_t> /*new_size*/ = c10::nullopt) override {
    epoch_ = began_ ? epoch_ + 1 : 0;
    began_ = true;
    position_ = 0;
    order_.clear();
  }
  /// Returns the next `batch_size` samples of this rank, or fewer at the end; nothing when no sample is left.
  c10::optional<std::vector<std::size_t>> next(std::size_t batch_size) override {
    if (order_.empty()) order_ = order_of_epoch();
    if (position_ >= order_.size()) return c10::nullopt;
    const auto first = order_.begin() + static_cast<std::ptrdiff_t>(position_);
    const std::size_t count = std::min(batch_size, order_.size() - position_);
    position_ += count;
    return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
  }
  /// Writes the epoch and the number of samples that were taken.
  void save(::torch::serialize::OutputArchive& archive) const override {
    archive.write("epoch", at::full({}, static_cast<std::int64_t>(epoch_), at::kLong));
    archive.write("position", at::full({}, static_cast<std::int64_t>(position_), at::kLong));
  }
  /// Continues at the epoch and sample that `save` wrote.
  void load(::torch::serialize::InputArchive& archive) override {
    at::Tensor epoch, position;
    archive.read("epoch", epoch);
    archive.read("position", position);
    epoch_ = static_cast<std::uint64_t>(epoch.item<std::int64_t>());
    position_ = static_cast<std::size_t>(position.item<std::int64_t>());
    began_ = true;
    order_.clear();
  }

 private:
  // Ids alone, for the order.
  struct numbered_samples {
    std::uint64_t count = 0;
    [[nodiscard]] std::uint64_t size() const noexcept { return count; }
    [[nodiscard]] std::uint64_t digest() const noexcept { return count; }
  };

  [[nodiscard]] std::vector<std::size_t> order_of_epoch() const {
    auto all = source_ | shuffle(seed_) | batch(source_.count);  // a batch is an epoch, of which each rank has a part
    cursor start = all.cursor();
    start.epoch = epoch_;
    all.open(start);
    const auto mine = all.next(part_);
    return {mine.samples.begin(), mine.samples.end()};
  }

  numbered_samples source_;
  std::uint64_t seed_;
  batch_shard part_;
  std::uint64_t epoch_ = 0;
  bool began_ = false;
  std::size_t position_ = 0;
  std::vector<std::size_t> order_;
};

}}}  // namespace muster::v0::torch
