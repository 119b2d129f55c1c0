#include "record_cache.hpp"

#include <new>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>

namespace muster::inline v0::detail {

record_cache::record_cache(const cache_options& options, cache_identity identity)
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

void record_cache::keep_in_memory(sample_id id, std::span<const std::byte> record, std::span<const float> labels) {
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

std::span<const std::byte> record_cache::find(sample_id id, std::span<std::byte> to, std::span<float> labels) {
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
  if (found.data() == nullptr) return found;
  hits_.fetch_add(1, std::memory_order_relaxed);
  hit_bytes_.fetch_add(found.size(), std::memory_order_relaxed);
  return found;
}

void record_cache::put(sample_id id, std::span<const std::byte> record, std::span<const float> labels) {
  misses_.fetch_add(1, std::memory_order_relaxed);
  miss_bytes_.fetch_add(record.size(), std::memory_order_relaxed);
  keep_in_memory(id, record, labels);
  if (disk_ && disk_->put(id, record, labels)) bytes_ += record.size() + labels.size_bytes();
}

}  // namespace muster::inline v0::detail
