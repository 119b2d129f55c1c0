#pragma once

#include <muster/data/cache.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <numeric>
#include <optional>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/data/cache/record_store.hpp>
#include <muster/data/record_step.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {
class cache_step final : public record_step {
 public:
  explicit cache_step(cache_options options) : options_(std::move(options)) {
    if (options_.memory == 0 && options_.folder.empty()) {
      throw configuration_error(
          "the cache stores nothing (cache_options has neither memory nor a folder); set memory or folder");
    }
  }

  cache_statistics cache() const override { return {hits_, misses_, hit_bytes_, miss_bytes_, bytes_}; }

  void views(const chain_request& request, std::span<std::span<const std::byte>> out,
             chain_scratch& scratch) const override {
    auto& level = level_of(scratch);
    level.missing_indices.clear();
    std::size_t bytes = 0;
    for (std::size_t k = 0; k < request.ids.size(); ++k) {
      out[k] = find(request.ids[k], request.labels_of(k));
      if (out[k].data() == nullptr) level.missing_indices.push_back(k);
      bytes += out[k].size();
    }
    // One update for the whole piece: an atomic addition for every record would wait for the record's loads.
    hits_.fetch_add(request.ids.size() - level.missing_indices.size(), std::memory_order_relaxed);
    hit_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    if (level.missing_indices.empty()) return;
    make(request, level, scratch);
    for (std::size_t j = 0; j < level.missing_indices.size(); ++j) out[level.missing_indices[j]] = level.views[j];
  }

 private:
  void set_properties() override {
    if (before().randoms() != 0) {
      throw configuration_error(
          "a cache cannot follow augment() (every epoch would repeat the random changes of the first epoch); write ... "
          "| "
          "cache(...) | augment(...)");
    }
    schema_ = before().schema();
    version_ = before().processing_version();
    if (!options_.folder.empty() && version_ == 0) {
      throw configuration_error("cannot cache the results of map() in '" + options_.folder +
                                "' (its function has version 0, so a change of the function would not be detected); "
                                "give the function a version");
    }
    const auto state = source().host_state();
    if (!options_.folder.empty() && !state && !std::isfinite(options_.fresh_for.count())) {
      throw configuration_error("cannot cache the records of " + std::string(source().name()) + " in '" +
                                options_.folder +
                                "' (a change of the records would not be detected); set a time limit with " +
                                "cache_options::fresh_for, or cache the records in memory");
    }
    memory_.reset();
    disk_.reset();  // before another record_store opens the same file
    for (auto* const count : {&hits_, &hit_bytes_, &misses_, &miss_bytes_, &bytes_}) *count = 0;
    records_ = {
        .name = std::string(source().name()),
        .key = digest().add(source().digest()).add(state.value_or(0)).add(version_).add(to_string(schema_)).value(),
        .size = source().size(),
        .record_bytes = schema_.record_bytes(),
        .label_bytes = schema_.labels.size() * sizeof(float)};
    if (records_.record_bytes == 0) {
      std::vector<sample_id> ids(records_.size);
      std::iota(ids.begin(), ids.end(), sample_id{0});
      records_.lengths.resize(records_.size);
      before().sizes(ids, records_.lengths);
      records_.begins.push_back(0);
      for (const std::uint64_t length : records_.lengths)
        records_.begins.push_back(records_.begins.back() + muster::detail::round_up(length, buffer_alignment));
    }
    if (options_.memory != 0) open(memory_, "memory", options_.memory);
    if (!options_.folder.empty()) open(disk_, "'" + options_.folder + "'", options_, options_.disk);
  }

  // Opens a store. If memory or the disk is full, or the folder may not be written, there is no store, and records are
  // computed again each time.
  template <class... Where>
  void open(std::optional<record_store>& store, const std::string& name, const Where&... where) {
    try {
      store.emplace(records_, where...);
    } catch (const std::exception& error) {
      muster::log(log_level::warning, "the records of " + records_.name + " are not cached in " + name + " (" +
                                          error.what() + "); they are computed again each time");
    }
  }

  // Returns record `id`, which remains valid as long as this object, and writes its labels. Returns a null span if the
  // record is not cached.
  std::span<const std::byte> find(sample_id id, std::span<float> labels) const {
    std::span<const std::byte> found;
    if (memory_) found = memory_->view(id, labels);
    if (found.data() == nullptr && disk_) {
      found = disk_->view(id, labels);
      if (found.data() != nullptr) keep(memory_, id, found, labels);
    }
    return found;
  }
  void keep(std::optional<record_store>& in, sample_id id, std::span<const std::byte> record,
            std::span<const float> labels) const {
    if (in && in->put(id, record, labels)) bytes_ += record.size() + labels.size_bytes();
  }

  /// Computes the records that are not cached, and stores them. level.places has their indices in request.ids. Writes
  /// their views to level.views.
  void make(const chain_request& request, chain_scratch_level& level, chain_scratch& scratch) const {
    const std::size_t width = request.labels.size() / std::max<std::size_t>(request.ids.size(), 1);
    level.ids.clear();
    for (const std::size_t k : level.missing_indices) level.ids.push_back(request.ids[k]);
    level.views.resize(level.ids.size());
    level.labels.resize(level.ids.size() * width);
    chain_request missing = request;
    missing.ids = level.ids;
    missing.labels = level.labels;
    missing.output = {};
    before().views(missing, level.views, scratch);
    for (std::size_t j = 0; j < level.ids.size(); ++j) {
      const std::span<const float> labels = missing.labels_of(j);
      std::copy(labels.begin(), labels.end(), request.labels_of(level.missing_indices[j]).begin());
      if (level.views[j].data() == nullptr) continue;
      misses_.fetch_add(1, std::memory_order_relaxed);
      miss_bytes_.fetch_add(level.views[j].size(), std::memory_order_relaxed);
      keep(memory_, level.ids[j], level.views[j], labels);
      keep(disk_, level.ids[j], level.views[j], labels);
    }
  }

  const cache_options options_;
  cached_records records_;
  mutable std::optional<record_store> memory_, disk_;
  mutable std::atomic<std::uint64_t> hits_{0}, hit_bytes_{0}, misses_{0}, miss_bytes_{0}, bytes_{0};
};

MUSTER_INLINE std::unique_ptr<record_step> make_cache_step(cache_options options) {
  return std::make_unique<cache_step>(std::move(options));
}

}}}}  // namespace muster::v0::data::detail
