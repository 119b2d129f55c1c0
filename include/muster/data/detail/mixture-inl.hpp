#pragma once

#include <muster/data/mixture.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/data/classes.hpp>
#include <muster/data/order/proportions.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

[[noreturn]] inline void refuse(const std::string& reason, const std::string& suggestion) {
  throw configuration_error("the sources cannot be mixed (" + reason + "); " + suggestion);
}

// Returns the smallest integers in the proportions of the weights.
inline std::vector<std::uint64_t> whole_weights(const std::vector<mixture_part>& parts) {
  constexpr double fineness = 1e6;
  std::vector<std::uint64_t> weights;
  std::uint64_t measure = 0;
  for (const mixture_part& part : parts) {
    const double scaled = std::round(part.weight * fineness);
    if (!(scaled >= 1) || scaled > 1e15) {
      refuse("the weight of " + std::string(part.source.name()) + " is " + std::to_string(part.weight),
             "give each a number from 0.000001 to 1000000000");
    }
    weights.push_back(static_cast<std::uint64_t>(scaled));
    measure = std::gcd(measure, weights.back());
  }
  for (std::uint64_t& weight : weights) weight /= measure;
  return weights;
}

}  // namespace detail

struct mixture::state : detail::source_facts {
  state(std::vector<mixture_part> all, std::string given_name) : parts(std::move(all)) {
    if (parts.empty()) detail::refuse("there are no sources", "name some, such as mix:a=0.7,b=0.3");
    const auto weights = detail::whole_weights(parts);
    muster::digest content;
    std::vector<std::uint64_t> counts;
    name = given_name.empty() ? "mix:" : std::move(given_name);
    const bool is_named = name != "mix:";
    for (std::size_t k = 0; k < parts.size(); ++k) {
      const auto& names = parts[0].source.schema().classes;
      const auto& own = parts[k].source.schema().classes;
      if (own != names && !own.empty() && !names.empty()) parts[k].source = with_classes(parts[k].source, names);
      const any_record_source& source = parts[k].source;
      notes.insert(notes.end(), source.notes().begin(), source.notes().end());
      if (source.schema() != parts[0].source.schema()) {
        detail::refuse(std::string(source.name()) + " has records of " + to_string(source.schema()) + ", and " +
                           std::string(parts[0].source.name()) + " of " + to_string(parts[0].source.schema()),
                       "convert the records");
      }
      if (source.size() == 0) detail::refuse(std::string(source.name()) + " has no records", "leave it out");
      size += source.size();
      counts.push_back(source.size());
      content.add(source.digest()).add(weights[k]);
      if (!is_named) name += (k == 0 ? "" : ",") + std::string(source.name()) + "=" + std::to_string(weights[k]);
      mapped = mapped && source.mapped();
      block_records = std::max(block_records, source.block_records());
    }
    digest = content.value();
    schema = parts[0].source.schema();
    order = std::make_shared<const detail::proportions>(std::move(counts), weights);
  }

  std::vector<mixture_part> parts;
  std::uint64_t block_records = 0;
  bool mapped = true;
  std::shared_ptr<const detail::proportions> order;
};

MUSTER_INLINE mixture::mixture(std::vector<mixture_part> parts, std::string name)
    : state_(std::make_shared<const state>(std::move(parts), std::move(name))) {
  facts_ = state_.get();
}

MUSTER_INLINE std::optional<std::uint64_t> mixture::host_state() const {
  return detail::states_of(state_->parts, [](const mixture_part& part) { return part.source.host_state(); });
}
MUSTER_INLINE std::optional<std::uint64_t> mixture::host_state_now() const {
  return detail::states_of(state_->parts, [](const mixture_part& part) { return part.source.host_state_now(); });
}

MUSTER_INLINE std::uint64_t mixture::block_records() const noexcept { return state_->block_records; }
MUSTER_INLINE bool mixture::mapped() const noexcept { return state_->mapped; }
MUSTER_INLINE const std::shared_ptr<const detail::proportions>& mixture::mixture_order() const noexcept {
  return state_->order;
}

MUSTER_INLINE data_location mixture::location_of(sample_id id) const {
  const std::size_t part = state_->order->part_of(id);
  return state_->parts[part].source.location_of(id - state_->order->first_record(part));
}

MUSTER_INLINE void mixture::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const std::size_t part = state_->order->part_of(ids[k]);
    const sample_id own = ids[k] - state_->order->first_record(part);
    state_->parts[part].source.sizes({&own, 1}, out.subspan(k, 1));
  }
}

MUSTER_INLINE std::span<const std::byte> mixture::view(sample_id id) const {
  const std::size_t part = state_->order->part_of(id);
  const sample_id own = id - state_->order->first_record(part);
  std::span<const std::byte> found;
  state_->parts[part].source.views({&own, 1}, {&found, 1});
  return found;
}

MUSTER_INLINE void mixture::read(std::span<const sample_id> ids, const record_rows& rows,
                                 std::vector<bad_record>* bad) const {
  std::vector<sample_id> own;
  std::vector<std::uint64_t> bytes;
  record_rows rest = rows;
  for (std::size_t k = 0; k < ids.size();) {  // one run of records in the same part at a time
    const std::size_t part = state_->order->part_of(ids[k]);
    const any_record_source& source = state_->parts[part].source;
    own.clear();
    for (; k < ids.size() && state_->order->part_of(ids[k]) == part; ++k)
      own.push_back(ids[k] - state_->order->first_record(part));
    bytes.resize(own.size());
    if (!rows.bytes.empty()) source.sizes(own, bytes);
    const std::size_t size = rows.bytes.empty() ? 0 : std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
    const std::size_t labels = rows.labels.empty() ? 0 : own.size() * schema().labels.size();
    const std::size_t bad_before = bad == nullptr ? 0 : bad->size();
    source.read(own, {rest.bytes.first(size), rest.labels.first(labels)}, bad);
    rest = {rest.bytes.subspan(size), rest.labels.subspan(labels)};
    if (bad == nullptr) continue;
    for (auto& record : std::span(*bad).subspan(bad_before)) record.id += state_->order->first_record(part);
  }
}

}}}  // namespace muster::v0::data
