#include <muster/data/cache.hpp>

#include <numeric>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include "record_cache.hpp"
#include "steps.hpp"

namespace muster::inline v0::detail {
namespace {

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
    for (std::size_t k = 0; k < request.ids.size(); ++k) {
      const auto to = cache_->copies() ? room.first(mine.sizes[k]) : room;
      room = room.subspan(to.size());
      out[k] = cache_->find(request.ids[k], to, request.labels_of(k));
      if (out[k].data() == nullptr) mine.places.push_back(k);
    }
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
