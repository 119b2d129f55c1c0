#pragma once

#include <muster/data/record_source.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/data/label.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {

MUSTER_INLINE bool detail::canonicalize_labels(std::span<float> labels) noexcept {
  bool finite = true;
  for (float& label : labels) {
    label += 0.0f;
    finite &= std::abs(label) <= std::numeric_limits<float>::max();
  }
  return finite;
}

MUSTER_INLINE void any_record_source::refuse(std::span<const sample_id> ids, const record_rows& rows,
                                             std::vector<bad_record>* bad, std::size_t bad_before,
                                             const std::function<std::string(std::span<const float>)>& problem) const {
  const auto not_finite = [](std::span<const float> labels) -> std::string {
    const auto wrong = std::ranges::find_if(labels, [](float label) { return !std::isfinite(label); });
    return wrong == labels.end() ? "" : detail::no_label(muster::detail::printed("%g", static_cast<double>(*wrong)));
  };
  std::vector<std::uint64_t> bytes(rows.bytes.empty() ? 0 : ids.size());
  if (!bytes.empty()) sizes(ids, bytes);
  std::vector<bad_record> all;
  std::size_t next_known = bad_before, at = 0;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto labels = rows.labels.subspan(k * schema().labels.size(), schema().labels.size());
    const std::size_t size = bytes.empty() ? 0 : bytes[k];
    if (bad != nullptr && next_known < bad->size() && (*bad)[next_known].id == ids[k]) {
      all.push_back(std::move((*bad)[next_known++]));
    } else if (const std::string wrong = problem ? problem(labels) : not_finite(labels); !wrong.empty()) {
      const data_error error(location_of(ids[k]), wrong);
      if (bad == nullptr) throw error;
      all.push_back({ids[k], error.where(), error.problem()});
      std::ranges::fill(labels, 0.0f);
      std::ranges::fill(rows.bytes.subspan(at, size), std::byte{0});
    }
    at += size;
  }
  if (bad == nullptr) return;
  bad->resize(bad_before);
  std::ranges::move(all, std::back_inserter(*bad));
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
