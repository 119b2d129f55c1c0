#pragma once

#include <muster/data/dataset.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/data/cache/content_digest.hpp>
#include <muster/data/dataset_builder.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constexpr std::size_t floats_per_line = buffer_alignment / sizeof(float);

inline std::uint64_t digest_of(const detail::samples& samples, int threads) {
  digest all;
  all.add(std::uint64_t{samples.size}).add(std::uint64_t{samples.features}).add(std::uint64_t{samples.sparse});
  for (const bad_record& bad : samples.bad) all.add(bad.id);
  for (const auto part : {std::as_bytes(samples.labels.span()), std::as_bytes(samples.values.span()),
                          std::as_bytes(samples.offsets.span()), std::as_bytes(samples.indices.span())}) {
    detail::add_content(all, part, threads);
  }
  return all.value();
}

inline record_schema schema_of(const detail::samples& samples) {
  if (samples.sparse) return {record_form::sparse, {}, samples.features, {"label"}};
  return {
      record_form::fixed, {{"features", dtype::float32, {samples.features}}}, 0, {"label"}, samples.columns.classes};
}

inline void check_row(const detail::samples& samples, std::size_t row) {
  const auto offsets = samples.offsets.span();
  const std::uint32_t* const begin = samples.indices.data() + offsets[row];
  const std::uint32_t* const end = samples.indices.data() + offsets[row + 1];
  const std::uint32_t* wrong = std::adjacent_find(begin, end, std::greater_equal());
  if (wrong != end) {
    ++wrong;
  } else if (begin == end || end[-1] < samples.features) {
    return;  // the indices ascend, and the largest index is a feature
  } else {
    wrong = end - 1;
  }
  throw configuration_error("feature index " + std::to_string(*wrong) + " of sample " + std::to_string(row) +
                            " is out of order or range (indices must ascend and be below " +
                            std::to_string(samples.features) + "); sort the entries of each sample");
}

inline void check_rows(const detail::samples& samples, int threads) {
  const auto offsets = samples.offsets.span();
  if (offsets.front() != 0 || offsets.back() != samples.values.size() ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    throw configuration_error("the offsets of a sparse dataset are inconsistent (they must ascend from 0 to " +
                              std::to_string(samples.values.size()) +
                              ", the number of entries); fill all elements of offsets()");
  }
  constexpr std::size_t rows_of_task = 1 << 14;
  const auto indices = samples.indices.span();
  detail::parallel_for((samples.size + rows_of_task - 1) / rows_of_task, threads, [&](std::size_t task) {
    const std::size_t first = task * rows_of_task;
    const std::size_t last = std::min(samples.size, first + rows_of_task);
    // Most rows are valid. Count the descents in all indices without a branch, and subtract the descents from one row
    // to the next.
    std::int64_t descents = 0;
    for (std::size_t i = offsets[first] + 1; i < offsets[last]; ++i) descents += indices[i - 1] >= indices[i] ? 1 : 0;
    std::uint32_t largest = 0;
    for (std::size_t row = first; row < last; ++row) {
      const std::uint64_t begin = offsets[row];
      const std::uint64_t end = offsets[row + 1];
      if (begin == end) continue;
      largest = std::max(largest, indices[end - 1]);
      descents -= begin != offsets[first] && indices[begin - 1] >= indices[begin] ? 1 : 0;
    }
    if (descents == 0 && largest < samples.features) return;
    for (std::size_t row = first; row < last; ++row) check_row(samples, row);
  });
}

}  // namespace detail

MUSTER_INLINE dataset::dataset() {
  static const auto none = [] {
    auto samples = std::make_shared<detail::samples>();
    samples->name = "none";
    samples->schema = detail::schema_of(*samples);
    samples->digest = detail::digest_of(*samples, 1);
    return samples;
  }();
  samples_ = none;
  facts_ = samples_.get();
}

