#pragma once

#include <muster/data/balanced_batch.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/data/mixture.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

[[noreturn]] inline void refuse_balance(const any_record_source& source, const std::string& reason,
                                        const std::string& suggestion) {
  throw configuration_error("the batches of '" + std::string(source.name()) + "' cannot be balanced (" + reason +
                            "); " + suggestion);
}

/// The records of one class of a source: a record_source.
class records_of_class : public source_with_facts {
 public:
  records_of_class(const any_record_source& source, const std::string& label, std::vector<sample_id> ids) {
    auto state = std::make_shared<facts>(source, std::move(ids));
    state->name = std::string(source.name()) + ", class " + label;
    state->size = state->ids.size();
    muster::digest content;
    content.add(source.digest()).add(label);
    for (const sample_id id : state->ids) content.add(id);
    state->digest = content.value();
    state->schema = source.schema();
    state_ = std::move(state);
    facts_ = state_.get();
  }

  /// Reads records of the class. See record_source and any_record_source.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
    state_->source.sizes(in_source(ids), out);
  }
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const {
    const std::size_t before = bad == nullptr ? 0 : bad->size();
    state_->source.read(in_source(ids), rows, bad);
    if (bad == nullptr) return;
    for (auto& record : std::span(*bad).subspan(before)) {
      const auto at = std::lower_bound(state_->ids.begin(), state_->ids.end(), record.id);
      record.id = static_cast<sample_id>(at - state_->ids.begin());
    }
  }
  [[nodiscard]] data_location location_of(sample_id id) const { return state_->source.location_of(state_->ids[id]); }
  [[nodiscard]] std::uint64_t block_records() const noexcept { return state_->source.block_records(); }
  [[nodiscard]] std::optional<std::uint64_t> host_state() const { return state_->source.host_state(); }
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const { return state_->source.host_state_now(); }

 private:
  struct facts : source_facts {
    facts(const any_record_source& all, std::vector<sample_id> chosen) : source(all), ids(std::move(chosen)) {}
    any_record_source source;
    std::vector<sample_id> ids;  // ascending
  };
  [[nodiscard]] std::vector<sample_id> in_source(std::span<const sample_id> ids) const {
    std::vector<sample_id> all(ids.size());
    std::transform(ids.begin(), ids.end(), all.begin(), [this](sample_id id) { return state_->ids[id]; });
    return all;
  }

  std::shared_ptr<const facts> state_;
};

/// Returns the records of each class by the first label. Reads all labels once.
inline std::map<float, std::vector<sample_id>> ids_by_label(const any_record_source& source) {
  constexpr std::uint64_t piece = 4096;
  constexpr std::size_t most_classes = 1u << 16;
  const std::size_t width = source.schema().labels.size();
  if (width == 0) refuse_balance(source, "its records have no label", "open it with a label");
  std::map<float, std::vector<sample_id>> classes;
  std::vector<sample_id> ids;
  std::vector<float> labels;
  for (std::uint64_t first = 0; first < source.size(); first += piece) {
    ids.resize(static_cast<std::size_t>(std::min(piece, source.size() - first)));
    labels.resize(ids.size() * width);
    std::iota(ids.begin(), ids.end(), first);
    source.read(ids, {{}, labels});
    for (std::size_t k = 0; k < ids.size(); ++k) classes[labels[k * width]].push_back(ids[k]);
    if (classes.size() > most_classes)
      refuse_balance(source, "it has more than 65536 different labels", "choose a label that is a class");
  }
  return classes;
}

/// Returns a source for each class. Throws configuration_error if a class has less than `least` records.
inline std::vector<mixture_part> sources_of_classes(const any_record_source& source, std::uint64_t least) {
  if (source.newest() != 0) refuse_balance(source, "it grows", "open it without follow");
  if (!source.available_shards().names.empty())
    refuse_balance(source, "a rank has some of its shards only", "open all of its records at every rank");
  auto classes = ids_by_label(source);
  const auto& names = source.schema().classes;
  for (std::size_t k = 0; k < names.size(); ++k) classes[static_cast<float>(k)];  // a named class may have no record
  std::vector<mixture_part> parts;
  for (auto& [label, ids] : classes) {
    const bool is_named = label >= 0 && label < static_cast<float>(names.size()) && std::trunc(label) == label;
    const std::string name = is_named ? names[static_cast<std::size_t>(label)] : number_text(label);
    if (ids.size() < least) {
      refuse_balance(source, "class " + name + " has " + std::to_string(ids.size()) + " records",
                     "take at most so many of each class, or leave the class out");
    }
    parts.push_back({records_of_class(source, name, std::move(ids)), 1});
  }
  return parts;
}

}  // namespace detail

MUSTER_INLINE loader operator|(const any_record_source& source, balanced_batch step) {
  if (step.records == 0) detail::refuse_balance(source, "a batch has 0 records of each class", "take 1 or more");
  auto parts = detail::sources_of_classes(source, step.records);
  const std::uint64_t size = step.records * parts.size();
  return any_record_source(mixture(std::move(parts), std::string(source.name()) + ", balanced")) | step.order |
         batch(size, {.drop_last = true});
}

}}}  // namespace muster::v0::data
