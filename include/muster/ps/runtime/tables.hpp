// The values that a server keeps: dense ranges as arrays, sparse ranges as rows under keys.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/ps/consistency.hpp>
#include <muster/ps/table.hpp>

#include <muster/core/copy.hpp>
#include <muster/ps/protocol/order.hpp>
#include <muster/ps/protocol/server_protocol.hpp>
#include <muster/ps/runtime/push_codec.hpp>
#include <muster/ps/runtime/row_store.hpp>
#include <muster/ps/runtime/update_counts.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

/// The server's values, see `range_storage`. A dense push or pull message is about `count` elements from the range's
/// element `offset`. A sparse message is about `count` keys, followed in a push by their rows. Values and keys have the
/// layout of memory. Messages with `saves` or `restores` contain the complete state.
class tables final : public range_storage {
 public:
  tables(const table_layout& layout, const consistency& model, const compression& compress)
      : layout_(layout), bulk_(model.type == consistency::kind::bulk), stored_(layout.ranges()), codec_(compress) {
    for (std::uint32_t table = 0; table < layout.tables().size(); ++table) {
      const auto& spec = layout.tables()[table];
      updates_.push_back(make_update(spec.update));
      const std::size_t ranges = layout.end(table) - layout.first(table);
      shapes_.push_back({spec.width, spec.width * (1 + updates_.back()->states()), spec.initial,
                         spec.most_rows == 0 ? 0 : std::max<std::size_t>(1, spec.most_rows / ranges), spec.most_age});
    }
  }

  /// Sets a function that is called before each change of a range. The caller may still use the result of `read`.
  void before_change(std::function<void(range_id)> notify) { before_change_ = std::move(notify); }
  /// Returns true if `read` returns the table's own memory for this pull, valid until the values change.
  [[nodiscard]] bool reads_in_place(range_id range, const message& pull) const {
    return pull.flags != saves && layout_.range(range).size != 0;
  }

  [[nodiscard]] std::string problem_with(range_id range, const message& request) const override {
    const auto& range_info = layout_.range(range);
    const auto& table = layout_.table_of(range);
    if (table.leases) return epoch_order::problem_with(request);
    const bool dense = range_info.size != 0;
    const bool pushes = request.kind == message_kind::push;
    const bool encodes = pushes && request.flags == encoded;
    const bool all_arrays = pushes && request.flags == restores;
    const bool is_supported = encodes || all_arrays || request.flags == 0 ||
                              (pushes && dense && request.flags == assigns) ||
                              (!pushes && request.flags == saves && request.count == 0);
    if (!is_supported) return "table '" + table.name + "' does not support the flags " + std::to_string(request.flags);
    if (dense && (request.offset > range_info.size || request.count > range_info.size - request.offset)) {
      return "the range has elements 0 to " + std::to_string(range_info.size) + ", not " +
             std::to_string(request.offset) + " to " + std::to_string(std::uint64_t{request.offset} + request.count);
    }
    const std::size_t values = std::size_t{request.count} * (dense ? 1 : table.width);
    if (encodes && (values > most_payload || !encoding_pays(codec_, values)))
      return "the job's codec does not encode " + std::to_string(values) + " values";
    std::size_t bytes = dense ? 0 : request.count * sizeof(std::uint64_t);  // the keys
    if (encodes) bytes += codec_.encoded_bytes(values);
    if (pushes && !encodes)
      bytes += values * sizeof(float) * (all_arrays ? 1 + updates_[range_info.table]->states() : 1);
    if (all_arrays) bytes += counter_bytes * (dense ? 1 : request.count);
    if (request.payload.size() == bytes) return {};
    return std::to_string(request.count) + " elements of table '" + table.name + "' are " + std::to_string(bytes) +
           " bytes, not " + std::to_string(request.payload.size());
  }

