#include <muster/data/any_loader.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include <muster/core/events.hpp>
#include <muster/core/log.hpp>

#include "batch_ring.hpp"

namespace muster::inline v0 {
namespace {

// Leaves the bad records of a slot out of it: the others move together, in their order.
void leave_out_bad(detail::batch_slot& slot) {
  const auto& bad = slot.bad;
  const auto is_bad = [&](sample_id id) {
    return std::any_of(bad.begin(), bad.end(), [&](const bad_record& record) { return record.id == id; });
  };
  const bool fixed = slot.offsets.empty();
  const std::size_t count = slot.ids.size();
  const std::size_t record = fixed ? slot.used / count : 0;
  std::size_t kept = 0;
  std::size_t used = 0;
  for (std::size_t k = 0; k < count; ++k) {
    if (is_bad(slot.ids[k])) continue;
    const std::size_t begin = fixed ? k * record : slot.offsets[k];
    const std::size_t size = fixed ? record : slot.offsets[k + 1] - begin;
    std::memmove(slot.bytes.data() + used, slot.bytes.data() + begin, size);
    std::copy_n(slot.labels.data() + k * slot.label_width, slot.label_width,
                slot.labels.data() + kept * slot.label_width);
    slot.ids[kept] = slot.ids[k];
    if (!fixed) slot.offsets[kept] = used;
    used += size;
    ++kept;
  }
  slot.left_out = count - kept;
  slot.ids.resize(kept);
  slot.used = used;
  if (!fixed) {
    slot.offsets.resize(kept + 1);
    slot.offsets[kept] = used;
  }
}

}  // namespace

struct any_loader::engine {
  engine(std::unique_ptr<detail::record_producer> made, const muster::cursor& start, settings asked)
      : producer(std::move(made)),
        plan(start),
        chosen(std::move(asked)),
        log(chosen.bad),
        ring(*producer, chosen.bad.policy != bad_record_policy::fail,
             chosen.prefetch.batches > 0 ? chosen.prefetch.threads : 0) {}

  [[nodiscard]] static bool is_at(const detail::batch_slot& slot, const muster::cursor& where, slice part) noexcept {
    return slot.part == part && slot.where == where;
  }

  /// Lets threads begin with the part of the batch at `where`.
  void begin(const muster::cursor& where, slice part) {
    auto slot = ring.take();
    slot->where = where;
    slot->part = part;
    slot->global_size = epoch_plan::batch_size(where, part.world);
    const index_range mine = part_of(slot->global_size, part);
    slot->ids.resize(mine.size());
    plan.ids(where, where.position + mine.first, slot->ids);
    ring.push(std::move(slot));
  }

  /// Lets threads begin with what follows, as far as there is memory.
  void begin_ahead(slice part) {
    const std::size_t one = std::max<std::size_t>(ring[0].bytes.size(), 1);
    const std::size_t most = std::min(chosen.prefetch.batches, chosen.prefetch.bytes / one);
    if (most == 0 && chosen.prefetch.batches != 0 && !told) {
      told = true;
      muster::log(log_level::warning, "nothing is prefetched (a batch takes " + std::to_string(one) +
                                          " bytes and prefetch_options::bytes is " +
                                          std::to_string(chosen.prefetch.bytes) +
                                          "); raise it or make batches smaller");
    }
    while (ring.size() <= most) {
      const muster::cursor next = epoch_plan::after(ring[ring.size() - 1].where, part.world);
      if (epoch_plan::batch_size(next) == 0) break;
      begin(next, part);
    }
  }

  /// Reports what is bad in the first slot and leaves it out, once.
  void settle(detail::batch_slot& slot) {
    if (slot.settled) return;
    if (!slot.bad.empty()) {
      std::sort(slot.bad.begin(), slot.bad.end(), [&](const bad_record& a, const bad_record& b) {
        const auto place = [&](sample_id id) { return std::find(slot.ids.begin(), slot.ids.end(), id); };
        return place(a.id) < place(b.id);
      });
      try {
        log.note(producer->name(), slot.bad);
      } catch (...) {
        refused = std::current_exception();
        throw;
      }
      leave_out_bad(slot);
    }
    slot.settled = true;
  }

