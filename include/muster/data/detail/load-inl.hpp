#pragma once

#include <muster/data/dataset.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/parallel.hpp>
#include <muster/data/sources/fixed_records.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constexpr std::size_t records_of_task = 256;

// Reads tasks of consecutive records and their labels in parallel. Calls each(first id, run) for each task.
template <class Each>
std::vector<bad_record> read_all(const any_record_source& source, const read_options& options, dataset_builder& output,
                                 Each each) {
  const std::size_t count = source.size();
  const std::size_t labels_each = source.schema().labels.size();
  std::vector<std::vector<bad_record>> bad((count + records_of_task - 1) / records_of_task);
  detail::parallel_for(bad.size(), options.threads, [&](std::size_t task) {
    const sample_id first = task * records_of_task;
    detail::record_run run;
    run.read(source, first, std::min<std::size_t>(records_of_task, count - first), options.keep_bad_records);
    for (std::size_t k = 0; k < run.sizes.size(); ++k)
      output.labels()[first + k] = labels_each != 0 ? run.labels[k * labels_each] : 0;
    each(first, run);
    bad[task] = std::move(run.bad);
  });
  std::vector<bad_record> all;
  for (auto& part : bad) std::move(part.begin(), part.end(), std::back_inserter(all));
  return all;
}

inline dataset load_fixed(const any_record_source& source, const read_options& options) {
  const record_schema& schema = source.schema();
  std::uint64_t features = 0;
  for (const record_field& field : schema.fields) features += field.elements();
  const std::size_t width = std::max<std::size_t>(features, options.min_features);
  dataset_builder builder = dataset_builder::dense(std::string(source.name()), source.size(), width);
  builder.set_bad(read_all(source, options, builder, [&](sample_id first, const detail::record_run& run) {
    const std::byte* input = run.bytes.data();
    for (std::size_t k = 0; k < run.sizes.size(); ++k) {
      float* output = builder.row(first + k).data();
      for (const record_field& field : schema.fields) {
        const auto convert = detail::float_reader(field.type);
        const std::size_t size = size_of(field.type);
        for (std::uint64_t n = field.elements(); n > 0; --n, input += size) *output++ = convert(input);
      }
    }
  }));
  return builder.finish(options.threads);
}

inline dataset load_sparse(const any_record_source& source, const read_options& options) {
  const record_schema& schema = source.schema();
  const std::size_t count = source.size();
  std::vector<std::uint64_t> offsets(count + 1);
  {
    std::vector<sample_id> ids(count);
    std::iota(ids.begin(), ids.end(), sample_id{0});
    source.sizes(ids, std::span(offsets).subspan(1));
    for (std::size_t i = 0; i < count; ++i) offsets[i + 1] = offsets[i] + offsets[i + 1] / sizeof(sparse_entry);
  }
  const std::size_t width = std::max<std::size_t>(schema.features, options.min_features);
  dataset_builder builder = dataset_builder::sparse(std::string(source.name()), count, width, offsets.back());
  std::copy(offsets.begin(), offsets.end(), builder.offsets().begin());
  auto bad = read_all(source, options, builder, [&](sample_id first, const detail::record_run& run) {
    for (std::size_t at = 0; at * sizeof(sparse_entry) < run.bytes.size(); ++at) {
      sparse_entry entry;
      std::memcpy(&entry, run.bytes.data() + at * sizeof entry, sizeof entry);
      builder.indices()[offsets[first] + at] = entry.index;
      builder.values()[offsets[first] + at] = entry.value;
    }
  });
  // The indices of a bad record are zeros and do not ascend. Number them as the first features, with values of zero.
  for (const bad_record& record : bad) {
    const auto indices = builder.indices().subspan(offsets[record.id], offsets[record.id + 1] - offsets[record.id]);
    std::iota(indices.begin(), indices.end(), std::uint32_t{0});
  }
  builder.set_bad(std::move(bad));
  return builder.finish(options.threads);
}

// Throws `wrong`, or marks the record as bad and sets its bytes and labels to zero.
inline void refuse(const data_error& wrong, sample_id id, bool keep_bad, std::span<std::byte> bytes,
                   std::span<float> labels, std::vector<bad_record>& bad) {
  if (!keep_bad) throw wrong;
  bad.push_back({id, wrong.where(), wrong.problem()});
  std::ranges::fill(bytes, std::byte{0});
  std::ranges::fill(labels, 0.0f);
}

// Returns true if the indices ascend and are below `features`.
inline bool has_right_indices(std::span<const std::byte> record, std::uint64_t features) {
  std::uint64_t least = 0;  // least valid index of the next entry
  for (; !record.empty(); record = record.subspan(sizeof(sparse_entry))) {
    sparse_entry entry;
    std::memcpy(&entry, record.data(), sizeof entry);
    if (entry.index < least || entry.index >= features) return false;
    least = std::uint64_t{entry.index} + 1;
  }
  return true;
}