  void apply(range_id range, const log_entry& entry) override {
    auto& stored = stored_range(range);
    if (stored.order) return stored.order->apply(entry);
    const auto& range_info = layout_.range(range);
    before_change_(range);
    const auto& push = entry.push;
    if (entry.type == log_entry::kind::fold) return fold(range, stored, push.scale);
    if (push.flags == restores) return restore(range, stored, push);
    const float scale = push.scale * entry.weight;
    if (range_info.size != 0 && push.flags == assigns) {
      muster::detail::copy_bytes(reinterpret_cast<std::byte*>(stored.dense.data() + push.offset), push.payload.data(),
                                 push.payload.size());
      return;
    }
    const auto values = values_of(range, entry);
    if (values.empty()) return;
    if (bulk_ && entry.type != log_entry::kind::late)
      return add_to_sum(range, stored.sums[entry.sender], entry, values);
    if (range_info.size != 0) return update_dense(range, stored, push.offset, values, scale);
    const std::size_t width = layout_.table_of(range).width;
    stored.rows.next_push(shape_of(range));
    for (std::size_t i = 0; i < push.count; ++i)
      update_row(range, stored, key_at(push.payload, i), values.subspan(i * width, width), scale);
  }

  [[nodiscard]] std::vector<member> workers_with_parts(range_id range) const override {
    const auto& order = stored_[range].order;
    return order ? order->workers_with_parts() : std::vector<member>();
  }

  /// Returns the order of a range of leases, or null if it was never used.
  [[nodiscard]] const epoch_order* order(range_id range) const noexcept {
    return stored_[range].order ? &*stored_[range].order : nullptr;
  }

  [[nodiscard]] std::span<const std::byte> read(range_id range, const message& pull) override {
    auto& stored = stored_range(range);
    if (stored.order) {
      const lease reply = stored.order->answer({pull.offset, pull.count}, pull.place);
      const auto bytes = std::as_bytes(std::span(&reply, 1));
      answer_.assign(bytes.begin(), bytes.end());
      return answer_;
    }
    if (pull.flags == saves) {  // the format that `client::restore` reads
      muster::detail::wire_writer all;
      if (layout_.range(range).size != 0) {
        write_dense(range, stored, all);
      } else {
        all.add(std::uint64_t{layout_.range(range).begin});
        stored.rows.list(shape_of(range), all);
      }
      return answer_ = all.bytes();
    }
    if (layout_.range(range).size != 0) return std::as_bytes(stored.dense.span().subspan(pull.offset, pull.count));
    const auto& shape = shape_of(range);
    const std::size_t row_bytes = shape.width * sizeof(float);
    answer_.resize(pull.count * row_bytes);
    const std::vector<float> fresh(shape.width, shape.initial);
    for (std::size_t i = 0; i < pull.count; ++i) {
      const auto row = stored.rows.find(shape, key_at(pull.payload, i));
      std::memcpy(answer_.data() + i * row_bytes, row.empty() ? fresh.data() : row.data(), row_bytes);
    }
    return answer_;
  }

  void save(range_id range, muster::detail::wire_writer& writer) const override {
    const auto& stored = stored_[range];
    if (layout_.table_of(range).leases) return (stored.order ? *stored.order : epoch_order(bulk_)).save(writer);
    writer.add(std::uint64_t{stored.sums.size()});
    for (const auto& [worker, pushed] : stored.sums) {
      writer.add(worker);
      writer.add_all<float>(pushed.dense);
      pushed.rows.save(writer);
    }
    stored.rows.save(writer);
    write_dense(range, stored, writer);
  }

  [[nodiscard]] bool load(range_id range, std::span<const std::byte> saved) override {
    muster::detail::wire_reader reader(saved);
    if (layout_.table_of(range).leases) {
      epoch_order read(bulk_);
      if (!read.load(reader)) return false;
      stored_[range].order = std::move(read);
      return true;
    }
    held_range read;
    const auto& range_info = layout_.range(range);
    for (auto sums = reader.number(); sums > 0 && reader.good(); --sums) {
      sum& open_sum = read.sums[reader.number<member>()];
      open_sum.dense = reader.all<float>(range_info.size);
      if (!open_sum.dense.empty() && open_sum.dense.size() != range_info.size) return false;
      if (!open_sum.rows.load(shape_of_sums(range), reader)) return false;
    }
    if (!read.rows.load(shape_of(range), reader)) return false;
    if (!reader.rest().empty()) make(range, read);
    while (!reader.rest().empty()) {
      const auto offset = reader.number() - range_info.begin;
      const auto count = reader.number();
      if (offset > range_info.size || count > range_info.size - offset) return false;
      read_dense(range, read, offset, count, reader);
    }
    if (!reader.good()) return false;
    before_change_(range);
    stored_[range] = std::move(read);
    return true;
  }

  void reset(range_id range) override {
    before_change_(range);
    stored_[range] = {};
  }

