#include <muster/data/classes.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include "../core/text.hpp"

namespace muster { inline namespace v0 {
namespace {

bool is_class(float label, std::size_t classes) {
  return label >= 0 && label < static_cast<float>(classes) && label == std::trunc(label);
}

std::string no_class(float label, std::size_t classes) {
  return detail::printed("label %.9g", static_cast<double>(label)) +
         " is no class (classes are whole numbers from 0, and there are " + std::to_string(classes) +
         "); correct it, or choose other data";
}

/// A record_source over another, with a check of first labels; `numbers`, if not empty, has new numbers for its
/// classes.
class class_source : public detail::source_with_facts {
 public:
  class_source(any_record_source from, std::size_t classes, std::vector<std::string> names,
               std::vector<float> numbers) {
    auto made = std::make_shared<state>(
        state{{std::string(from.name()), from.size(), from.digest(), from.schema(), from.notes(), from.columns()},
              std::move(from),
              classes,
              std::move(numbers)});
    if (!names.empty()) made->schema.classes = std::move(names);
    if (!made->numbers.empty())
      made->digest = muster::digest().add(made->digest).add(std::as_bytes(std::span(made->numbers))).value();
    state_ = std::move(made);
    facts_ = state_.get();
  }

  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const { state_->from.sizes(ids, out); }

  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad) const {
    const std::size_t width = schema().labels.size(), bad_before = bad == nullptr ? 0 : bad->size();
    std::vector<float> unasked(rows.labels.empty() ? ids.size() * width : 0);
    const record_rows all{rows.bytes, rows.labels.empty() ? std::span(unasked) : rows.labels};
    const std::size_t known = state_->numbers.empty() ? state_->classes : state_->numbers.size();
    state_->from.read(ids, all, bad);
    bool right = true;
    for (std::size_t k = 0; k < ids.size(); ++k) right = right && is_class(all.labels[k * width], known);
    if (!right) {
      state_->from.refuse(ids, all, bad, bad_before, [&](std::span<const float> labels) -> std::string {
        return is_class(labels[0], known) ? "" : no_class(labels[0], known);
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

  [[nodiscard]] bool mapped() const noexcept { return state_->from.mapped(); }
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const {
    std::span<const std::byte> found;
    read({&id, 1}, {}, nullptr);
    state_->from.views({&id, 1}, {&found, 1});
    return found;
  }

  [[nodiscard]] std::uint64_t block_records() const noexcept { return state_->from.block_records(); }
  [[nodiscard]] std::uint64_t follows_every() const noexcept { return state_->from.follows_every(); }
  [[nodiscard]] const std::shared_ptr<const detail::proportions>& mixture_order() const noexcept {
    return state_->from.mixture_order();
  }
  [[nodiscard]] std::uint64_t newest() const { return state_->from.newest(); }
  [[nodiscard]] any_record_source version(std::uint64_t records) const {
    return class_source(state_->from.version(records), state_->classes, schema().classes, state_->numbers);
  }
  [[nodiscard]] held_shards held() const { return state_->from.held(); }
  [[nodiscard]] std::optional<std::uint64_t> host_state() const { return state_->from.host_state(); }
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const { return state_->from.host_state_now(); }
  [[nodiscard]] data_location where(sample_id id) const { return state_->from.where(id); }
  void expect(std::span<const sample_id> ids) const { state_->from.expect(ids); }
  [[nodiscard]] std::optional<source_statistics> known_statistics() const {
    return state_->numbers.empty() ? state_->from.known_statistics() : std::nullopt;
  }

 private:
  struct state : detail::source_facts {
    any_record_source from;
    std::size_t classes;
    std::vector<float> numbers;  // of the classes of `from`
  };
  std::shared_ptr<const state> state_;
};

void require_label(const any_record_source& source) {
  if (!source.schema().labels.empty()) return;
  throw configuration_error(std::string(source.name()) + " has no labels (classes were asked for); name its labels");
}

}  // namespace

std::size_t class_of(float label, std::size_t classes) {
  if (!is_class(label, classes)) throw data_error({}, no_class(label, classes));
  return static_cast<std::size_t>(label);
}

any_record_source with_classes(any_record_source source, std::size_t classes) {
  require_label(source);
  return class_source(std::move(source), classes, {}, {});
}

any_record_source with_classes(any_record_source source, const std::vector<std::string>& names) {
  require_label(source);
  const std::vector<std::string> own = source.schema().classes;
  std::vector<float> numbers;
  if (own.empty()) {
    log(log_level::warning, std::string(source.name()) +
                                " has no names of classes (its labels are taken for the numbers "
                                "of " +
                                std::to_string(names.size()) + " classes as they are)");
  } else if (own != names) {
    for (const std::string& name : own) {
      const auto found = std::ranges::find(names, name);
      if (found == names.end()) {
        constexpr std::size_t most = 5;
        throw data_error({std::string(source.name())},
                         "has the class '" + name + "' (the classes here are " +
                             detail::joined(std::span(names).first(std::min(most, names.size())), ", ") +
                             (names.size() > most ? ", ..." : "") + "); leave it out, or train with it");
      }
      numbers.push_back(static_cast<float>(found - names.begin()));
    }
  }
  return class_source(std::move(source), names.size(), names, std::move(numbers));
}

}}  // namespace muster::v0
