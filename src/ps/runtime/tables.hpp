// The values that a server keeps: dense ranges as arrays, sparse ones as rows under keys.
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

#include "../../core/copy.hpp"
#include "../protocol/order.hpp"
#include "../protocol/server.hpp"
#include "push_codec.hpp"
#include "row_store.hpp"
#include "update_counts.hpp"

namespace muster { inline namespace v0 { namespace ps::detail {

/// See `range_storage`. In messages, a dense push or pull is of `count` elements from the `offset`-th of its range on;
/// a sparse one of `count` keys; their rows follow them in a push. Values and keys are as they lie in memory. Those
/// that `saves` or `restores` have all that there is.
class tables final : public range_storage {
 public:
  tables(const table_layout& layout, const consistency& how, const compression& compress)
      : layout_(layout), bulk_(how.what == consistency::kind::bulk), kept_(layout.ranges()), codec_(compress) {
    for (std::uint32_t table = 0; table < layout.tables().size(); ++table) {
      const auto& one = layout.tables()[table];
      updates_.push_back(make_update(one.update));
      const std::size_t ranges = layout.last(table) - layout.first(table);
      shapes_.push_back({one.width, one.width * (1 + updates_.back()->states()), one.initial,
                         one.most_rows == 0 ? 0 : std::max<std::size_t>(1, one.most_rows / ranges), one.most_age});
    }
  }

  /// `tell` is called before each change of a range, for a caller that still reads what `read` gave.
  void before_change(std::function<void(range_id)> tell) { before_change_ = std::move(tell); }
  /// Whether what `read` gives for that is where the values lie, until they change.
  [[nodiscard]] bool reads_in_place(range_id range, const message& pull) const {
    return pull.flags != saves && layout_.range(range).size != 0;
  }

  [[nodiscard]] std::string problem_with(range_id range, const message& asked) const override {
    const auto& where = layout_.range(range);
    const auto& table = layout_.table_of(range);
    if (table.leases) return epoch_order::problem_with(asked);
    const bool dense = where.size != 0;
    const bool pushes = asked.what == message_kind::push;
    const bool encodes = pushes && asked.flags == encoded;
    const bool all_arrays = pushes && asked.flags == restores;
    const bool known = encodes || all_arrays || asked.flags == 0 || (pushes && dense && asked.flags == assigns) ||
                       (!pushes && asked.flags == saves && asked.count == 0);
    if (!known)
      return "table '" + table.name + "' does not support the flags " + std::to_string(asked.flags) + " of it";
    if (dense && (asked.offset > where.size || asked.count > where.size - asked.offset)) {
      return "the range has elements 0 to " + std::to_string(where.size) + ", not " + std::to_string(asked.offset) +
             " to " + std::to_string(std::uint64_t{asked.offset} + asked.count);
    }
    const std::size_t values = std::size_t{asked.count} * (dense ? 1 : table.width);
    if (encodes && (values > most_payload || !encoding_pays(codec_, values)))
      return "the job's codec does not encode " + std::to_string(values) + " values";
    std::size_t bytes = dense ? 0 : asked.count * sizeof(std::uint64_t);  // the keys
    if (encodes) bytes += codec_.encoded_bytes(values);
    if (pushes && !encodes) bytes += values * sizeof(float) * (all_arrays ? 1 + updates_[where.table]->states() : 1);
    if (all_arrays) bytes += counter * (dense ? 1 : asked.count);
    if (asked.payload.size() == bytes) return {};
    return std::to_string(asked.count) + " elements of table '" + table.name + "' are " + std::to_string(bytes) +
           " bytes, not " + std::to_string(asked.payload.size());
  }