 private:
  // The sum of a worker's bulk-synchronous pushes.
  struct sum {
    std::vector<float> dense;
    row_store rows;  // sparse
  };
  struct held_range {
    buffer<float> dense;               // the values, followed by the arrays of the update function
    update_counts counts;              // numbers of updates of the elements
    row_store rows;                    // sparse: the values and the update function's state
    std::map<member, sum> sums;        // sums of the open clock, added in the order of workers in the fold
    std::optional<epoch_order> order;  // in a table of leases, which has no values
  };

  // Allocates a dense range at its first use: a server has memory only for its own ranges.
  held_range& stored_range(range_id range) {
    auto& stored = stored_[range];
    if (layout_.range(range).size != 0 && stored.dense.size() == 0) make(range, stored);
    if (layout_.table_of(range).leases && !stored.order) stored.order.emplace(bulk_);
    return stored;
  }

  void make(range_id range, held_range& stored) const {
    const auto& range_info = layout_.range(range);
    stored.dense = buffer<float>(range_info.size * (1 + updates_[range_info.table]->states()));
    stored.counts = update_counts(range_info.size);
    const auto& table = layout_.table_of(range);
    if (table.initial_values)
      table.initial_values(range_info.begin, stored.dense.span().first(range_info.size));
    else
      std::fill_n(stored.dense.begin(), range_info.size, table.initial);
  }

  void update_dense(range_id range, held_range& stored, std::size_t offset, std::span<const float> pushed,
                    float scale) {
    // elements with equal numbers of updates
    stored.counts.add(offset, offset + pushed.size(), [&](std::size_t begin, std::size_t end, std::uint64_t count) {
      update(range, stored.dense.data() + begin, layout_.range(range).size, pushed.subspan(begin - offset, end - begin),
             count, scale);
    });
  }

  // Updates these values. The arrays of the update function's state follow at distances of `stride`.
  void update(range_id range, float* values, std::size_t stride, std::span<const float> pushed, std::uint64_t count,
              float scale) {
    const auto& function = *updates_[layout_.range(range).table];
    states_.clear();
    for (std::size_t k = 1; k <= function.states(); ++k) states_.emplace_back(values + k * stride, pushed.size());
    function.apply({values, pushed.size()}, pushed, states_, count, scale);
  }

  void update_row(range_id range, held_range& stored, std::uint64_t key, std::span<const float> pushed, float scale) {
    const auto row = stored.rows.touch(shape_of(range), key);
    update(range, row.values.data(), pushed.size(), pushed, ++row.times, scale);
  }

  [[nodiscard]] const row_shape& shape_of(range_id range) const { return shapes_[layout_.range(range).table]; }
  [[nodiscard]] row_shape shape_of_sums(range_id range) const {
    const std::size_t width = layout_.table_of(range).width;
    return {.width = width, .stride = width};
  }

  // Sparse payload: keys, the keys' numbers of updates, and the rows including the update function's state.
  void restore(range_id range, held_range& stored, const message& push) {
    muster::detail::wire_reader reader(push.payload);
    if (layout_.range(range).size != 0) return read_dense(range, stored, push.offset, push.count, reader);
    const auto& shape = shape_of(range);
    const std::size_t row_bytes = shape.stride * sizeof(float);
    const auto keys = reader.bytes(push.count * sizeof(std::uint64_t));
    const auto times = reader.bytes(push.count * counter_bytes);
    const auto rows = reader.bytes(push.count * row_bytes);
    stored.rows.next_push(shape);
    for (std::size_t i = 0; i < push.count; ++i) {
      const auto row = stored.rows.touch(shape, key_at(keys, i));
      std::memcpy(&row.times, times.data() + i * counter_bytes, counter_bytes);
      std::memcpy(row.values.data(), rows.data() + i * row_bytes, row_bytes);
    }
  }

  // Writes one part for each run of elements with equal numbers of updates: position, number of elements, number of
  // updates, and the run's part in every array.
  void write_dense(range_id range, const held_range& stored, muster::detail::wire_writer& writer) const {
    const auto& range_info = layout_.range(range);
    std::size_t begin = 0;
    for (const auto& run : stored.counts.runs()) {
      writer.add(std::uint64_t{range_info.begin + begin}, std::uint64_t{run.end - begin}, run.times);
      for (std::size_t array = 0; array < stored.dense.size(); array += range_info.size)
        writer.add_bytes(std::as_bytes(stored.dense.span().subspan(array + begin, run.end - begin)));
      begin = run.end;
    }
  }

