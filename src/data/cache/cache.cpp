#include <muster/data/cache.hpp>

#include <array>
#include <atomic>
#include <new>
#include <numeric>
#include <optional>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include "../steps.hpp"
#include "disk_cache.hpp"
#include "lru_cache.hpp"
#include "memory_cache.hpp"

namespace muster::inline v0::detail {
namespace {

/// Records by id, in memory, on disk or both. Any thread may call any function.
class record_cache {
 public:
  /// Throws configuration_error for options that say nothing, or a folder for steps without a version. A folder that
  /// cannot be used, because the disk is full or it may not be written, is a warning: nothing is kept there then.
  record_cache(const cache_options& options, cache_identity identity)
      : options_(options),
        places_(identity.size, identity.record_bytes, std::move(identity.sizes), identity.label_width),
        identity_(std::move(identity)) {
    if (options.memory == 0 && options.folder.empty()) {
      throw configuration_error("the cache keeps nothing (cache_options has neither memory nor a folder); give it one");
    }
    if (!options.folder.empty() && !identity_.versioned) {
      throw configuration_error("cannot keep what map() made in '" + options.folder +
                                "' (its function has version 0, so that a change of it would not be seen); give it a "
                                "version");
    }
    if (options.memory >= places_.end() && options.memory != 0) {
      try {
        whole_.emplace(places_);
      } catch (const std::bad_alloc&) {
        muster::log(log_level::warning, "the records of " + identity_.name + " are not kept in memory (there are no " +
                                            std::to_string(places_.end()) + " bytes); they are made anew each time");
      }
    } else if (options.memory != 0) {
      for (auto& part : bounded_) part.emplace(options.memory / parts);
    }
    if (!options.folder.empty()) disk_ = disk_cache::open(options_, identity_, places_);
  }

  /// Whether find() may need room for a copy.
  bool copies() const noexcept { return bounded_.front().has_value(); }

  /// Where record `id` lies, which stays while this object does, or a copy of it in `to`; null if it is not here.
  /// Writes its labels.
  std::span<const std::byte> find(sample_id id, std::span<std::byte> to, std::span<float> labels) {
    std::span<const std::byte> found;
    if (whole_) found = whole_->view(id, labels);
    if (auto& part = bounded_[mix(id) % parts]) {
      if (const lru_cache::block held = part->get(id)) {
        copy_some(to.data(), held->data(), to.size());
        copy_some(labels.data(), held->data() + to.size(), labels.size_bytes());
        found = to;
      }
    }
    if (found.data() == nullptr && disk_) {
      found = disk_->view(id, labels);
      if (found.data() != nullptr) keep_in_memory(id, found, labels);
    }
    return found;
  }
  /// That find() found so many. For a piece at once: an atomic addition would wait for what was loaded for its record.
  void count_hits(std::size_t records, std::size_t bytes) {
    hits_.fetch_add(records, std::memory_order_relaxed);
    hit_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }

  /// Keeps a record that was not here.
  void put(sample_id id, std::span<const std::byte> record, std::span<const float> labels) {
    misses_.fetch_add(1, std::memory_order_relaxed);
    miss_bytes_.fetch_add(record.size(), std::memory_order_relaxed);
    keep_in_memory(id, record, labels);
    if (disk_ && disk_->put(id, record, labels)) bytes_ += record.size() + labels.size_bytes();
  }

  cache_statistics statistics() const noexcept { return {hits_, misses_, hit_bytes_, miss_bytes_, bytes_, evictions_}; }

 private:
  static constexpr std::size_t parts = 8;  // of a bounded cache, so that threads seldom meet

  void keep_in_memory(sample_id id, std::span<const std::byte> record, std::span<const float> labels) {
    if (whole_ && whole_->put(id, record, labels)) bytes_ += record.size() + labels.size_bytes();
    if (auto& part = bounded_[mix(id) % parts]) {
      auto kept = std::make_shared<std::vector<std::byte>>(record.begin(), record.end());
      const auto label_bytes = std::as_bytes(labels);
      kept->insert(kept->end(), label_bytes.begin(), label_bytes.end());
      const auto change = part->put(id, std::move(kept));
      bytes_ += static_cast<std::uint64_t>(change.bytes);
      evictions_ += change.evictions;
    }
  }