  void apply(range_id range, const log_entry& entry) override {
    auto& kept = of(range);
    if (kept.order) return kept.order->apply(entry);
    const auto& where = layout_.range(range);
    before_change_(range);
    const auto& push = entry.push;
    if (entry.what == log_entry::kind::fold) return fold(range, kept, push.scale);
    if (push.flags == restores) return restore(range, kept, push);
    const float scale = push.scale * entry.weight;
    if (where.size != 0 && push.flags == assigns) {
      muster::detail::copy_bytes(reinterpret_cast<std::byte*>(kept.dense.data() + push.offset), push.payload.data(),
                                 push.payload.size());
      return;
    }
    const auto values = values_of(range, entry);
    if (values.empty()) return;
    if (bulk_ && entry.what != log_entry::kind::late) return add_to_sum(range, kept.sums[entry.from], entry, values);
    if (where.size != 0) return update_dense(range, kept, push.offset, values, scale);
    const std::size_t width = layout_.table_of(range).width;
    kept.rows.next_push(shape_of(range));
    for (std::size_t i = 0; i < push.count; ++i)
      update_row(range, kept, key_at(push.payload, i), values.subspan(i * width, width), scale);
  }

  [[nodiscard]] std::vector<member> holders(range_id range) const override {
    const auto& order = kept_[range].order;
    return order ? order->holders() : std::vector<member>();
  }

  /// Of a range of leases that was used.
  [[nodiscard]] const epoch_order* order(range_id range) const noexcept {
    return kept_[range].order ? &*kept_[range].order : nullptr;
  }

  [[nodiscard]] std::span<const std::byte> read(range_id range, const message& pull) override {
    auto& kept = of(range);
    if (kept.order) {
      const lease told = kept.order->answer({pull.offset, pull.count}, pull.place);
      const auto bytes = std::as_bytes(std::span(&told, 1));
      answer_.assign(bytes.begin(), bytes.end());
      return answer_;
    }
    if (pull.flags == saves) {  // as `client::restore` reads it
      muster::detail::wire_writer all;
      if (layout_.range(range).size != 0) {
        write_dense(range, kept, all);
      } else {
        all.add(std::uint64_t{layout_.range(range).begin});
        kept.rows.list(shape_of(range), all);
      }
      return answer_ = all.bytes();
    }
    if (layout_.range(range).size != 0) return std::as_bytes(kept.dense.span().subspan(pull.offset, pull.count));
    const auto& shape = shape_of(range);
    const std::size_t row_bytes = shape.width * sizeof(float);
    answer_.resize(pull.count * row_bytes);
    const std::vector<float> fresh(shape.width, shape.initial);
    for (std::size_t i = 0; i < pull.count; ++i) {
      const auto row = kept.rows.find(shape, key_at(pull.payload, i));
      std::memcpy(answer_.data() + i * row_bytes, row.empty() ? fresh.data() : row.data(), row_bytes);
    }
    return answer_;
  }

  void save(range_id range, muster::detail::wire_writer& to) const override {
    const auto& kept = kept_[range];
    if (layout_.table_of(range).leases) return (kept.order ? *kept.order : epoch_order(bulk_)).save(to);
    to.add(std::uint64_t{kept.sums.size()});
    for (const auto& [worker, its] : kept.sums) {
      to.add(worker);
      to.add_all<float>(its.dense);
      its.rows.save(to);
    }
    kept.rows.save(to);
    write_dense(range, kept, to);
  }

  [[nodiscard]] bool load(range_id range, std::span<const std::byte> saved) override {
    muster::detail::wire_reader in(saved);
    if (layout_.table_of(range).leases) {
      epoch_order read(bulk_);
      if (!read.load(in)) return false;
      kept_[range].order = std::move(read);
      return true;
    }
    kept_range read;
    const auto& where = layout_.range(range);
    for (auto sums = in.number(); sums > 0 && in.good(); --sums) {
      sum& one = read.sums[in.number<member>()];
      one.dense = in.all<float>(where.size);
      if (!one.dense.empty() && one.dense.size() != where.size) return false;
      if (!one.rows.load(shape_of_sums(range), in)) return false;
    }
    if (!read.rows.load(shape_of(range), in)) return false;
    if (!in.rest().empty()) make(range, read);
    while (!in.rest().empty()) {
      const auto offset = in.number() - where.begin;
      const auto count = in.number();
      if (offset > where.size || count > where.size - offset) return false;
      read_dense(range, read, offset, count, in);
    }
    if (!in.good()) return false;
    before_change_(range);
    kept_[range] = std::move(read);
    return true;
  }

  void reset(range_id range) override {
    before_change_(range);
    kept_[range] = {};
  }

