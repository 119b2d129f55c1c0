#pragma once

#include <muster/train/timeline.hpp>

#include <algorithm>
#include <cinttypes>
#include <map>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/gather.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/text.hpp>
#include <muster/train/train_settings.hpp>

namespace muster { inline namespace v0 {
namespace detail {

struct row {
  int number;
  const char* name;
  const char* category;
};
// First row for activities that can run several times at once. Concurrent events use consecutive rows from this number.
inline constexpr int first_concurrent_row = 100;

// Returns the row of an activity. Rows are drawn in the order of their numbers.
inline row row_of(activity kind) {
  switch (kind) {
    case activity::step:
      return {0, "steps", "step"};
    case activity::rebuild:
      return {0, "steps", "generation"};  // between two steps
    case activity::phase:
    case activity::aggregate:
    case activity::update:
      return {1, "phases", "phase"};
    case activity::communication:
      return {2, "collectives", "communication"};
    case activity::transfer:
      return {first_concurrent_row, "collectives under way", "transfer"};
    case activity::bucket:
      return {2 * first_concurrent_row, "buckets", "bucket"};
    case activity::data_wait:
    case activity::cache_hit:
    case activity::cache_miss:
    case activity::push_age:
      break;
  }
  return {3, "waiting for data", "data"};
}

}  // namespace detail

MUSTER_INLINE timeline::timeline(group& world, std::string path, std::size_t most)
    : path_(std::move(path)), most_(most) {
  if (path_.empty() || path_ == "none") return;
  if (world.rank() == 0) require_writable(path_);
  events_.reserve(std::min<std::size_t>(most_, 4096));
  barrier(world);
  origin_ = clock::now();
  registration_.emplace(*this);
}

MUSTER_INLINE timeline::timeline(context& ctx) : timeline(ctx.world(), ctx.configuration().value(setting::trace)) {}

MUSTER_INLINE void timeline::record(const event& event) noexcept {
  if (event_sink* const former = registration_->former()) former->record(event);
  if (event.kind == activity::cache_hit || event.kind == activity::cache_miss || event.kind == activity::push_age)
    return;  // these events have no duration
  if (events_.size() == most_) {
    ++dropped_;
    return;
  }
  try {
    events_.push_back(event);
  } catch (...) {  // out of memory
    ++dropped_;
  }
}

MUSTER_INLINE std::string timeline::events_of(int rank) const {
  std::string text;
  text += detail::printed("{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}},\n",
                          rank, rank);
  const auto microseconds = [this](clock::time_point time) { return seconds(time - origin_).count() * 1e6; };
  // Concurrent events use separate rows: each event uses the first row that is free at its begin.
  std::vector<const event*> in_order;
  for (const auto& entry : events_) in_order.push_back(&entry);
  std::ranges::stable_sort(in_order, {}, [](const event* entry) { return entry->begin; });
  std::map<int, clock::time_point> busy_until;
  for (const event* const entry : in_order) {
    auto [number, name, category] = detail::row_of(entry->kind);
    while (number >= detail::first_concurrent_row && busy_until.contains(number) && busy_until[number] > entry->begin)
      ++number;
    if (!busy_until.contains(number)) {
      text +=
          detail::printed("{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n",
                          rank, number, name);
    }
    busy_until[number] = entry->end;
    const bool counts = entry->kind == activity::step || entry->kind == activity::rebuild;
    const char* const measure = counts ? "number" : "bytes";
    text += detail::printed(
        "{\"name\":\"%.*s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d,"
        "\"args\":{\"%s\":%" PRIu64 "}},\n",
        static_cast<int>(std::min<std::size_t>(entry->name.size(), 64)), entry->name.data(), category,
        microseconds(entry->begin), microseconds(entry->end) - microseconds(entry->begin), rank, number, measure,
        entry->bytes);
  }
  return text;
}

MUSTER_INLINE void timeline::write(group& world) {
  if (!registration_) return;
  if (dropped_ > 0) {
    log(log_level::warning, "the timeline lacks the last " + std::to_string(dropped_) + " events of rank " +
                                std::to_string(world.rank()) + " (it keeps " + std::to_string(most_) +
                                "); trace fewer steps");
  }
  std::string mine = events_of(world.rank());
  const std::uint64_t size = mine.size();
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(world.size()));
  allgather(world, std::span(&size, 1), sizes);
  const auto longest = static_cast<std::size_t>(*std::ranges::max_element(sizes));
  mine.resize(longest);
  std::string all(world.rank() == 0 ? longest * sizes.size() : 0, '\0');
  gather(world, mine, all, 0);
  if (world.rank() != 0) return;
  atomic_file file(path_);
  file.write("{\"traceEvents\":[\n");
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    auto text = std::string_view(all).substr(rank * longest, static_cast<std::size_t>(sizes[rank]));
    if (rank + 1 == sizes.size()) text.remove_suffix(2);  // no comma after the last event
    file.write(text);
  }
  file.write("\n],\"displayTimeUnit\":\"ms\"}\n");
  file.commit();
}

}}  // namespace muster::v0
