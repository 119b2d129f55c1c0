#pragma once

#include <muster/data/arrow.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/data/cache/content_digest.hpp>
#include <muster/data/parallel.hpp>
#include <muster/data/sources/arrow_arrays.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

/// An owner of one of Arrow's structs, which it releases.
template <class Struct>
struct arrow_owner : Struct {
  arrow_owner() : Struct{} {}
  explicit arrow_owner(Struct& taken) : Struct(taken) { taken.release = nullptr; }
  arrow_owner(const arrow_owner&) = delete;
  ~arrow_owner() {
    if (this->release != nullptr) this->release(this);
  }
};

/// The rows of batches in memory.
class arrow_records : public source_with_facts {
 public:
  arrow_records(ArrowArrayStream& arrow_stream, const column_options& options, const std::string& name, int threads);

  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  [[nodiscard]] bool mapped() const noexcept { return state_->mapped; }
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const;
  [[nodiscard]] data_location location_of(sample_id id) const { return {name(), id + 1}; }

 private:
  struct state : source_facts {
    column_options options;
    table_plan plan;
    arrow_owner<ArrowSchema> schema_of_table;
    std::vector<arrow_column> columns;  // of the columns in the plan
    std::vector<column_target> targets;
    std::vector<std::unique_ptr<arrow_owner<ArrowArray>>> batches;
    std::vector<std::uint64_t> firsts;  // each batch's first row
    bool mapped = false;
  };
  void take_batches(ArrowArrayStream& arrow_stream, state& made) const;
  void find_shapes(state& made) const;
  // Returns true if the bytes of every record are in an array, one after another.
  [[nodiscard]] static bool is_in_place(const state& made);
  // Returns the batch of a row.
  [[nodiscard]] std::size_t batch_of(sample_id id) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(state_->firsts, id) - state_->firsts.begin()) - 1;
  }
  // Reads neighbouring rows of a batch.
  void read_run(sample_id first, column_rows& rows, std::vector<std::byte>* bytes) const;

  std::shared_ptr<const state> state_;
};

inline void arrow_records::take_batches(ArrowArrayStream& arrow_stream, state& made) const {
  const auto require = [&](int failed) {
    if (failed == 0) return;
    const char* const reason = arrow_stream.get_last_error(&arrow_stream);
    throw data_error({made.name}, "cannot be read (" +
                                      std::string(reason == nullptr ? "error " + std::to_string(failed) : reason) +
                                      "); check its producer");
  };
  require(arrow_stream.get_schema(&arrow_stream, &made.schema_of_table));
  if (std::string_view(made.schema_of_table.format) != "+s")
    throw data_error({made.name}, "is not a table (its items are no structs); name a table or record batches");
  while (true) {
    auto batch = std::make_unique<arrow_owner<ArrowArray>>();
    require(arrow_stream.get_next(&arrow_stream, batch.get()));
    if (batch->release == nullptr) break;
    if (batch->length == 0) continue;
    made.firsts.push_back(made.size);
    made.size += static_cast<std::uint64_t>(batch->length);
    made.batches.push_back(std::move(batch));
  }
  if (made.size == 0) throw data_error({made.name}, "has no rows; check how it was made");
}

inline void arrow_records::find_shapes(state& made) const {
  for (std::size_t k = 0; k < made.columns.size(); ++k) {
    table_column& column = made.plan.columns[k];
    if (!column.is_field || !column.shape.empty()) continue;
    for (const auto& batch : made.batches) {
      const column_target target{column, made.options, {}};
      const arrow_reader reader(target, made.columns[k], *batch);
      for (std::int64_t row = 0; row < batch->length && column.shape.empty(); ++row) {
        std::vector<std::uint64_t> shape(made.columns[k].levels.size() - 1);
        if (!reader.is_null(row) && reader.elements(row, shape)) column.shape = shape;
      }
    }
    if (column.shape.empty())
      throw data_error({made.name},
                       column.quoted() + " has no list without missing values, and so no shape; ignore it");
  }
}