 private:
  // What bulk-synchronous pushes of one worker add up to.
  struct sum {
    std::vector<float> dense;
    row_store rows;  // sparse
  };
  struct kept_range {
    buffer<float> dense;               // the values, and behind them the arrays of the update function
    update_counts counts;              // of them
    row_store rows;                    // sparse: their values and what the update function remembers of them
    std::map<member, sum> sums;        // of the clock that is open: added up in the order of workers when it is folded
    std::optional<epoch_order> order;  // of a table of leases, which has no values
  };

  // A dense range is made when it is first needed: a server holds the memory of its own ones only.
  kept_range& of(range_id range) {
    auto& kept = kept_[range];
    if (layout_.range(range).size != 0 && kept.dense.size() == 0) make(range, kept);
    if (layout_.table_of(range).leases && !kept.order) kept.order.emplace(bulk_);
    return kept;
  }

  void make(range_id range, kept_range& kept) const {
    const auto& where = layout_.range(range);
    kept.dense = buffer<float>(where.size * (1 + updates_[where.table]->states()));
    kept.counts = update_counts(where.size);
    std::fill_n(kept.dense.begin(), where.size, layout_.table_of(range).initial);
  }

  void update_dense(range_id range, kept_range& kept, std::size_t offset, std::span<const float> pushed, float scale) {
    // A run of elements that have had as many updates.
    kept.counts.add(offset, offset + pushed.size(), [&](std::size_t begin, std::size_t end, std::uint64_t count) {
      update(range, kept.dense.data() + begin, layout_.range(range).size, pushed.subspan(begin - offset, end - begin),
             count, scale);
    });
  }

  // Of these values; the arrays of what is remembered of them lie `stride` one from the other, behind them.
  void update(range_id range, float* values, std::size_t stride, std::span<const float> pushed, std::uint64_t count,
              float scale) {
    const auto& by = *updates_[layout_.range(range).table];
    states_.clear();
    for (std::size_t k = 1; k <= by.states(); ++k) states_.emplace_back(values + k * stride, pushed.size());
    by.apply({values, pushed.size()}, pushed, states_, count, scale);
  }

  void update_row(range_id range, kept_range& kept, std::uint64_t key, std::span<const float> pushed, float scale) {
    const auto row = kept.rows.touch(shape_of(range), key);
    update(range, row.values.data(), pushed.size(), pushed, ++row.times, scale);
  }

  [[nodiscard]] const row_shape& shape_of(range_id range) const { return shapes_[layout_.range(range).table]; }
  [[nodiscard]] row_shape shape_of_sums(range_id range) const {
    const std::size_t width = layout_.table_of(range).width;
    return {.width = width, .stride = width};
  }

  // Sparse: keys, the number of updates of each, and the rows with what is remembered of them.
  void restore(range_id range, kept_range& kept, const message& push) {
    muster::detail::wire_reader from(push.payload);
    if (layout_.range(range).size != 0) return read_dense(range, kept, push.offset, push.count, from);
    const auto& shape = shape_of(range);
    const std::size_t row_bytes = shape.stride * sizeof(float);
    const auto keys = from.bytes(push.count * sizeof(std::uint64_t));
    const auto times = from.bytes(push.count * counter);
    const auto rows = from.bytes(push.count * row_bytes);
    kept.rows.next_push(shape);
    for (std::size_t i = 0; i < push.count; ++i) {
      const auto row = kept.rows.touch(shape, key_at(keys, i));
      std::memcpy(&row.times, times.data() + i * counter, counter);
      std::memcpy(row.values.data(), rows.data() + i * row_bytes, row_bytes);
    }
  }

  // Of a dense range one part for as many elements as have had as many updates: where they lie, how many they are, the
  // number of updates, and each array's part.
  void write_dense(range_id range, const kept_range& kept, muster::detail::wire_writer& to) const {
    const auto& where = layout_.range(range);
    std::size_t begin = 0;
    for (const auto& run : kept.counts.runs()) {
      to.add(std::uint64_t{where.begin + begin}, std::uint64_t{run.end - begin}, run.times);
      for (std::size_t array = 0; array < kept.dense.size(); array += where.size)
        to.add_bytes(std::as_bytes(kept.dense.span().subspan(array + begin, run.end - begin)));
      begin = run.end;
    }
  }

