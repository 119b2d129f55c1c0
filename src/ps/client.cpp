#include <muster/ps/client.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <muster/core/error.hpp>

#include "../core/wire.hpp"
#include "protocol/order.hpp"
#include "runtime/worker_process.hpp"

namespace muster { inline namespace v0 { namespace ps {
namespace {

void require(const table_layout& layout, std::uint32_t table, bool sparse) {
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

void require_leases(const table_layout& layout, std::uint32_t table) {
  if (table < layout.tables().size() && layout.tables()[table].leases) return;
  throw configuration_error("table " + std::to_string(table) +
                            " hands out no leases (it has values); name one that was made with {.leases = true}");
}

void require_slice(const table_layout& layout, std::uint32_t table, std::size_t offset, std::size_t count) {
  require(layout, table, false);
  const auto& spec = layout.tables()[table];
  if (offset <= spec.size && count <= spec.size - offset) return;
  throw configuration_error("table '" + spec.name + "' has no elements " + std::to_string(offset) + " to " +
                            std::to_string(offset + count) + " (it has " + std::to_string(spec.size) +
                            "); give a slice of it");
}

void require_rows(const table_layout& layout, std::uint32_t table, std::size_t keys, std::size_t values) {
  require(layout, table, true);
  const auto& spec = layout.tables()[table];
  if (values == keys * spec.width) return;
  throw configuration_error(std::to_string(keys) + " rows of table '" + spec.name + "' are not " +
                            std::to_string(values) + " values (each has " + std::to_string(spec.width) +
                            "); give one row a key");
}

void require_scale(float scale) {
  if (std::isfinite(scale)) return;
  throw configuration_error("a push cannot be scaled by " + std::to_string(scale) +
                            " (the scale is not finite); give a finite one");
}

// The parts of a slice, range by range: part(range, offset in it, count, offset in the slice).
template <class Part>
void for_each_part(const table_layout& layout, std::uint32_t table, std::size_t offset, std::size_t count,
                   const Part& part) {
  for (std::size_t done = 0; done < count;) {
    const range_id id = layout.range_of_element(table, offset + done);
    const auto& range = layout.range(id);
    const std::size_t from = offset + done - range.begin;
    const std::size_t size = std::min(range.size - from, count - done);
    part(id, from, size, done);
    done += size;
  }
}

// The rows of a slice of keys, range by range: part(range, their positions in the slice).
template <class Part>
void for_each_range(const table_layout& layout, std::uint32_t table, std::span<const std::uint64_t> keys,
                    const Part& part) {
  std::vector<std::vector<std::uint32_t>> rows(layout.last(table) - layout.first(table));
  for (std::uint32_t i = 0; i < keys.size(); ++i)
    rows[layout.range_of_key(table, keys[i]) - layout.first(table)].push_back(i);
  for (range_id i = 0; i < rows.size(); ++i) {
    if (!rows[i].empty()) part(layout.first(table) + i, std::move(rows[i]));
  }
}

// These rows of columns that have `of` of them, one column behind the other.
std::vector<std::byte> chosen_rows(std::span<const std::uint32_t> rows, std::size_t of,
                                   std::initializer_list<std::span<const std::byte>> columns) {
  std::size_t bytes = 0;
  for (const auto& column : columns) bytes += rows.size() * (column.size() / of);
  std::vector<std::byte> made(bytes);
  std::byte* to = made.data();
  for (const auto& column : columns) {
    const std::size_t width = column.size() / of;
    for (const auto row : rows) {
      std::memcpy(to, column.data() + row * width, width);
      to += width;
    }
  }
  return made;
}

}  // namespace

// ---- pending ----

pending::pending() = default;
pending::pending(pending&& other) noexcept { swap(other); }
pending& pending::operator=(pending&& other) noexcept {
  pending taken(std::move(other));
  swap(taken);
  return *this;
}
pending::~pending() {
  if (of_ != nullptr && !of_->is_done(*this)) of_->release(*this);
}

void pending::swap(pending& other) noexcept {
  std::swap(of_, other.of_);
  std::swap(first_, other.first_);
  more_.swap(other.more_);
  pull_.swap(other.pull_);
}

void pending::wait() {
  if (of_ == nullptr || of_->is_done(*this)) return;
  of_->wait_until([&] { return of_->is_done(*this); }, pull_ ? "pull" : "push");
}

std::uint64_t pending::version() const noexcept { return pull_ ? pull_->version : 0; }

// ---- dense ----

pending client::push_dense(std::uint32_t table, std::span<const float> values, const push_options& how,
                           std::uint8_t flags) {
  require_slice(of_->layout(), table, how.offset, values.size());
  require_scale(how.scale);
  pending made;
  for_each_part(of_->layout(), table, how.offset, values.size(),
                [&](range_id range, std::size_t from, std::size_t size, std::size_t at) {
                  message what{.flags = flags,
                               .offset = static_cast<std::uint32_t>(from),
                               .count = static_cast<std::uint32_t>(size),
                               .scale = how.scale,
                               .place = how.place.number,
                               .settled = how.place.settled};
                  const auto part = values.subspan(at, size);
                  if (flags == 0 && of_->encodes(size)) {
                    what.flags = encoded;
                    return of_->push_part(made, range, what, of_->encode(range, {}, part, from));
                  }
                  what.payload = std::as_bytes(part);
                  of_->push_part(made, range, what);
                });
  of_->begun(false);
  return made;
}

pending client::push_async(std::uint32_t table, std::span<const float> values, const push_options& how) {
  return push_dense(table, values, how, 0);
}

void client::assign(std::uint32_t table, std::span<const float> values, std::size_t offset) {
  push_dense(table, values, {.offset = offset}, assigns).wait();
}

pending client::pull_async(std::uint32_t table, std::span<float> values, std::size_t offset) {
  require_slice(of_->layout(), table, offset, values.size());
  pending made;
  for_each_part(of_->layout(), table, offset, values.size(),
                [&](range_id range, std::size_t from, std::size_t size, std::size_t at) {
                  const auto part = values.subspan(at, size);
                  of_->pull_part(
                      made, range,
                      {.offset = static_cast<std::uint32_t>(from), .count = static_cast<std::uint32_t>(size)},
                      {.out = part.data(), .bytes = part.size_bytes()});
                });
  if (made.of_ != nullptr) of_->begun(true);
  return made;
}

// ---- sparse ----

pending client::push_async(std::uint32_t table, std::span<const std::uint64_t> keys, std::span<const float> rows,
                           const push_options& how) {
  require_rows(of_->layout(), table, keys.size(), rows.size());
  require_scale(how.scale);
  const std::size_t width = of_->layout().tables()[table].width;
  pending made;
  for_each_range(of_->layout(), table, keys, [&](range_id range, std::span<const std::uint32_t> mine) {
    message what{.count = static_cast<std::uint32_t>(mine.size()),
                 .scale = how.scale,
                 .place = how.place.number,
                 .settled = how.place.settled};
    auto payload = chosen_rows(mine, keys.size(), {std::as_bytes(keys), std::as_bytes(rows)});
    if (of_->encodes(mine.size() * width)) {
      what.flags = encoded;
      const auto own_keys = std::span<const std::byte>(payload).first(mine.size() * sizeof(std::uint64_t));
      const auto* const values = reinterpret_cast<const float*>(payload.data() + own_keys.size());
      payload = of_->encode(range, own_keys, {values, mine.size() * width});
    }
    of_->push_part(made, range, what, std::move(payload));
  });
  of_->begun(false);
  return made;
}

pending client::pull_async(std::uint32_t table, std::span<const std::uint64_t> keys, std::span<float> rows) {
  require_rows(of_->layout(), table, keys.size(), rows.size());
  const std::size_t width = of_->layout().tables()[table].width;
  pending made;
  for_each_range(of_->layout(), table, keys, [&](range_id range, std::vector<std::uint32_t> mine) {
    const auto asked = chosen_rows(mine, keys.size(), {std::as_bytes(keys)});
    const auto count = mine.size();
    of_->pull_part(
        made, range, {.count = static_cast<std::uint32_t>(count), .payload = asked},
        {.out = rows.data(), .rows = std::move(mine), .width = width, .bytes = count * width * sizeof(float)});
  });
  if (made.of_ != nullptr) of_->begun(true);
  return made;
}

// ---- checkpoints ----

std::vector<std::byte> client::save(range_id range) {
  std::vector<std::byte> saved;
  pending made;
  of_->pull_part(made, range, {.flags = saves}, {.saved = &saved});
  of_->begun(true);
  made.wait();
  return saved;
}

void client::restore(std::uint32_t table, std::span<const std::byte> saved) {
  const auto& layout = of_->layout();
  const auto& spec = layout.tables().at(table);
  const std::size_t arrays = 1 + make_update(spec.update)->states();
  muster::detail::wire_reader in(saved);
  const auto refuse = [&] {
    throw data_error({"table " + spec.name},
                     "a part of a checkpoint does not belong to this table (its length is wrong); restore it into the "
                     "table that was saved");
  };
  std::vector<pending> made;
  if (spec.size != 0) {
    do {
      std::uint64_t begin = 0, count = 0, updates = 0;
      in.read(begin, count, updates);
      if (begin > spec.size || count > spec.size - begin) refuse();
      const auto values = in.bytes(count * arrays * sizeof(float));
      if (!in.good()) refuse();
      for_each_part(layout, table, begin, count,
                    [&](range_id range, std::size_t from, std::size_t size, std::size_t at) {
                      const auto updates_bytes = std::as_bytes(std::span(&updates, 1));
                      std::vector<std::byte> part(updates_bytes.begin(), updates_bytes.end());
                      for (std::size_t k = 0; k < arrays; ++k) {
                        const auto its = values.subspan((k * count + at) * sizeof(float), size * sizeof(float));
                        part.insert(part.end(), its.begin(), its.end());
                      }
                      made.push_back(push_whole(range, from, size, std::move(part)));
                    });
    } while (!in.rest().empty());
  } else {
    (void)in.number<std::uint64_t>();
    const auto count = in.number<std::uint64_t>();
    const std::size_t row = spec.width * arrays * sizeof(float);
    if (!in.good() || count > in.rest().size() || in.rest().size() != count * (2 * sizeof(std::uint64_t) + row))
      refuse();
    std::vector<std::uint64_t> keys(count);
    if (count > 0) std::memcpy(keys.data(), in.rest().data(), count * sizeof(std::uint64_t));
    const auto times = in.rest().subspan(count * sizeof(std::uint64_t), count * sizeof(std::uint64_t));
    const auto rows = in.rest().subspan(2 * count * sizeof(std::uint64_t));
    for_each_range(layout, table, keys, [&](range_id range, std::span<const std::uint32_t> mine) {
      made.push_back(
          push_whole(range, 0, mine.size(), chosen_rows(mine, count, {std::as_bytes(std::span(keys)), times, rows})));
    });
  }
  for (auto& one : made) one.wait();
}

pending client::push_whole(range_id range, std::size_t offset, std::size_t count, std::vector<std::byte> part) {
  pending made;
  const message what{
      .flags = restores, .offset = static_cast<std::uint32_t>(offset), .count = static_cast<std::uint32_t>(count)};
  of_->push_part(made, range, what, std::move(part));
  of_->begun(false);
  return made;
}

void client::restore_places(range_id range, std::span<const std::uint64_t> places) {
  pending made;  // of pushes without elements
  const auto flags = of_->layout().range(range).size != 0 ? assigns : restores;
  for (const auto place : places) of_->push_part(made, range, {.flags = flags, .place = place});
  of_->begun(false);
  made.wait();
}

// ---- leases ----

void client::tell_order(std::uint32_t table, std::uint32_t word, std::uint64_t place, std::vector<std::byte> plan) {
  const auto& layout = of_->layout();
  require_leases(layout, table);
  pending made;
  const message what{.flags = leases, .offset = word, .place = place, .settled = of_->core().clock_said()};
  of_->push_part(made, layout.first(table), what, std::move(plan));
  of_->begun(false);
  if (word != static_cast<std::uint32_t>(order_word::claim)) made.wait();
}

void client::begin_order(std::uint32_t table, const order_plan& plan, std::span<const lease> left) {
  const auto bytes = std::as_bytes(std::span(&plan, 1)), behind = std::as_bytes(left);
  std::vector<std::byte> all(bytes.begin(), bytes.end());
  all.insert(all.end(), behind.begin(), behind.end());
  tell_order(table, static_cast<std::uint32_t>(order_word::begin), 0, std::move(all));
}

void client::pass_save(std::uint32_t table, std::uint64_t steps) {
  tell_order(table, static_cast<std::uint32_t>(order_word::pass), steps);
}

void client::pass_end(std::uint32_t table) { tell_order(table, static_cast<std::uint32_t>(order_word::end), 0); }

lease client::next_lease(std::uint32_t table) {
  // A worker begins where the others are: at an earlier clock they would wait for it.
  if (of_->core().clock_now() == 0) of_->move_clock(ask_order(table).clock);
  tell_order(table, static_cast<std::uint32_t>(order_word::claim), clock_now());
  const auto told = ask_order(table);
  of_->move_clock(told.clock);
  return told;
}

lease client::ask_order(std::uint32_t table) {
  require_leases(of_->layout(), table);
  const auto& self = of_->core().self();
  message what{.flags = leases, .offset = self.at, .count = self.incarnation};
  what.place = clock_now();
  std::vector<std::byte> bytes;
  pending made;
  of_->pull_part(made, of_->layout().first(table), what, {.saved = &bytes});
  of_->begun(true);
  made.wait();
  lease told;
  if (bytes.size() != sizeof told) {
    throw configuration_error("a lease of " + std::to_string(bytes.size()) + " bytes cannot be read (it has " +
                              std::to_string(sizeof told) + " here); start all ranks with the same build");
  }
  std::memcpy(static_cast<void*>(&told), bytes.data(), sizeof told);
  return told;
}

// ---- the rest ----

void client::flush() {
  of_->wait_until([&] { return of_->core().unacknowledged() == 0; }, "flush");
}

void client::serve_by(std::size_t servers) { of_->serve_by(servers); }
void client::next_clock() { of_->next_clock(); }
std::uint64_t client::clock_now() const noexcept { return of_->core().clock_now(); }
void client::progress() { of_->progress(); }

std::uint64_t client::bytes_pushed() const noexcept { return of_->bytes_pushed(); }
std::size_t client::servers() const noexcept { return of_->core().map().servers.size(); }
std::size_t client::workers() const noexcept { return of_->core().map().workers.size(); }
bool client::is_first_worker() const noexcept {
  const auto& all = of_->core().map().workers;
  return !all.empty() && all.front() == of_->core().self();
}

}}}  // namespace muster::v0::ps