inline arrow_records::arrow_records(ArrowArrayStream& taken, const column_options& options, const std::string& name,
                                    int threads) {
  arrow_owner<ArrowArrayStream> arrow_stream(taken);
  auto made = std::make_shared<state>();
  made->name = name;
  made->options = options;
  take_batches(arrow_stream, *made);
  std::vector<table_column> all;
  std::vector<arrow_column> arrow;
  add_arrow_columns(made->schema_of_table, "", {}, all, arrow);
  made->plan = choose_columns(std::move(all), made->options, name);
  for (const table_column& column : made->plan.columns)
    made->columns.push_back(arrow[static_cast<std::size_t>(column.index)]);
  find_shapes(*made);
  place_columns(made->plan, name);
  made->schema = made->plan.schema;
  static_cast<source_facts&>(*made).columns = made->plan.names;
  for (const table_column& column : made->plan.columns)
    made->targets.push_back({column, made->options, column.quoted()});
  made->mapped = is_in_place(*made);
  state_ = made;
  facts_ = made.get();

  constexpr std::uint64_t run = 4096;
  std::vector<std::uint64_t> digests((made->size + run - 1) / run);
  parallel_for(digests.size(), threads, [&](std::size_t task) {
    std::vector<sample_id> ids(std::min(run, made->size - task * run));
    std::iota(ids.begin(), ids.end(), task * run);
    std::vector<std::uint64_t> sizes_of(ids.size());
    sizes(ids, sizes_of);
    std::vector<std::byte> bytes(std::accumulate(sizes_of.begin(), sizes_of.end(), std::size_t{0}));
    std::vector<float> labels(ids.size() * made->schema.labels.size());
    std::vector<bad_record> bad;
    read(ids, {bytes, labels}, &bad);
    digests[task] =
        muster::digest().add(digest_block(bytes)).add(digest_block(std::as_bytes(std::span(labels)))).value();
  });
  muster::digest sum;
  for (const std::uint64_t each : digests) sum.add(each);
  made->digest = sum.add(made->size).add(to_string(made->schema)).value();
}

inline bool arrow_records::is_in_place(const state& made) {
  const auto is_exact_label = [](const table_column& column) { return column.place == label_place; };
  const auto& columns = made.plan.columns;
  const auto found = std::ranges::find_if_not(columns, is_exact_label);
  if (made.plan.record_bytes == 0 || std::find_if_not(found + 1, columns.end(), is_exact_label) != columns.end())
    return false;
  const arrow_column& arrow = made.columns[static_cast<std::size_t>(found - columns.begin())];
  const bool has_lists = std::any_of(arrow.levels.begin(), arrow.levels.end() - 1,
                                     [](const ArrowSchema* level) { return level->format[1] != 'w'; });
  if (has_lists || arrow.is_dictionary || found->number == dtype::boolean ||
      (!found->is_field && found->number != dtype::float32))
    return false;
  const auto has_nulls = [](const ArrowArray& array) {
    return array.n_buffers > 0 && array.buffers[0] != nullptr && array.null_count != 0;
  };
  for (const auto& batch : made.batches) {
    const ArrowArray* array = batch.get();
    std::int64_t offset = array->offset;  // of the rows, by all structs above the values
    for (const std::int64_t child : arrow.path) {
      if (has_nulls(*array)) return false;
      array = array->children[child];
      offset += array->offset;
    }
    for (std::size_t level = 0; level + 1 < arrow.levels.size(); ++level) {
      if (has_nulls(*array)) return false;
      array = array->children[0];
    }
    if (has_nulls(*array)) return false;
    // A feature that is infinite or NaN is a bad record.
    const auto* const values = static_cast<const float*>(array->buffers[1]) + offset;
    if (!found->is_field &&
        !std::all_of(values, values + batch->length, [](float value) { return std::isfinite(value); }))
      return false;
  }
  return true;
}

inline void arrow_records::read_run(sample_id first, column_rows& rows, std::vector<std::byte>* bytes) const {
  const std::size_t batch = batch_of(first);
  for (std::size_t k = 0; k < state_->columns.size(); ++k)
    arrow_reader(state_->targets[k], state_->columns[k], *state_->batches[batch])
        .put(rows, static_cast<std::int64_t>(first - state_->firsts[batch]), bytes);
}