  // What is behind the first two of a part.
  void read_dense(range_id range, kept_range& kept, std::size_t offset, std::size_t count,
                  muster::detail::wire_reader& from) const {
    kept.counts.set(offset, offset + count, from.number());
    const std::size_t size = layout_.range(range).size;
    for (std::size_t array = 0; array < kept.dense.size(); array += size)
      from.read_all(kept.dense.span().subspan(array + offset, count));
  }

  void add_to_sum(range_id range, sum& to, const log_entry& entry, std::span<const float> pushed) const {
    const auto& where = layout_.range(range);
    if (where.size != 0) {
      to.dense.resize(where.size, 0.0f);
      return add_to(std::span(to.dense).subspan(entry.push.offset), pushed);
    }
    const auto shape = shape_of_sums(range);
    for (std::size_t i = 0; i < entry.push.count; ++i)
      add_to(to.rows.touch(shape, key_at(entry.push.payload, i)).values, pushed.subspan(i * shape.width, shape.width));
  }

  // In the order of workers, not of their pushes: the same bits whatever came first.
  void fold(range_id range, kept_range& kept, float scale) {
    if (kept.sums.empty()) return;
    const auto shape = shape_of_sums(range);
    sum total = std::move(kept.sums.begin()->second);
    for (auto next = std::next(kept.sums.begin()); next != kept.sums.end(); ++next) {
      add_to(total.dense, next->second.dense);
      next->second.rows.visit(shape, [&](std::uint64_t key, std::span<const float> values) {
        add_to(total.rows.touch(shape, key).values, values);
      });
    }
    kept.sums.clear();
    if (layout_.range(range).size != 0) return update_dense(range, kept, 0, total.dense, scale);
    kept.rows.next_push(shape_of(range));
    total.rows.visit(
        shape, [&](std::uint64_t key, std::span<const float> values) { update_row(range, kept, key, values, scale); });
  }

  // What was pushed, behind the keys of a sparse push; nothing when it is no encoding, which is the same at every
  // server.
  [[nodiscard]] std::span<const float> values_of(range_id range, const log_entry& entry) {
    const bool dense = layout_.range(range).size != 0;
    const auto& push = entry.push;
    const auto bytes = push.payload.subspan(dense ? 0 : push.count * sizeof(std::uint64_t));
    const auto here = reinterpret_cast<std::uintptr_t>(bytes.data());
    if (push.flags != encoded) {
      // Payloads are aligned in frames; what comes from elsewhere is made so.
      if (here % alignof(float) == 0)
        return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
      aligned_.resize(bytes.size() / sizeof(float));
      std::memcpy(aligned_.data(), bytes.data(), bytes.size());
      return aligned_;
    }
    aligned_.assign(dense ? push.count : push.count * layout_.table_of(range).width, 0.0f);
    try {
      codec_.decode_add(bytes, draw_of_push(range, entry.from, push.number), 1.0f, aligned_);
    } catch (const data_error& trouble) {
      log(log_level::warning, "a push of worker " + to_string(entry.from) + " is dropped: " + trouble.what());
      return {};
    }
    return aligned_;
  }

  static std::uint64_t key_at(std::span<const std::byte> keys, std::size_t i) {
    std::uint64_t key = 0;
    std::memcpy(&key, keys.data() + i * sizeof key, sizeof key);
    return key;
  }
  static void add_to(std::span<float> to, std::span<const float> more) {
    for (std::size_t i = 0; i < more.size(); ++i) to[i] += more[i];
  }

  static constexpr std::size_t counter = sizeof(std::uint64_t);  // how many updates there were, in a checkpoint

  const table_layout& layout_;
  bool bulk_;
  std::vector<std::shared_ptr<const update_function>> updates_;  // by table
  std::vector<row_shape> shapes_;                                // by table
  std::vector<kept_range> kept_;
  std::vector<std::byte> answer_;
  std::vector<float> aligned_;            // of what is pushed: kept, or each push would allocate
  std::vector<std::span<float>> states_;  // of what is updated: kept, too
  std::function<void(range_id)> before_change_ = [](range_id) {};
  any_codec codec_;
};

}}}  // namespace muster::v0::ps::detail