MUSTER_INLINE std::vector<float> dataset::classes() const {
  std::vector<float> found(labels().begin(), labels().end());
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

MUSTER_INLINE const bad_record* dataset::find_bad(sample_id id) const noexcept {
  const std::vector<bad_record>& bad = samples_->bad;
  const auto found = std::ranges::lower_bound(bad, id, {}, &bad_record::id);
  return found != bad.end() && found->id == id ? &*found : nullptr;
}

MUSTER_INLINE void dataset::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    out[k] = is_sparse() ? sizeof(sparse_entry) * (samples_->offsets[ids[k] + 1] - samples_->offsets[ids[k]])
                         : sizeof(float) * features();
  }
}

MUSTER_INLINE void dataset::read(std::span<const sample_id> ids, const record_rows& rows,
                                 std::vector<bad_record>* bad) const {
  if (!samples_->bad.empty()) {
    for (const sample_id id : ids) {
      const bad_record* const found = find_bad(id);
      if (found == nullptr) continue;
      if (bad == nullptr) throw data_error(found->location, found->problem);
      bad->push_back(*found);
    }
  }
  std::byte* output = rows.bytes.data();
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (!rows.labels.empty()) rows.labels[k] = label(ids[k]);
    if (rows.bytes.empty()) continue;
    if (is_sparse()) {
      const sparse_row row = sparse(ids[k]);
      for (std::size_t j = 0; j < row.indices.size(); ++j) {
        const sparse_entry entry{row.indices[j], row.values[j]};
        std::memcpy(output, &entry, sizeof entry);
        output += sizeof entry;
      }
    } else {
      const auto bytes = std::as_bytes(row(ids[k]));
      std::memcpy(output, bytes.data(), bytes.size());
      output += bytes.size();
    }
  }
}

MUSTER_INLINE std::span<const std::byte> dataset::view(sample_id id) const {
  if (!samples_->bad.empty()) {
    if (const bad_record* const found = find_bad(id); found != nullptr)
      throw data_error(found->location, found->problem);
  }
  return std::as_bytes(row(id));
}

MUSTER_INLINE dataset_builder dataset_builder::dense(std::string name, std::size_t row_count, std::size_t features) {
  auto samples = std::make_unique<detail::samples>();
  samples->name = std::move(name);
  samples->size = row_count;
  samples->features = features;
  samples->stride = (features + detail::floats_per_line - 1) / detail::floats_per_line * detail::floats_per_line;
  if (samples->stride != 0 && row_count > std::numeric_limits<std::size_t>::max() / samples->stride) {
    throw std::bad_array_new_length();
  }
  samples->labels = buffer<float>(row_count);
  samples->values = buffer<float>(row_count * samples->stride);
  return dataset_builder(std::move(samples));
}

MUSTER_INLINE dataset_builder dataset_builder::sparse(std::string name, std::size_t row_count, std::size_t features,
                                                      std::size_t entries) {
  if (features > std::numeric_limits<std::uint32_t>::max()) {
    throw configuration_error("a sparse dataset cannot have " + std::to_string(features) +
                              " features (an index has 32 bits); use at most 4294967295");
  }
  auto samples = std::make_unique<detail::samples>();
  samples->name = std::move(name);
  samples->size = row_count;
  samples->features = features;
  samples->sparse = true;
  samples->labels = buffer<float>(row_count);
  samples->values = buffer<float>(entries);
  samples->offsets = buffer<std::uint64_t>(row_count + 1);
  samples->indices = buffer<std::uint32_t>(entries);
  return dataset_builder(std::move(samples));
}

MUSTER_INLINE dataset dataset_builder::finish(int threads) {
  if (samples_->sparse) detail::check_rows(*samples_, threads);
  samples_->schema = detail::schema_of(*samples_);
  samples_->digest = detail::digest_of(*samples_, threads);
  return dataset(std::shared_ptr<const detail::samples>(std::move(samples_)));
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
