#pragma once

#include <muster/data/classes.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline bool is_class(float label, std::size_t classes) {
  return label >= 0 && label < static_cast<float>(classes) && label == std::trunc(label);
}

inline std::string no_class(float label, std::size_t classes) {
  return muster::detail::printed("label %.9g", static_cast<double>(label)) +
         " is not a class (classes are whole numbers from 0, and there are " + std::to_string(classes) +
         "); correct it, or choose other data";
}

/// A record_source that checks the first labels of another source. `numbers`, if not empty, has the new number of every
/// class of that source.
class class_source : public detail::source_with_facts {
 public:
  class_source(any_record_source source, std::size_t classes, std::vector<std::string> names,
               std::vector<float> numbers) {
    auto new_state = std::make_shared<state>(state{
        {std::string(source.name()), source.size(), source.digest(), source.schema(), source.notes(), source.columns()},
        std::move(source),
        classes,
        std::move(numbers)});
    if (!names.empty()) new_state->schema.classes = std::move(names);
    if (!new_state->numbers.empty())
      new_state->digest =
          muster::digest().add(new_state->digest).add(std::as_bytes(std::span(new_state->numbers))).value();
    state_ = std::move(new_state);
    facts_ = state_.get();
  }

  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const { state_->wrapped.sizes(ids, out); }

  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad) const {
    const std::size_t width = schema().labels.size(), bad_before = bad == nullptr ? 0 : bad->size();
    std::vector<float> unrequested_labels(rows.labels.empty() ? ids.size() * width : 0);
    const record_rows all{rows.bytes, rows.labels.empty() ? std::span(unrequested_labels) : rows.labels};
    const std::size_t class_count = state_->numbers.empty() ? state_->classes : state_->numbers.size();
    state_->wrapped.read(ids, all, bad);
    bool right = true;
    for (std::size_t k = 0; k < ids.size(); ++k) right = right && is_class(all.labels[k * width], class_count);
    if (!right) {
      state_->wrapped.refuse(ids, all, bad, bad_before, [&](std::span<const float> labels) -> std::string {
        return is_class(labels[0], class_count) ? "" : no_class(labels[0], class_count);
      });
    }
    for (std::size_t k = 0; k < ids.size() && !state_->numbers.empty(); ++k) {
      float& label = all.labels[k * width];
      const bool is_bad =
          bad != nullptr && std::any_of(bad->begin() + static_cast<std::ptrdiff_t>(bad_before), bad->end(),
                                        [&](const bad_record& found) { return found.id == ids[k]; });
      if (!is_bad) label = state_->numbers[static_cast<std::size_t>(label)];
    }
  }

  [[nodiscard]] bool mapped() const noexcept { return state_->wrapped.mapped(); }
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const {
    std::span<const std::byte> found;
    read({&id, 1}, {}, nullptr);
    state_->wrapped.views({&id, 1}, {&found, 1});
    return found;
  }

  [[nodiscard]] std::uint64_t block_records() const noexcept { return state_->wrapped.block_records(); }
  [[nodiscard]] std::uint64_t follows_every() const noexcept { return state_->wrapped.follows_every(); }
  [[nodiscard]] const std::shared_ptr<const detail::proportions>& mixture_order() const noexcept {
    return state_->wrapped.mixture_order();
  }
  [[nodiscard]] std::uint64_t newest() const { return state_->wrapped.newest(); }
  [[nodiscard]] any_record_source version(std::uint64_t records) const {
    return class_source(state_->wrapped.version(records), state_->classes, schema().classes, state_->numbers);
  }
  [[nodiscard]] held_shards available_shards() const { return state_->wrapped.available_shards(); }
  [[nodiscard]] std::optional<std::uint64_t> host_state() const { return state_->wrapped.host_state(); }
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const { return state_->wrapped.host_state_now(); }
  [[nodiscard]] data_location location_of(sample_id id) const { return state_->wrapped.location_of(id); }
  void expect(std::span<const sample_id> ids) const { state_->wrapped.expect(ids); }
  [[nodiscard]] std::optional<source_statistics> known_statistics() const {
    return state_->numbers.empty() ? state_->wrapped.known_statistics() : std::nullopt;
  }

 private:
  struct state : detail::source_facts {
    any_record_source wrapped;
    std::size_t classes;
    std::vector<float> numbers;  // new numbers for the classes of `wrapped`
  };
  std::shared_ptr<const state> state_;
};

inline void require_label(const any_record_source& source) {
  if (!source.schema().labels.empty()) return;
  throw configuration_error(std::string(source.name()) + " has no labels (classes require labels); name its labels");
}

}  // namespace detail

MUSTER_INLINE std::size_t class_of(float label, std::size_t classes) {
  if (!detail::is_class(label, classes)) throw data_error({}, detail::no_class(label, classes));
  return static_cast<std::size_t>(label);
}

MUSTER_INLINE any_record_source with_classes(any_record_source source, std::size_t classes) {
  detail::require_label(source);
  return detail::class_source(std::move(source), classes, {}, {});
}

MUSTER_INLINE any_record_source with_classes(any_record_source source, const std::vector<std::string>& names) {
  detail::require_label(source);
  const std::vector<std::string> own = source.schema().classes;
  std::vector<float> numbers;
  if (own.empty()) {
    log(log_level::warning, std::string(source.name()) + " has no class names (its labels are used as the numbers of " +
                                std::to_string(names.size()) + " classes)");
  } else if (own != names) {
    for (const std::string& name : own) {
      const auto found = std::ranges::find(names, name);
      if (found == names.end()) {
        constexpr std::size_t most = 5;
        throw data_error({std::string(source.name())},
                         "has the class '" + name + "' (the expected classes are " +
                             muster::detail::joined(std::span(names).first(std::min(most, names.size())), ", ") +
                             (names.size() > most ? ", ..." : "") + "); leave it out, or train with it");
      }
      numbers.push_back(static_cast<float>(found - names.begin()));
    }
  }
  return detail::class_source(std::move(source), names.size(), names, std::move(numbers));
}

}}}  // namespace muster::v0::data
