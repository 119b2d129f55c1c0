#pragma once

#include <muster/ps/client.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>
#include <muster/ps/protocol/order.hpp>
#include <muster/ps/runtime/worker_process.hpp>

namespace muster { inline namespace v0 { namespace ps {
namespace detail {

inline void require(const table_layout& layout, std::uint32_t table, bool sparse) {
  if (table >= layout.tables().size()) {
    throw configuration_error("there is no table " + std::to_string(table) + " (the job has " +
                              std::to_string(layout.tables().size()) + "); they count from 0");
  }
  if (layout.tables()[table].leases) {
    throw configuration_error("table '" + layout.tables()[table].name +
                              "' has no values (it hands out leases); call next_lease()");
  }
  if ((layout.tables()[table].size == 0) == sparse) return;
  throw configuration_error("table '" + layout.tables()[table].name + "' is " + (sparse ? "dense" : "sparse") +
                            (sparse ? " (it has no keys); push and pull slices" : " (its rows have keys); name them"));
}

inline void require_leases(const table_layout& layout, std::uint32_t table) {
  if (table < layout.tables().size() && layout.tables()[table].leases) return;
  throw configuration_error("table " + std::to_string(table) +
                            " hands out no leases (it has values); use a table with {.leases = true}");
}

inline void require_slice(const table_layout& layout, std::uint32_t table, std::size_t offset, std::size_t count) {
  require(layout, table, false);
  const auto& spec = layout.tables()[table];
  if (offset <= spec.size && count <= spec.size - offset) return;
  throw configuration_error("table '" + spec.name + "' has no elements " + std::to_string(offset) + " to " +
                            std::to_string(offset + count) + " (it has " + std::to_string(spec.size) +
                            "); give a slice within the table");
}

inline void require_rows(const table_layout& layout, std::uint32_t table, std::size_t keys, std::size_t value_count) {
  require(layout, table, true);
  const auto& spec = layout.tables()[table];
  if (value_count == keys * spec.width) return;
  throw configuration_error(std::to_string(keys) + " rows of table '" + spec.name + "' are not " +
                            std::to_string(value_count) + " values (each has " + std::to_string(spec.width) +
                            "); give one row a key");
}

inline void require_scale(float scale) {
  if (std::isfinite(scale)) return;
  throw configuration_error("a push cannot be scaled by " + std::to_string(scale) +
                            " (the scale is not finite); give a finite one");
}

// Calls part(range, offset in the range, count, offset in the slice) for each range of a slice.
template <class Part>
void for_each_part(const table_layout& layout, std::uint32_t table, std::size_t offset, std::size_t count,
                   const Part& on_piece) {
  for (std::size_t done = 0; done < count;) {
    const range_id id = layout.range_of_element(table, offset + done);
    const auto& range = layout.range(id);
    const std::size_t range_offset = offset + done - range.begin;
    const std::size_t size = std::min(range.size - range_offset, count - done);
    on_piece(id, range_offset, size, done);
    done += size;
  }
}

// Calls part(range, positions in the slice) for each range of a slice of keys.
template <class Part>
void for_each_range(const table_layout& layout, std::uint32_t table, std::span<const std::uint64_t> keys,
                    const Part& on_piece) {
  std::vector<std::vector<std::uint32_t>> rows(layout.end(table) - layout.first(table));
  for (std::uint32_t i = 0; i < keys.size(); ++i)
    rows[layout.range_of_key(table, keys[i]) - layout.first(table)].push_back(i);
  for (range_id i = 0; i < rows.size(); ++i) {
    if (!rows[i].empty()) on_piece(layout.first(table) + i, std::move(rows[i]));
  }
}

// Returns these rows of columns with `row_count` rows each, one column after the other.
inline std::vector<std::byte> chosen_rows(std::span<const std::uint32_t> rows, std::size_t row_count,
                                          std::initializer_list<std::span<const std::byte>> columns) {
  std::size_t bytes = 0;
  for (const auto& column : columns) bytes += rows.size() * (column.size() / row_count);
  std::vector<std::byte> chosen(bytes);
  std::byte* out = chosen.data();
  for (const auto& column : columns) {
    const std::size_t width = column.size() / row_count;
    for (const auto row : rows) {
      std::memcpy(out, column.data() + row * width, width);
      out += width;
    }
  }
  return chosen;
}

}  // namespace detail

// ---- pending ----

MUSTER_INLINE pending::pending() = default;
MUSTER_INLINE pending::pending(pending&& other) noexcept { swap(other); }
MUSTER_INLINE pending& pending::operator=(pending&& other) noexcept {
  pending moved(std::move(other));
  swap(moved);
  return *this;
}
MUSTER_INLINE pending::~pending() {
  if (process_ != nullptr && !process_->is_done(*this)) process_->release(*this);
}

MUSTER_INLINE void pending::swap(pending& other) noexcept {
  std::swap(process_, other.process_);
  std::swap(first_, other.first_);
  more_.swap(other.more_);
  pull_.swap(other.pull_);
  std::swap(deadline_, other.deadline_);
}

MUSTER_INLINE void pending::wait() {
  if (process_ == nullptr || process_->is_done(*this)) return;
  process_->wait_until([&] { return process_->is_done(*this); }, pull_ ? "pull" : "push");
}

MUSTER_INLINE bool pending::wait_for(seconds limit) {
  if (process_ == nullptr || process_->is_done(*this)) return true;
  if (deadline_ == clock::time_point{}) deadline_ = deadline_after(process_->timeout());
  return process_->wait_until([&] { return process_->is_done(*this); }, pull_ ? "pull" : "push", deadline_,
                              deadline_after(limit));
}

MUSTER_INLINE std::uint64_t pending::version() const noexcept { return pull_ ? pull_->version : 0; }

// ---- dense ----

MUSTER_INLINE pending client::push_dense(std::uint32_t table, std::span<const float> values,
                                         const push_options& options, std::uint8_t flags) {
  detail::require_slice(process_->layout(), table, options.offset, values.size());
  detail::require_scale(options.scale);
  pending operation;
  detail::for_each_part(process_->layout(), table, options.offset, values.size(),
                        [&](range_id range, std::size_t range_offset, std::size_t size, std::size_t at) {
                          message request{.flags = flags,
                                          .offset = static_cast<std::uint32_t>(range_offset),
                                          .count = static_cast<std::uint32_t>(size),
                                          .scale = options.scale,
                                          .place = options.place.number,
                                          .settled = options.place.settled};
                          const auto part = values.subspan(at, size);
                          if (flags == 0 && process_->encodes(size)) {
                            request.flags = encoded;
                            return process_->push_part(operation, range, request,
                                                       process_->encode(range, {}, part, range_offset));
                          }
                          request.payload = std::as_bytes(part);
                          process_->push_part(operation, range, request);
                        });
  process_->on_started(false);
  return operation;
}

MUSTER_INLINE pending client::push_async(std::uint32_t table, std::span<const float> values,
                                         const push_options& options) {
  return push_dense(table, values, options, 0);
}

MUSTER_INLINE void client::assign(std::uint32_t table, std::span<const float> values, std::size_t offset) {
  push_dense(table, values, {.offset = offset}, assigns).wait();
}

MUSTER_INLINE pending client::pull_async(std::uint32_t table, std::span<float> values, std::size_t offset) {
  detail::require_slice(process_->layout(), table, offset, values.size());
  pending operation;
  detail::for_each_part(process_->layout(), table, offset, values.size(),
                        [&](range_id range, std::size_t range_offset, std::size_t size, std::size_t at) {
                          const auto part = values.subspan(at, size);
                          process_->pull_part(operation, range,
                                              {.offset = static_cast<std::uint32_t>(range_offset),
                                               .count = static_cast<std::uint32_t>(size)},
                                              {.out = part.data(), .bytes = part.size_bytes()});
                        });
  if (operation.process_ != nullptr) process_->on_started(true);
  return operation;
}

// ---- sparse ----

MUSTER_INLINE pending client::push_async(std::uint32_t table, std::span<const std::uint64_t> keys,
                                         std::span<const float> rows, const push_options& options) {
  detail::require_rows(process_->layout(), table, keys.size(), rows.size());
  detail::require_scale(options.scale);
  const std::size_t width = process_->layout().tables()[table].width;
  pending operation;
  detail::for_each_range(process_->layout(), table, keys, [&](range_id range, std::span<const std::uint32_t> mine) {
    message request{.count = static_cast<std::uint32_t>(mine.size()),
                    .scale = options.scale,
                    .place = options.place.number,
                    .settled = options.place.settled};
    auto payload = detail::chosen_rows(mine, keys.size(), {std::as_bytes(keys), std::as_bytes(rows)});
    if (process_->encodes(mine.size() * width)) {
      request.flags = encoded;
      const auto own_keys = std::span<const std::byte>(payload).first(mine.size() * sizeof(std::uint64_t));
      const auto* const values = reinterpret_cast<const float*>(payload.data() + own_keys.size());
      payload = process_->encode(range, own_keys, {values, mine.size() * width});
    }
    process_->push_part(operation, range, request, std::move(payload));
  });
  process_->on_started(false);
  return operation;
}

MUSTER_INLINE pending client::pull_async(std::uint32_t table, std::span<const std::uint64_t> keys,
                                         std::span<float> rows) {
  detail::require_rows(process_->layout(), table, keys.size(), rows.size());
  const std::size_t width = process_->layout().tables()[table].width;
  pending operation;
  detail::for_each_range(process_->layout(), table, keys, [&](range_id range, std::vector<std::uint32_t> mine) {
    const auto query = detail::chosen_rows(mine, keys.size(), {std::as_bytes(keys)});
    const auto count = mine.size();
    process_->pull_part(
        operation, range, {.count = static_cast<std::uint32_t>(count), .payload = query},
        {.out = rows.data(), .rows = std::move(mine), .width = width, .bytes = count * width * sizeof(float)});
  });
  if (operation.process_ != nullptr) process_->on_started(true);
  return operation;
}

// ---- checkpoints ----

MUSTER_INLINE std::vector<std::byte> client::save(range_id range) {
  std::vector<std::byte> saved;
  pending operation;
  process_->pull_part(operation, range, {.flags = saves}, {.saved = &saved});
  process_->on_started(true);
  operation.wait();
  return saved;
}

MUSTER_INLINE void client::restore(std::uint32_t table, std::span<const std::byte> saved) {
  const auto& layout = process_->layout();
  const auto& spec = layout.tables().at(table);
  const std::size_t arrays = 1 + make_update(spec.update)->states();
  muster::detail::wire_reader reader(saved);
  const auto refuse = [&] {
    throw data_error({"table " + spec.name},
                     "a part of a checkpoint does not belong to this table (its length is wrong); restore it into the "
                     "table that was saved");
  };
  std::vector<pending> restored;
  if (spec.size != 0) {
    do {
      std::uint64_t begin = 0, count = 0, updates = 0;
      reader.read(begin, count, updates);
      if (begin > spec.size || count > spec.size - begin) refuse();
      const auto values = reader.bytes(count * arrays * sizeof(float));
      if (!reader.good()) refuse();
      detail::for_each_part(
          layout, table, begin, count, [&](range_id range, std::size_t range_offset, std::size_t size, std::size_t at) {
            const auto updates_bytes = std::as_bytes(std::span(&updates, 1));
            std::vector<std::byte> part(updates_bytes.begin(), updates_bytes.end());
            for (std::size_t k = 0; k < arrays; ++k) {
              const auto array_part = values.subspan((k * count + at) * sizeof(float), size * sizeof(float));
              part.insert(part.end(), array_part.begin(), array_part.end());
            }
            restored.push_back(push_restored(range, range_offset, size, std::move(part)));
          });
    } while (!reader.rest().empty());
  } else {
    (void)reader.number<std::uint64_t>();
    const auto count = reader.number<std::uint64_t>();
    const std::size_t row = spec.width * arrays * sizeof(float);
    if (!reader.good() || count > reader.rest().size() ||
        reader.rest().size() != count * (2 * sizeof(std::uint64_t) + row))
      refuse();
    std::vector<std::uint64_t> keys(count);
    if (count > 0) std::memcpy(keys.data(), reader.rest().data(), count * sizeof(std::uint64_t));
    const auto times = reader.rest().subspan(count * sizeof(std::uint64_t), count * sizeof(std::uint64_t));
    const auto rows = reader.rest().subspan(2 * count * sizeof(std::uint64_t));
    detail::for_each_range(layout, table, keys, [&](range_id range, std::span<const std::uint32_t> mine) {
      restored.push_back(push_restored(
          range, 0, mine.size(), detail::chosen_rows(mine, count, {std::as_bytes(std::span(keys)), times, rows})));
    });
  }
  for (auto& operation : restored) operation.wait();
}

MUSTER_INLINE pending client::push_restored(range_id range, std::size_t offset, std::size_t count,
                                            std::vector<std::byte> payload) {
  pending operation;
  const message request{
      .flags = restores, .offset = static_cast<std::uint32_t>(offset), .count = static_cast<std::uint32_t>(count)};
  process_->push_part(operation, range, request, std::move(payload));
  process_->on_started(false);
  return operation;
}

MUSTER_INLINE void client::restore_places(range_id range, std::span<const std::uint64_t> places) {
  pending operation;  // pushes without elements
  const auto flags = process_->layout().range(range).size != 0 ? assigns : restores;
  for (const auto place : places) process_->push_part(operation, range, {.flags = flags, .place = place});
  process_->on_started(false);
  operation.wait();
}

// ---- leases ----

// Waits until the request is committed, except for a claim: the following pull of the lease waits for the claim.
MUSTER_INLINE void client::send_order_request(std::uint32_t table, std::uint32_t request, std::uint64_t place,
                                              std::vector<std::byte> plan) {
  const auto& layout = process_->layout();
  detail::require_leases(layout, table);
  pending operation;
  const message push{.flags = leases, .offset = request, .place = place, .settled = process_->core().reported_clock()};
  process_->push_part(operation, layout.first(table), push, std::move(plan));
  process_->on_started(false);
  if (request != static_cast<std::uint32_t>(order_request::claim)) operation.wait();
}

MUSTER_INLINE void client::begin_order(std::uint32_t table, const order_plan& plan, std::span<const lease> left) {
  const auto bytes = std::as_bytes(std::span(&plan, 1)), behind = std::as_bytes(left);
  std::vector<std::byte> all(bytes.begin(), bytes.end());
  all.insert(all.end(), behind.begin(), behind.end());
  send_order_request(table, static_cast<std::uint32_t>(order_request::begin), 0, std::move(all));
}

MUSTER_INLINE void client::confirm_save(std::uint32_t table, std::uint64_t steps) {
  send_order_request(table, static_cast<std::uint32_t>(order_request::pass), steps);
}

MUSTER_INLINE void client::confirm_end(std::uint32_t table) {
  send_order_request(table, static_cast<std::uint32_t>(order_request::end), 0);
}

MUSTER_INLINE lease client::next_lease(std::uint32_t table) {
  // A worker starts at the clock of the other workers: at an earlier clock they would wait for it.
  if (process_->core().clock_now() == 0) process_->move_clock(pull_lease(table).clock);
  send_order_request(table, static_cast<std::uint32_t>(order_request::claim), clock_now());
  const auto reply = pull_lease(table);
  process_->move_clock(reply.clock);
  return reply;
}

MUSTER_INLINE lease client::pull_lease(std::uint32_t table) {
  detail::require_leases(process_->layout(), table);
  const auto& self = process_->core().self();
  message query{.flags = leases, .offset = self.place, .count = self.incarnation};
  query.place = clock_now();
  std::vector<std::byte> bytes;
  pending operation;
  process_->pull_part(operation, process_->layout().first(table), query, {.saved = &bytes});
  process_->on_started(true);
  operation.wait();
  lease reply;
  if (bytes.size() != sizeof reply) {
    throw configuration_error("a lease of " + std::to_string(bytes.size()) +
                              " bytes cannot be read (this build expects " + std::to_string(sizeof reply) +
                              " bytes); start all ranks with the same build");
  }
  std::memcpy(static_cast<void*>(&reply), bytes.data(), sizeof reply);
  return reply;
}

// ---- other calls ----

MUSTER_INLINE void client::flush() {
  process_->wait_until([&] { return process_->core().unacknowledged() == 0; }, "flush");
}

MUSTER_INLINE void client::request_servers(std::size_t servers) { process_->request_servers(servers); }
MUSTER_INLINE void client::next_clock() { process_->next_clock(); }
MUSTER_INLINE std::uint64_t client::clock_now() const noexcept { return process_->core().clock_now(); }
MUSTER_INLINE void client::progress() { process_->progress(); }

MUSTER_INLINE std::uint64_t client::bytes_pushed() const noexcept { return process_->bytes_pushed(); }
MUSTER_INLINE std::vector<server_load> client::server_loads() const {
  std::vector<server_load> all;
  for (const auto& [server, thousandths] : process_->core().loads())
    all.push_back({.busy = thousandths.first / 1000.0, .links = thousandths.second / 1000.0});
  return all;
}
MUSTER_INLINE std::size_t client::servers() const noexcept { return process_->core().map().servers.size(); }
MUSTER_INLINE std::size_t client::workers() const noexcept { return process_->core().map().workers.size(); }
MUSTER_INLINE bool client::is_first_worker() const noexcept {
  const auto& all = process_->core().map().workers;
  return !all.empty() && all.front() == process_->core().self();
}

}}}  // namespace muster::v0::ps