// Checks sparse records. A file may contain any bytes, but users of sparse records rely on the rules of sparse_entry
// and on whole entries.
inline void check_entries(const any_record_source& source, sample_id first, bool keep_bad, detail::record_run& run) {
  const record_schema& schema = source.schema();
  const std::size_t width = schema.labels.size();
  std::span<std::byte> rest = run.bytes;
  for (std::size_t k = 0; k < run.sizes.size(); rest = rest.subspan(run.sizes[k++])) {
    const std::span<std::byte> record = rest.first(run.sizes[k]);
    const sample_id id = first + k;
    if (record.size() % sizeof(sparse_entry) != 0) {
      throw data_error(source.location_of(id), "has " + std::to_string(record.size()) +
                                                   " bytes (an entry of a sparse record has 8); write the file again");
    }
    if (has_right_indices(record, schema.features)) continue;
    if (std::ranges::find(run.bad, id, &bad_record::id) != run.bad.end()) continue;  // the record is already zeros
    const data_error wrong(source.location_of(id), "has indices that do not ascend or are not below " +
                                                       std::to_string(schema.features) +
                                                       " (the indices of a sparse record must); write the file again");
    refuse(wrong, id, keep_bad && record.size() / sizeof(sparse_entry) <= schema.features, record,
           std::span(run.labels).subspan(k * width, width), run.bad);
  }
  std::ranges::sort(run.bad, {}, &bad_record::id);
}

// Returns the first element that is infinite as a float32.
template <class T>
std::optional<T> first_infinite(std::span<const std::byte> elements) {
  for (; !elements.empty(); elements = elements.subspan(sizeof(T))) {
    T element;
    std::memcpy(&element, elements.data(), sizeof element);
    if (std::isinf(static_cast<float>(element))) return element;
  }
  return std::nullopt;
}

inline void check_numbers(const any_record_source& source, sample_id first, bool keep_bad, detail::record_run& run) {
  const record_schema& schema = source.schema();
  const std::size_t width = schema.labels.size(), record_bytes = schema.record_bytes();
  const std::size_t bad_before = run.bad.size();
  std::size_t offset = 0;
  for (const record_field& field : schema.fields) {
    const std::size_t bytes = field.bytes();
    muster::detail::with_one_of<float16, bfloat16, float, double, long double>(field.type, [&](auto kind) {
      for (std::size_t k = 0; k < run.sizes.size(); ++k) {
        const auto record = std::span(run.bytes).subspan(k * record_bytes, record_bytes);
        const auto found = first_infinite<decltype(kind)>(record.subspan(offset, bytes));
        if (!found) continue;
        const data_error wrong(
            source.location_of(first + k),
            muster::detail::printed("has the number %Lg in field ", static_cast<long double>(*found)) + field.name +
                " (a feature is a float32, whose maximum is 3.4e38); scale it, or leave the record "
                "out as a bad record");
        refuse(wrong, first + k, keep_bad, record, std::span(run.labels).subspan(k * width, width), run.bad);
      }
    });
    offset += bytes;
  }
  if (run.bad.size() != bad_before) std::ranges::sort(run.bad, {}, &bad_record::id);
}

}  // namespace detail

MUSTER_INLINE void detail::record_run::read(const any_record_source& source, sample_id first, std::uint64_t count,
                                            bool keep_bad, bool as_features) {
  std::vector<sample_id> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  sizes.resize(count);
  source.sizes(ids, sizes);
  bytes.resize(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
  labels.resize(count * source.schema().labels.size());
  bad.clear();
  source.read(ids, {bytes, labels}, keep_bad ? &bad : nullptr);
  if (source.schema().form == record_form::sparse) detail::check_entries(source, first, keep_bad, *this);
  if (source.schema().form == record_form::fixed && as_features) detail::check_numbers(source, first, keep_bad, *this);
}

MUSTER_INLINE dataset load(const any_record_source& source, const read_options& options) {
  const record_form form = source.schema().form;
  const std::string name(source.name());
  if (form == record_form::bytes) {
    throw configuration_error("the records of " + name +
                              " cannot become features (they are bytes in a user-defined format); open it as a record "
                              "source and parse the records");
  }
  const layout unsupported = form == record_form::fixed ? layout::sparse : layout::dense;
  if (options.layout == unsupported) {
    throw configuration_error("the records of " + name + " are " + (form == record_form::fixed ? "dense" : "sparse") +
                              " (the other layout was requested); do not set the layout");
  }
  return form == record_form::fixed ? detail::load_fixed(source, options) : detail::load_sparse(source, options);
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
