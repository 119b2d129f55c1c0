#include <muster/data/record_cache.hpp>

#include <atomic>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/data/record_chain.hpp>

#include "disk_cache.hpp"
#include "memory_cache.hpp"

namespace muster::inline v0::detail {
namespace {

cached_places places_of(const cache_identity& identity) {
  std::vector<std::uint64_t> sizes;
  if (identity.record_bytes == 0) {
    sizes.resize(identity.size);
    identity.sizes(sizes);
  }
  return {identity.size, identity.record_bytes, std::move(sizes), identity.label_width};
}

}  // namespace

struct record_cache::state {
  state(cache_options asked, cache_identity whose)
      : options(std::move(asked)), identity(std::move(whose)), places(places_of(identity)) {
    if (options.memory >= places.end() && options.memory != 0) {
      try {
        whole.emplace(places);
      } catch (const std::bad_alloc&) {
        muster::log(log_level::warning, "the records of " + identity.name + " are not kept in memory (there are no " +
                                            std::to_string(places.end()) + " bytes); they are made anew each time");
      }
    } else if (options.memory != 0) {
      bounded.emplace(options.memory);
    }
    if (!options.folder.empty()) disk = disk_cache::open(options, identity, places);
  }

  void count_hit(std::size_t size) noexcept {
    hits.fetch_add(1, std::memory_order_relaxed);
    hit_bytes.fetch_add(size, std::memory_order_relaxed);
  }

  void keep_in_memory(sample_id id, std::span<const std::byte> record, std::span<const float> labels) {
    if (whole && whole->put(id, record, labels)) bytes += record.size() + labels.size_bytes();
    if (bounded) {
      const auto made = bounded->put(id, record, labels);
      bytes += static_cast<std::uint64_t>(made.bytes);
      evictions += made.evictions;
    }
  }

  cache_options options;
  cache_identity identity;
  cached_places places;
  std::optional<whole_memory_cache> whole;
  std::optional<bounded_memory_cache> bounded;
  std::unique_ptr<disk_cache> disk;
  std::atomic<std::uint64_t> hits{0}, misses{0}, hit_bytes{0}, miss_bytes{0}, bytes{0}, evictions{0};
};

record_cache::record_cache(cache_options options, cache_identity identity) {
  if (options.memory == 0 && options.folder.empty()) {
    throw configuration_error("the cache keeps nothing (cache_options has neither memory nor a folder); give it one");
  }
  if (!options.folder.empty() && !identity.versioned) {
    throw configuration_error("cannot keep what map() made in '" + options.folder +
                              "' (its function has version 0, so that nobody could tell when it changes); give it a "
                              "version");
  }
  state_ = std::make_unique<state>(std::move(options), std::move(identity));
}
record_cache::record_cache(record_cache&&) noexcept = default;
record_cache& record_cache::operator=(record_cache&&) noexcept = default;
record_cache::~record_cache() = default;

std::span<const std::byte> record_cache::view(sample_id id, std::span<float> labels) const noexcept {
  std::span<const std::byte> found;
  if (state_->whole) found = state_->whole->view(id, labels);
  // Memory over a disk is asked to be filled by get().
  if (found.data() == nullptr && state_->disk && state_->options.memory == 0) found = state_->disk->view(id, labels);
  if (found.data() != nullptr) state_->count_hit(found.size());
  return found;
}

void record_cache::fetch_ahead(sample_id id) const noexcept {
  if (state_->whole) detail::fetch_ahead(state_->whole->view(id, {}));
}

bool record_cache::get(sample_id id, std::span<std::byte> to, std::span<float> labels) {
  state& s = *state_;
  const auto hit = [&] {
    s.count_hit(to.size());
    return true;
  };
  if (s.whole) {
    if (const auto found = s.whole->view(id, labels); found.data() != nullptr) {
      copy_some(to.data(), found.data(), found.size());
      return hit();
    }
  }
  if (s.bounded && s.bounded->get(id, to, labels)) return hit();
  if (!s.disk) return false;
  const auto found = s.disk->view(id, labels);
  if (found.data() == nullptr) return false;
  copy_some(to.data(), found.data(), found.size());
  s.keep_in_memory(id, found, labels);
  return hit();
}

void record_cache::put(sample_id id, std::span<const std::byte> record, std::span<const float> labels) {
  state& s = *state_;
  s.misses.fetch_add(1, std::memory_order_relaxed);
  s.miss_bytes.fetch_add(record.size(), std::memory_order_relaxed);
  s.keep_in_memory(id, record, labels);
  if (s.disk && s.disk->put(id, record, labels)) s.bytes += record.size() + labels.size_bytes();
}

cache_statistics record_cache::statistics() const noexcept {
  const state& s = *state_;
  return {s.hits, s.misses, s.hit_bytes, s.miss_bytes, s.bytes, s.evictions};
}

}  // namespace muster::inline v0::detail