  // Reads a part after its position and number of elements.
  void read_dense(range_id range, held_range& stored, std::size_t offset, std::size_t count,
                  muster::detail::wire_reader& reader) const {
    stored.counts.set(offset, offset + count, reader.number());
    const std::size_t size = layout_.range(range).size;
    for (std::size_t array = 0; array < stored.dense.size(); array += size)
      reader.read_all(stored.dense.span().subspan(array + offset, count));
  }

  void add_to_sum(range_id range, sum& total, const log_entry& entry, std::span<const float> pushed) const {
    const auto& range_info = layout_.range(range);
    if (range_info.size != 0) {
      total.dense.resize(range_info.size, 0.0f);
      return add_to(std::span(total.dense).subspan(entry.push.offset), pushed);
    }
    const auto shape = shape_of_sums(range);
    for (std::size_t i = 0; i < entry.push.count; ++i)
      add_to(total.rows.touch(shape, key_at(entry.push.payload, i)).values,
             pushed.subspan(i * shape.width, shape.width));
  }

  // Adds in the order of workers, so that the bits do not depend on the order of arrival.
  void fold(range_id range, held_range& stored, float scale) {
    if (stored.sums.empty()) return;
    const auto shape = shape_of_sums(range);
    sum total = std::move(stored.sums.begin()->second);
    for (auto next = std::next(stored.sums.begin()); next != stored.sums.end(); ++next) {
      add_to(total.dense, next->second.dense);
      next->second.rows.visit(shape, [&](std::uint64_t key, std::span<const float> values) {
        add_to(total.rows.touch(shape, key).values, values);
      });
    }
    stored.sums.clear();
    if (layout_.range(range).size != 0) return update_dense(range, stored, 0, total.dense, scale);
    stored.rows.next_push(shape_of(range));
    total.rows.visit(shape, [&](std::uint64_t key, std::span<const float> values) {
      update_row(range, stored, key, values, scale);
    });
  }

  // Returns the pushed values, which follow the keys in a sparse push. Returns an empty span if the payload is no
  // encoding: every server then ignores the push.
  [[nodiscard]] std::span<const float> values_of(range_id range, const log_entry& entry) {
    const bool dense = layout_.range(range).size != 0;
    const auto& push = entry.push;
    const auto bytes = push.payload.subspan(dense ? 0 : push.count * sizeof(std::uint64_t));
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    if (push.flags != encoded) {
      // Payloads in frames are aligned. Other payloads are copied to aligned memory.
      if (address % alignof(float) == 0)
        return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
      aligned_.resize(bytes.size() / sizeof(float));
      std::memcpy(aligned_.data(), bytes.data(), bytes.size());
      return aligned_;
    }
    aligned_.assign(dense ? push.count : push.count * layout_.table_of(range).width, 0.0f);
    try {
      codec_.decode_add(bytes, draw_of_push(range, entry.sender, push.number), 1.0f, aligned_);
    } catch (const data_error& trouble) {
      log(log_level::warning, "a push of worker " + to_string(entry.sender) + " is ignored: " + trouble.what());
      return {};
    }
    return aligned_;
  }

  static std::uint64_t key_at(std::span<const std::byte> keys, std::size_t i) {
    std::uint64_t key = 0;
    std::memcpy(&key, keys.data() + i * sizeof key, sizeof key);
    return key;
  }
  static void add_to(std::span<float> sum_values, std::span<const float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) sum_values[i] += values[i];
  }

  static constexpr std::size_t counter_bytes = sizeof(std::uint64_t);  // bytes of a number of updates in a checkpoint

  const table_layout& layout_;
  bool bulk_;
  std::vector<std::shared_ptr<const update_function>> updates_;  // by table
  std::vector<row_shape> shapes_;                                // by table
  std::vector<held_range> stored_;
  std::vector<std::byte> answer_;
  std::vector<float> aligned_;            // pushed values, kept to avoid an allocation for each push
  std::vector<std::span<float>> states_;  // state arrays of an update, kept to avoid allocations
  std::function<void(range_id)> before_change_ = [](range_id) {};
  any_codec codec_;
};

}}}  // namespace muster::v0::ps::detail
