#pragma once

#include <muster/data/sources/fixed_records.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstring>
#include <functional>
#include <type_traits>

#include <muster/core/copy.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/data/cache/content_digest.hpp>
#include <muster/data/label.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

template <class T>
T element_at(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
float read_as(const std::byte* at) noexcept {
  return static_cast<float>(element_at<T>(at));
}

// The functions that convert elements of a type to labels and to text.
struct label_reader {
  detail::to_float convert = nullptr;
  std::string (*text)(const std::byte*) = nullptr;
  bool may_fail = false;
};

inline label_reader label_reader_of(dtype type) {
  label_reader reader;
  muster::detail::with_one_of<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
                              std::int64_t, std::uint64_t, float16, bfloat16, float, double, long double>(
      type == dtype::boolean ? dtype::uint8 : type, [&](auto kind) {
        using number = decltype(kind);
        constexpr bool small = sizeof(number) < sizeof(float);
        using wide_type = std::conditional_t<small && !std::integral<number>, float, number>;
        reader.convert = [](const std::byte* at) noexcept {
          return detail::label_of(static_cast<wide_type>(element_at<number>(at)));
        };
        reader.text = [](const std::byte* at) {
          const auto element = static_cast<wide_type>(element_at<number>(at));
          if constexpr (std::integral<number>)
            return std::to_string(element);
          else
            return muster::detail::printed("%.17Lg", static_cast<long double>(element));
        };
        reader.may_fail = !small || !std::integral<number>;
      });
  return reader;
}

inline void add_schema(digest& hash, const record_schema& schema) {
  hash.add(std::uint64_t{schema.fields.size()});
  for (const record_field& field : schema.fields) {
    hash.add(field.name).add(static_cast<std::uint64_t>(field.type)).add(std::uint64_t{field.shape.size()});
    for (const std::uint64_t extent : field.shape) hash.add(extent);
  }
  for (const std::string& label : schema.labels) hash.add(label);
}

}  // namespace detail

MUSTER_INLINE detail::to_float detail::float_reader(dtype type) noexcept {
  if (type == dtype::boolean) return detail::read_as<std::uint8_t>;
  to_float reader = nullptr;
  muster::detail::with_one_of<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
                              std::int64_t, std::uint64_t, float16, bfloat16, float, double, long double>(
      type, [&](auto kind) { reader = detail::read_as<decltype(kind)>; });
  return reader;
}

MUSTER_INLINE record_stretch detail::stretch_of_file(const std::string& path, std::uint64_t skip, std::uint64_t stride,
                                                     std::uint64_t count) {
  const auto file = std::make_shared<const mapped_file>(path, compressed_files::as_they_are);
  const std::uint64_t size = file->bytes().size();
  if (count != 0) {
    if (size >= skip && (size - skip) / stride >= count) return {file, skip, stride, count};
    throw data_error({path, 0, 0, size}, "ends before its last record (after " + std::to_string(skip) +
                                             " bytes it has " +
                                             std::to_string(size < skip ? 0 : (size - skip) / stride) + " of " +
                                             std::to_string(count) + " records of " + std::to_string(stride) +
                                             " bytes); correct the layout, or copy or download it again");
  }
  const std::uint64_t rest = size < skip ? size : (size - skip) % stride;
  if (rest != 0 || size < skip) {
    throw data_error({path, 0, 0, size - rest}, "ends in the middle of a record (its " + std::to_string(size) +
                                                    " bytes are not " + std::to_string(skip) + " and a multiple of " +
                                                    std::to_string(stride) +
                                                    "); correct the layout, or copy or download it again");
  }
  return {file, skip, stride, (size - skip) / stride};
}

MUSTER_INLINE detail::record_places::record_places(std::span<const record_stretch> stretches, std::uint64_t item_bytes,
                                                   const std::string& path) {
  for (const record_stretch& stretch : stretches) {
    const auto bytes = stretch.file->bytes();
    // The last item ends at offset + (count - 1) * stride + item_bytes. No part of this sum may wrap.
    const bool fits =
        stretch.count == 0 ||
        (stretch.offset <= bytes.size() && item_bytes <= bytes.size() - stretch.offset &&
         (stretch.count == 1 || stretch.stride <= (bytes.size() - stretch.offset - item_bytes) / (stretch.count - 1)));
    if (!fits) {
      throw data_error({path}, "is too short (" + std::to_string(bytes.size()) + " bytes, and " +
                                   std::to_string(stretch.count) + " records of " + std::to_string(item_bytes) +
                                   " bytes do not fit); copy or download it again");
    }
    if (stretch.count == 0) continue;
    parts_.push_back({bytes.data() + stretch.offset, stretch.stride, size_});
    size_ += stretch.count;
  }
}

MUSTER_INLINE const detail::record_places::part* detail::record_places::find(sample_id id) const noexcept {
  return &*(std::ranges::upper_bound(parts_, id, {}, &part::first_id) - 1);
}