inline void arrow_records::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
  std::ranges::fill(out, state_->plan.record_bytes);
  if (state_->plan.record_bytes != 0) return;
  const auto found = std::ranges::find(state_->plan.columns, column_kind::bytes, &table_column::kind);
  const auto number = static_cast<std::size_t>(found - state_->plan.columns.begin());
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const std::size_t batch = batch_of(ids[k]);
    const arrow_reader reader(state_->targets[number], state_->columns[number], *state_->batches[batch]);
    const auto row = static_cast<std::int64_t>(ids[k] - state_->firsts[batch]);
    if (!reader.is_null(row)) out[k] = reader.bytes_of(row).size();
  }
}

inline void arrow_records::read(std::span<const sample_id> ids, const record_rows& rows,
                                std::vector<bad_record>* bad) const {
  const std::uint64_t record_bytes = state_->plan.record_bytes;
  std::vector<std::byte> unused_bytes, content;
  std::vector<float> unused_labels;
  std::byte* output = rows.bytes.data();
  for (std::size_t done = 0, count = 0; done < ids.size(); done += count) {
    const std::uint64_t end =
        batch_of(ids[done]) + 1 < state_->firsts.size() ? state_->firsts[batch_of(ids[done]) + 1] : state_->size;
    for (count = 1; done + count < ids.size() && ids[done + count] == ids[done] + count && ids[done] + count < end;)
      ++count;
    if (rows.bytes.empty()) unused_bytes.resize(count * record_bytes);
    if (rows.labels.empty() || state_->schema.labels.empty()) unused_labels.resize(count);
    column_rows part{rows.bytes.empty() ? unused_bytes.data() : output, record_bytes,
                     unused_labels.empty() ? rows.labels.data() + done : unused_labels.data(), 0, count};
    content.clear();
    read_run(ids[done], part, record_bytes == 0 && !rows.bytes.empty() ? &content : nullptr);
    std::vector<std::uint64_t> ends(record_bytes == 0 && !rows.bytes.empty() ? count : 0);
    if (!ends.empty()) {
      sizes(ids.subspan(done, count), ends);
      std::partial_sum(ends.begin(), ends.end(), ends.begin());
      std::ranges::copy(content, output);
    }
    std::vector<bad_record> found;
    report_bad_rows(
        part, ids[done], found,
        [&](std::size_t row) {
          part.labels[row] = 0;
          if (record_bytes != 0) std::memset(part.record(row), 0, record_bytes);
          if (!ends.empty()) std::fill(output + (row == 0 ? 0 : ends[row - 1]), output + ends[row], std::byte{0});
        },
        [&](std::size_t row) { return location_of(ids[done] + row); });
    if (!found.empty() && bad == nullptr) throw data_error(found.front().location, found.front().problem);
    if (bad != nullptr) std::ranges::move(found, std::back_inserter(*bad));
    if (!rows.bytes.empty()) output += ends.empty() ? count * record_bytes : ends.back();
  }
}

inline std::span<const std::byte> arrow_records::view(sample_id id) const {
  float label = 0;
  if (!state_->schema.labels.empty()) read({&id, 1}, {{}, {&label, 1}});  // throws if the label is bad
  const std::size_t batch = batch_of(id);
  const auto found = std::ranges::find_if(state_->plan.columns,
                                          [](const table_column& column) { return column.place != label_place; });
  const auto number = static_cast<std::size_t>(found - state_->plan.columns.begin());
  const arrow_reader reader(state_->targets[number], state_->columns[number], *state_->batches[batch]);
  const auto row = static_cast<std::int64_t>(id - state_->firsts[batch]);
  if (state_->columns[number].levels.size() > 1) {
    const auto list = reader.elements(row, found->shape);
    const auto& [leaf, first] = *list;
    return {leaf.buffer<std::byte>(1) + static_cast<std::size_t>(leaf.offset + first) * size_of(found->number),
            state_->plan.record_bytes};
  }
  return {reader.column.buffer<std::byte>(1) +
              static_cast<std::uint64_t>(reader.column.offset + row) * state_->plan.record_bytes,
          state_->plan.record_bytes};
}

}  // namespace detail

MUSTER_INLINE any_record_source open_arrow(ArrowArrayStream& arrow_stream, const column_options& options,
                                           const std::string& name, int threads) {
  return any_record_source(detail::arrow_records(arrow_stream, options, name, threads));
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