  /// Tells the thread's sink what the cache did since the last time.
  void tell_of_cache() noexcept {
    event_sink* const sink = current_event_sink();
    if (sink == nullptr) return;
    const cache_statistics now = producer->cache();
    const auto at = clock::now();
    if (const auto bytes = now.hit_bytes - told_of_cache.hit_bytes; bytes != 0) {
      sink->record({activity::cache_hit, "cache", at, at, bytes});
    }
    if (const auto bytes = now.miss_bytes - told_of_cache.miss_bytes; bytes != 0) {
      sink->record({activity::cache_miss, "cache", at, at, bytes});
    }
    told_of_cache = now;
  }

  std::unique_ptr<detail::record_producer> producer;
  epoch_plan plan;
  settings chosen;
  bad_record_log log;
  detail::batch_ring ring;
  cache_statistics told_of_cache;
  std::exception_ptr refused;  // more bad records than may be: that does not pass by asking again
  bool told = false;
};

any_loader::any_loader(std::unique_ptr<detail::record_producer> producer, const muster::cursor& start, settings chosen)
    : engine_(std::make_unique<engine>(std::move(producer), start, std::move(chosen))) {}
any_loader::any_loader(any_loader&&) noexcept = default;
any_loader& any_loader::operator=(any_loader&&) noexcept = default;
any_loader::~any_loader() = default;

void any_loader::open(const muster::cursor& there) { engine_->plan.open(there); }
void any_loader::commit() { engine_->plan.commit(); }
void any_loader::next_epoch() noexcept { engine_->plan.next_epoch(); }
void any_loader::next_epoch(std::uint64_t size, std::uint64_t digest) noexcept {
  engine_->plan.next_epoch(size, digest);
}
const muster::cursor& any_loader::cursor() const noexcept { return engine_->plan.cursor(); }
std::uint64_t any_loader::step() const noexcept { return engine_->plan.step(); }
std::uint64_t any_loader::steps_per_epoch() const noexcept { return engine_->plan.steps_per_epoch(); }
const record_schema& any_loader::schema() const noexcept { return engine_->producer->schema(); }
std::string_view any_loader::name() const noexcept { return engine_->producer->name(); }
const bad_record_log& any_loader::bad_records() const noexcept { return engine_->log; }
cache_statistics any_loader::cache() const { return engine_->producer->cache(); }
detail::record_producer& any_loader::producer() noexcept { return *engine_->producer; }
const any_loader::settings& any_loader::chosen() const noexcept { return engine_->chosen; }
void any_loader::drop() noexcept { engine_->ring.pop(engine_->ring.size()); }

record_batch any_loader::next(slice part) {
  engine& e = *engine_;
  const muster::cursor& at = e.plan.cursor();
  const std::uint64_t count = epoch_plan::batch_size(at, part.world);
  const index_range mine = part_of(count, part);
  e.plan.deal_to(part.world);
  record_batch batch;
  batch.schema = &schema();
  batch.epoch = at.epoch;
  batch.position = at.position;
  if (count == 0) return batch;  // what was made ahead is of the next epoch and stays

  if (e.refused) std::rethrow_exception(e.refused);
  const scoped_event event(activity::data_wait, "next", mine.size() * schema().record_bytes());
  std::size_t before = 0;
  while (before < e.ring.size() && !engine::is_at(e.ring[before], at, part)) ++before;
  e.ring.pop(before);
  if (e.ring.size() == 0) e.begin(at, part);
  e.begin_ahead(part);
  try {
    e.ring.finish_first();
    e.settle(e.ring[0]);
  } catch (...) {
    drop();  // so that the next call tries again
    throw;
  }
  e.tell_of_cache();
  detail::batch_slot& slot = e.ring[0];
  batch.samples = slot.ids;
  batch.global_size = count;
  batch.labels = slot.labels.span().first(slot.ids.size() * slot.label_width);
  batch.bytes = slot.bytes.span().first(slot.used);
  batch.offsets = slot.offsets;
  batch.left_out = slot.left_out;
  return batch;
}

}  // namespace muster::inline v0