MUSTER_INLINE fixed_records::fixed_records(std::string name, record_schema schema, std::vector<record_stretch> records,
                                           std::vector<label_column> labels, int threads) {
  if (schema.form != record_form::fixed || labels.size() != schema.labels.size()) {
    throw configuration_error("the schema of '" + name + "' does not describe records of one size with " +
                              std::to_string(labels.size()) + " labels (it is " + to_string(schema) +
                              "); declare the fields and labels that the file has");
  }
  auto new_state = std::make_shared<state>();
  new_state->record_bytes = schema.record_bytes();
  new_state->records = detail::record_places(records, new_state->record_bytes, name);
  if (new_state->records.size() == 0) throw data_error({name}, "has no records; check how it was made");
  for (const label_column& column : labels) {
    const detail::label_reader reader = detail::label_reader_of(column.type);
    label_places places{{column.stretches, size_of(column.type), name}, reader.convert, reader.text};
    new_state->labels_may_fail = new_state->labels_may_fail || reader.may_fail;
    if (places.convert == nullptr) {
      throw configuration_error("the labels of '" + name + "' have no type; declare the type of their numbers");
    }
    if (places.places.size() != new_state->records.size()) {
      throw data_error({name}, "has " + std::to_string(new_state->records.size()) + " records but " +
                                   std::to_string(places.places.size()) +
                                   " labels; check that the files belong together");
    }
    new_state->labels.push_back(std::move(places));
  }

  muster::digest all;
  all.add(new_state->records.size());
  detail::add_schema(all, schema);
  const auto keep = [&](const std::vector<record_stretch>& stretches, std::uint64_t item_bytes) {
    for (const record_stretch& stretch : stretches) {
      all.add(stretch.offset).add(stretch.stride).add(stretch.count).add(item_bytes);
      if (std::find(new_state->files.begin(), new_state->files.end(), stretch.file) != new_state->files.end()) continue;
      detail::add_sampled_content(all, stretch.file->bytes(), threads);
      new_state->files.push_back(stretch.file);
    }
  };
  keep(records, new_state->record_bytes);
  for (const label_column& column : labels) {
    all.add(static_cast<std::uint64_t>(column.type));
    keep(column.stretches, size_of(column.type));
  }
  new_state->digest = all.value();
  new_state->size = new_state->records.size();
  new_state->name = std::move(name);
  new_state->schema = std::move(schema);
  state_ = std::move(new_state);
  facts_ = state_.get();
}

MUSTER_INLINE std::optional<std::uint64_t> fixed_records::host_state() const {
  return detail::states_of(state_->files, [](const auto& file) { return file->host_state(); });
}
MUSTER_INLINE std::optional<std::uint64_t> fixed_records::host_state_now() const {
  return detail::states_of(state_->files, [](const auto& file) { return file->host_state_now(); });
}

MUSTER_INLINE void fixed_records::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept {
  std::fill_n(out.begin(), ids.size(), state_->record_bytes);
}

MUSTER_INLINE void fixed_records::check_labels(sample_id id) const {
  for (std::size_t column = 0; column < state_->labels.size(); ++column) {
    if (std::isfinite(label(id, column))) continue;
    const auto& places = state_->labels[column];
    const std::byte* const at = places.places[id];
    data_location location{state_->name};
    for (const auto& file : state_->files) {
      const auto bytes = file->bytes();
      if (std::less<>()(at, bytes.data()) || !std::less<>()(at, bytes.data() + bytes.size())) continue;
      location = {file->path(), 0, 0, static_cast<std::uint64_t>(at - bytes.data())};
    }
    throw data_error(location, detail::no_label(places.text(at), " of record " + std::to_string(id)));
  }
}

MUSTER_INLINE void fixed_records::read(std::span<const sample_id> ids, const record_rows& rows,
                                       std::vector<bad_record>* bad) const {
  const std::size_t size = rows.bytes.empty() ? 0 : state_->record_bytes;
  const std::size_t count = rows.labels.empty() ? 0 : state_->labels.size();
  std::byte* output = rows.bytes.data();
  for (std::size_t k = 0; k < ids.size() && size != 0; ++k, output += size) {
    if (k + 1 < ids.size() && ids[k + 1] != ids[k] + 1) detail::fetch_ahead(record(ids[k + 1]));
    muster::detail::copy_bytes(output, state_->records[ids[k]], size);
  }
  for (std::size_t column = 0; column < count; ++column) {
    for (std::size_t k = 0; k < ids.size(); ++k) rows.labels[k * count + column] = label(ids[k], column);
  }
  for (std::size_t k = 0; k < ids.size() && state_->labels_may_fail; ++k) {
    try {
      check_labels(ids[k]);
    } catch (const data_error& error) {
      if (bad == nullptr) throw;
      bad->push_back({ids[k], error.where(), error.problem()});
      std::ranges::fill(rows.bytes.subspan(k * size, size), std::byte{0});
      std::ranges::fill(rows.labels.subspan(k * count, count), 0.0f);
    }
  }
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