  const cache_options options_;
  const cached_places places_;
  const cache_identity identity_;
  std::optional<whole_memory_cache> whole_;              // all records fit
  std::array<std::optional<lru_cache>, parts> bounded_;  // or they do not
  std::unique_ptr<disk_cache> disk_;
  std::atomic<std::uint64_t> hits_{0}, hit_bytes_{0}, misses_{0}, miss_bytes_{0}, bytes_{0}, evictions_{0};
};

class cache_step final : public record_step {
 public:
  explicit cache_step(cache_options options) : options_(std::move(options)) {}

  cache_statistics cache() const override { return cache_->statistics(); }

  void views(const chain_request& request, std::span<std::span<const std::byte>> out,
             chain_scratch& scratch) const override {
    auto& mine = level_of(scratch);
    mine.sizes.resize(request.ids.size());
    sizes(request.ids, mine.sizes);
    std::span<std::byte> room;
    if (cache_->copies()) room = mine.room(std::accumulate(mine.sizes.begin(), mine.sizes.end(), std::size_t{0}));
    mine.places.clear();
    std::size_t bytes = 0;
    for (std::size_t k = 0; k < request.ids.size(); ++k) {
      const auto to = cache_->copies() ? room.first(mine.sizes[k]) : room;
      room = room.subspan(to.size());
      out[k] = cache_->find(request.ids[k], to, request.labels_of(k));
      if (out[k].data() == nullptr) mine.places.push_back(k);
      bytes += out[k].size();
    }
    cache_->count_hits(request.ids.size() - mine.places.size(), bytes);
    if (mine.places.empty()) return;
    make(request, mine, scratch);
    for (std::size_t j = 0; j < mine.places.size(); ++j) out[mine.places[j]] = mine.views[j];
  }

 private:
  void look() override {
    if (before().randoms() != 0) {
      throw configuration_error(
          "a cache cannot follow augment() (it would give every epoch the chance of the first one); write ... | "
          "cache(...) | augment(...)");
    }
    schema_ = before().schema();
    version_ = before().version();
    cache_identity identity;
    identity.name = std::string(source().name());
    identity.key = digest().add(source().digest()).add(version_).add(to_string(schema_)).value();
    identity.versioned = version_ != 0;
    identity.size = source().size();
    identity.record_bytes = schema_.record_bytes();
    identity.label_width = schema_.labels.size();
    if (identity.record_bytes == 0) {
      std::vector<sample_id> ids(identity.size);
      std::iota(ids.begin(), ids.end(), sample_id{0});
      identity.sizes.resize(identity.size);
      before().sizes(ids, identity.sizes);
    }
    cache_.reset();  // before another one opens the same file
    cache_ = std::make_unique<record_cache>(options_, std::move(identity));
  }

  /// Makes the records at mine.places of the request, and keeps them: their views are mine.views.
  void make(const chain_request& request, chain_scratch::level& mine, chain_scratch& scratch) const {
    const std::size_t width = request.labels.size() / std::max<std::size_t>(request.ids.size(), 1);
    mine.ids.clear();
    for (const std::size_t k : mine.places) mine.ids.push_back(request.ids[k]);
    mine.views.resize(mine.ids.size());
    mine.labels.resize(mine.ids.size() * width);
    chain_request missing = request;
    missing.ids = mine.ids;
    missing.labels = mine.labels;
    before().views(missing, mine.views, scratch);
    for (std::size_t j = 0; j < mine.ids.size(); ++j) {
      const std::span<const float> labels = missing.labels_of(j);
      std::copy(labels.begin(), labels.end(), request.labels_of(mine.places[j]).begin());
      if (mine.views[j].data() != nullptr) cache_->put(mine.ids[j], mine.views[j], labels);
    }
  }

  cache_options options_;
  std::unique_ptr<record_cache> cache_;
};

}  // namespace

std::unique_ptr<record_step> make_cache_step(cache_options options) {
  return std::make_unique<cache_step>(std::move(options));
}

}  // namespace muster::inline v0::detail
