// The step of a pipeline that keeps what the steps before it made.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/hash.hpp>
#include <muster/data/record_cache.hpp>
#include <muster/data/record_chain.hpp>

namespace muster::inline v0 {

/// Says that a cache is in memory, of any size: `cache(in_memory)`.
struct in_memory_t {
  explicit in_memory_t() = default;
};
inline constexpr in_memory_t in_memory{};

/// A step of a pipeline: records are made by the steps before it once, and kept. Behind map() it keeps what that made,
/// else the records as they were read. It does not compile behind augment().
///
/// On disk a cache is a file for each source, steps and version of both, shared by the ranks of a host. It is made
/// under a temporary name and becomes valid when all of it is on the disk; each record has a checksum. Whoever is
/// killed at any moment leaves nothing that is taken for more than it is: what was kept of an unfinished one is used
/// again.
struct cache {
  cache_options options;
  explicit cache(in_memory_t) : options{.memory = std::numeric_limits<std::size_t>::max()} {}
  explicit cache(std::string folder) : options{.folder = std::move(folder)} {}
  explicit cache(cache_options asked) : options(std::move(asked)) {}
};

namespace detail {

/// What cache() puts on a chain.
template <class Inner>
class cache_step {
 public:
  static constexpr std::size_t depth = Inner::depth + 1;
  static constexpr std::size_t randoms = Inner::randoms;

  cache_step(Inner inner, cache_options options) : inner_(std::move(inner)), options_(std::move(options)) { look(); }

  [[nodiscard]] const auto& source() const noexcept { return inner_.source(); }
  template <class Source>
  void replace(Source source) {
    inner_.replace(std::move(source));
    look();
  }
  [[nodiscard]] const record_schema& schema() const { return inner_.schema(); }
  [[nodiscard]] std::uint64_t version() const { return inner_.version(); }
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const { inner_.sizes(ids, out); }
  [[nodiscard]] cache_statistics statistics() const noexcept { return cache_->statistics(); }

  void read(const chain_request& request, std::span<std::byte> bytes, chain_scratch& scratch) const {
    auto& mine = scratch[depth];
    mine.places.clear();
    std::span<const std::uint64_t> sizes;
    const std::size_t fixed = schema().record_bytes();
    if (fixed == 0) {
      mine.sizes.resize(request.ids.size());
      inner_.sizes(request.ids, mine.sizes);
      sizes = mine.sizes;
    }
    std::size_t begin = 0;
    for (std::size_t k = 0; k < request.ids.size(); ++k) {
      const std::size_t size = fixed != 0 ? fixed : sizes[k];
      if (k + 1 < request.ids.size()) cache_->fetch_ahead(request.ids[k + 1]);
      if (!cache_->get(request.ids[k], bytes.subspan(begin, size), request.labels_of(k, 1))) mine.places.push_back(k);
      begin += size;
    }
    if (mine.places.empty()) return;

    make(request, mine, scratch);
    std::size_t k = 0;
    begin = 0;
    for (std::size_t j = 0; j < mine.places.size(); ++j) {
      for (; k < mine.places[j]; ++k) begin += fixed != 0 ? fixed : sizes[k];
      const auto view = mine.views[j];
      if (view.data() != nullptr && !view.empty()) std::memcpy(bytes.data() + begin, view.data(), view.size());
    }
  }

  void views(const chain_request& request, std::span<std::span<const std::byte>> out, chain_scratch& scratch) const {
    auto& mine = scratch[depth];
    mine.places.clear();
    for (std::size_t k = 0; k < request.ids.size(); ++k) {
      out[k] = cache_->view(request.ids[k], request.labels_of(k, 1));
      if (out[k].data() == nullptr) mine.places.push_back(k);
    }
    if (mine.places.empty()) return;

    // What cannot be looked at may still be had as a copy.
    mine.sizes.resize(request.ids.size());
    inner_.sizes(request.ids, mine.sizes);
    std::size_t all = 0;
    for (const std::size_t k : mine.places) all += mine.sizes[k];
    std::span<std::byte> room = mine.room(all);
    std::size_t missing = 0;
    for (const std::size_t k : mine.places) {
      const auto to = room.first(mine.sizes[k]);
      room = room.subspan(mine.sizes[k]);
      if (cache_->get(request.ids[k], to, request.labels_of(k, 1))) {
        out[k] = {to.data(), to.size()};
      } else {
        mine.places[missing++] = k;
      }
    }
    mine.places.resize(missing);
    if (missing == 0) return;
    make(request, mine, scratch);
    for (std::size_t j = 0; j < missing; ++j) out[mine.places[j]] = mine.views[j];
  }

 private:
  void look() {
    const record_schema& made = inner_.schema();
    const auto& from = inner_.source();
    cache_identity identity;
    identity.name = std::string(from.name());
    identity.key = digest().add(from.digest()).add(inner_.version()).add(to_string(made)).value();
    identity.versioned = inner_.version() != 0;
    identity.size = from.size();
    identity.record_bytes = made.record_bytes();
    identity.label_width = made.labels.size();
    identity.sizes = [&](std::span<std::uint64_t> out) {
      std::vector<sample_id> ids(out.size());
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i;
      inner_.sizes(ids, out);
    };
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
    inner_.views(missing, mine.views, scratch);
    for (std::size_t j = 0; j < mine.ids.size(); ++j) {
      const std::span<const float> labels = missing.labels_of(j, 1);
      std::copy(labels.begin(), labels.end(), request.labels_of(mine.places[j], 1).begin());
      if (mine.views[j].data() != nullptr) cache_->put(mine.ids[j], mine.views[j], labels);
    }
  }

  Inner inner_;
  cache_options options_;
  std::unique_ptr<record_cache> cache_;  // its records stay where they are when a chain is moved
};

}  // namespace detail

}  // namespace muster::inline v0
