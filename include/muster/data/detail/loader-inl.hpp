#pragma once

#include <muster/data/loader.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/data/batch_ring.hpp>
#include <muster/data/order/batch_sampler.hpp>
#include <muster/data/record_step.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

// Returns the start of a source's first epoch for the requested order and batches.
inline cursor start_of(const detail::loader_source& source, const std::optional<shuffle>& order, const batch& batches) {
  if (batches.size == 0) {
    throw configuration_error("the global batch cannot be 0 (a step needs samples); use at least 1");
  }
  cursor start{.dataset = source.digest, .size = source.size, .batch = batches.size};
  start.drop_last = batches.options.drop_last ? 1 : 0;
  start.per_rank = batches.options.per_rank ? 1 : 0;
  if (!order) return start;
  start.seed = order->seed;
  const std::uint64_t record = source.ids_alone ? 0 : source.records->schema().record_bytes();
  // Sources above this size are assumed not to fit into memory. The limit does not depend on this machine's memory,
  // because the order must be the same on every machine.
  constexpr std::uint64_t warm = std::uint64_t{4} << 30;
  const std::uint64_t together = source.ids_alone ? 0 : source.records->block_records();
  const bool cold = together != 0 || (record != 0 && source.size > warm / record);
  start.order = order->options.order.value_or(cold ? sample_order::block_window : sample_order::shuffled);
  if (start.order == sample_order::block_window) {
    constexpr std::uint64_t block_bytes = std::uint64_t{4} << 20;
    constexpr std::uint64_t block_of_unknown_size = 4096;
    const std::uint64_t fitting = together != 0 ? together : record == 0 ? block_of_unknown_size : block_bytes / record;
    start.block = order->options.block != 0 ? order->options.block : std::max<std::uint64_t>(fitting, 1);
    start.window = order->options.window != 0 ? order->options.window : 16;
  }
  return start;
}

[[noreturn]] inline void refuse_without_records() {
  throw configuration_error(
      "there is nothing to read (the source has samples, but no records); leave out the steps after batch(), or use "
      "another source");
}

// Removes the bad records from a slot. The remaining records are moved together, in their order.
inline void leave_out_bad(detail::batch_slot& slot) {
  const std::size_t count = slot.ids.size();
  std::size_t kept_count = 0;
  std::size_t used = 0;
  for (std::size_t k = 0; k < count; ++k) {
    if (std::ranges::find(slot.bad, slot.ids[k], &bad_record::id) != slot.bad.end()) continue;
    const std::size_t begin = slot.begin_of(k);
    const std::size_t size = slot.begin_of(k + 1) - begin;
    std::memmove(slot.bytes.data() + used, slot.bytes.data() + begin, size);
    std::copy_n(slot.labels.data() + k * slot.label_width, slot.label_width,
                slot.labels.data() + kept_count * slot.label_width);
    slot.ids[kept_count] = slot.ids[k];
    if (!slot.offsets.empty()) slot.offsets[kept_count] = used;
    used += size;
    ++kept_count;
  }
  slot.left_out = count - kept_count;
  slot.ids.resize(kept_count);
  slot.used = used;
  if (slot.offsets.empty()) return;
  slot.offsets.resize(kept_count + 1);
  slot.offsets[kept_count] = used;
}

}  // namespace detail

struct loader::engine {
  engine(detail::loader_source source, const data::cursor& start) : plan(start), reads(!source.ids_alone) {
    if (source.records) last = detail::make_source_step(*std::move(source.records));
    if (last) plan.set_mixture(last->source().mixture_order());
    if (last && !last->source().available_shards().names.empty()) plan.set_sharded();
    if (last && last->source().newest() != 0) {
      plan.follow([this](std::uint64_t size) { return open_version(size); }, last->source().follows_every());
    }
    assign_samples_to({});
    reserve_ids();
  }

  /// Replaces the source at the start of the chain by another version, and returns its digest.
  std::uint64_t open_version(std::uint64_t size) {
    any_record_source version = last->source().version(size);
    const std::uint64_t digest = version.digest();
    replace(std::move(version));
    return digest;
  }
  void replace(any_record_source source) {
    ring.reset();
    reported_cache = {};  // the statistics of the new chain start at zero
    const any_record_source before = last->source();
    try {
      last->replace(std::move(source));
    } catch (...) {  // a step refuses the source, and the steps before it have already been changed
      last->replace(before);
      throw;
    }
    plan.set_mixture(last->source().mixture_order());
    assign_samples_to({});
  }

  /// Assigns samples to the ranks that hold them. If `shards_of_ranks` is empty, the shards of the other ranks are
  /// unknown, which is an error if this rank lacks a shard.
  void assign_samples_to(std::vector<held_shards> shards_of_ranks) {
    const held_shards own = last ? last->source().available_shards() : held_shards();
    for (const held_shards& rank : shards_of_ranks) {
      if (rank.available.size() == own.names.size() && !own.names.empty()) continue;
      throw configuration_error(
          "the samples of " + std::to_string(own.names.size()) + " shards cannot be assigned by a list of " +
          std::to_string(rank.available.size()) +
          " shards (the list is for other data); pass the available_shards() of each rank's loader");
    }
    ring.reset();
    missing_shards.clear();
    reporting_ranks = shards_of_ranks.size();
    for (std::size_t shard = 0; shard < own.names.size(); ++shard) {
      const auto is_there = [&](const held_shards& rank) { return rank.available[shard] != 0; };
      if (shards_of_ranks.empty() ? !is_there(own) : std::ranges::none_of(shards_of_ranks, is_there))
        missing_shards.push_back(own.names[shard]);
    }
    plan.assign_samples_to(std::move(shards_of_ranks));
  }
  [[noreturn]] void refuse_missing_shards() const {
    const std::string which =
        "shard " + missing_shards.front() +
        (missing_shards.size() > 1 ? " and " + std::to_string(missing_shards.size() - 1) + " others" : "") + " ";
    if (reporting_ranks == 0) {
      throw configuration_error(std::string(last->source().name()) + " cannot be read by this rank alone (" + which +
                                "is not at this rank); let the ranks agree on the shards that they hold: add "
                                "followed_data(loader) to the state");
    }
    throw data_error({std::string(last->source().name())},
                     which + "is at none of the " + std::to_string(reporting_ranks) +
                         " ranks; start a rank on a host that has the shard, or copy its file to a rank");
  }

  void reserve_ids() {
    if (!reads) ids.reserve(std::min(plan.cursor().batch, plan.cursor().size));
  }

  /// Makes next() return records from now on, not ids alone. Drops batches that are already prepared, because the
  /// pipeline changes. Throws configuration_error for a source without records.
  void require_records() {
    if (!last) detail::refuse_without_records();
    ring.reset();
    reads = true;
  }

  /// Lets threads start to prepare the part of the batch at `position`.
  void begin(const data::cursor& position, batch_shard shard) {
    auto slot = ring->take();
    slot->position = position;
    slot->shard = shard;
    plan.ids_of(position, shard, slot->ids);
    ring->push(std::move(slot));
    expect(position, shard);
  }

  /// Announces the records of a later batch, which follows the blocks that are currently mixed, so that remote records
  /// are fetched in time.
  void expect(data::cursor position, batch_shard shard) {
    if (last->source().block_records() == 0) return;
    position = detail::batch_sampler::after(position, std::max(position.block * position.window, position.batch));
    plan.ids_of(position, shard, expected);
    last->source().expect(expected);
  }

  /// Lets threads start to prepare the following batches, within the limits for number and memory.
  void begin_ahead(batch_shard shard) {
    const std::size_t batch_bytes = std::max<std::size_t>((*ring)[0].bytes.size(), 1);
    const std::size_t most = std::min(ahead.batches, ahead.bytes / batch_bytes);
    if (most == 0 && ahead.batches != 0 && !warned) {
      warned = true;
      muster::log(log_level::warning, "nothing is prefetched (a batch takes " + std::to_string(batch_bytes) +
                                          " bytes and prefetch_options::bytes is " + std::to_string(ahead.bytes) +
                                          "); raise it or make batches smaller");
    }
    while (ring->size() <= most) {
      const data::cursor next = detail::batch_sampler::after((*ring)[ring->size() - 1].position, shard.world);
      if (detail::batch_sampler::batch_size(next) == 0) break;
      begin(next, shard);
    }
  }

  /// Reports the bad records in the first slot and removes them, once.
  void report_bad_records(detail::batch_slot& slot) {
    if (slot.bad_records_reported) return;
    if (!slot.bad.empty()) {
      std::sort(slot.bad.begin(), slot.bad.end(), [&](const bad_record& a, const bad_record& b) {
        const auto place = [&](sample_id id) { return std::find(slot.ids.begin(), slot.ids.end(), id); };
        return place(a.id) < place(b.id);
      });
      try {
        log.note(last->source().name(), slot.bad);
      } catch (...) {
        refused = std::current_exception();
        throw;
      }
      detail::leave_out_bad(slot);
    }
    slot.bad_records_reported = true;
  }

  /// Returns the complete slot of the batch at the cursor. The following batches are being prepared.
  detail::batch_slot& make(batch_shard shard) {
    if (refused) std::rethrow_exception(refused);
    if (!ring) ring.emplace(*last, skips_bad, ahead.batches > 0 ? ahead.threads : 0);
    std::size_t before = 0;
    const auto is_there = [&](const detail::batch_slot& slot) {
      return slot.shard == shard && slot.position == plan.cursor();
    };
    while (before < ring->size() && !is_there((*ring)[before])) ++before;
    ring->pop(before);
    if (ring->size() == 0) begin(plan.cursor(), shard);
    begin_ahead(shard);
    try {
      ring->finish_first();
      report_bad_records((*ring)[0]);
    } catch (...) {
      ring->pop(ring->size());  // so that the next call retries
      throw;
    }
    report_cache();
    return (*ring)[0];
  }

  /// Reports the cache's activity since the last call to the thread's event sink.
  void report_cache() noexcept {
    event_sink* const sink = current_event_sink();
    if (sink == nullptr) return;
    const cache_statistics current = last->cache();
    const auto at = clock::now();
    if (const auto bytes = current.hit_bytes - reported_cache.hit_bytes; bytes != 0) {
      sink->record({activity::cache_hit, "cache", at, at, bytes});
    }
    if (const auto bytes = current.miss_bytes - reported_cache.miss_bytes; bytes != 0) {
      sink->record({activity::cache_miss, "cache", at, at, bytes});
    }
    reported_cache = current;
  }

  detail::batch_sampler plan;
  std::unique_ptr<detail::record_step> last;  // last step of the chain; null for a source without records
  bool reads;                                 // if false, the loader yields ids alone
  std::vector<sample_id> ids;                 // used if the loader yields ids alone
  std::vector<sample_id> expected;
  prefetch_options ahead;
  bool skips_bad = false;
  bad_record_log log;
  cache_statistics reported_cache;
  std::exception_ptr refused;  // exceeding the limit of bad records is permanent: later calls rethrow this exception
  bool warned = false;
  std::size_t reporting_ranks = 0;          // number of ranks that have reported their shards; 0: unknown
  std::vector<std::string> missing_shards;  // shards that no known rank has
  std::optional<detail::batch_ring> ring;   // last member: its threads use the chain
};

MUSTER_INLINE loader::loader(detail::loader_source source, const std::optional<shuffle>& order,
                             const data::batch& batches) {
  const data::cursor start = detail::start_of(source, order, batches);
  engine_ = std::make_unique<engine>(std::move(source), start);
}
MUSTER_INLINE loader::loader(loader&&) noexcept = default;
MUSTER_INLINE loader& loader::operator=(loader&&) noexcept = default;
MUSTER_INLINE loader::~loader() = default;

MUSTER_INLINE loader loader::with(std::unique_ptr<detail::record_step> pipeline_step) && {
  engine_->require_records();
  pipeline_step->follow(std::move(engine_->last));
  engine_->last = std::move(pipeline_step);
  return std::move(*this);
}
MUSTER_INLINE loader operator|(loader pipeline, cache pipeline_step) {
  return std::move(pipeline).with(detail::make_cache_step(std::move(pipeline_step.options)));
}
MUSTER_INLINE loader operator|(loader pipeline, prefetch pipeline_step) {
  pipeline.engine_->require_records();
  pipeline.engine_->ahead = pipeline_step.options;
  return pipeline;
}
MUSTER_INLINE loader operator|(loader pipeline, on_bad_records pipeline_step) {
  pipeline.engine_->require_records();
  pipeline.engine_->skips_bad = pipeline_step.options.policy != bad_record_policy::fail;
  pipeline.engine_->log = bad_record_log(std::move(pipeline_step.options));
  return pipeline;
}

MUSTER_INLINE void loader::open(const data::cursor& start) { engine_->plan.open(start); }
MUSTER_INLINE void loader::commit() { engine_->plan.commit(); }
MUSTER_INLINE void loader::next_epoch() { engine_->plan.next_epoch(); }
MUSTER_INLINE std::uint64_t loader::newest() const { return engine_->last ? engine_->last->source().newest() : 0; }
MUSTER_INLINE source_statistics statistics(const loader& pipeline, int threads) {
  return statistics(pipeline.source(), threads);
}
MUSTER_INLINE bool loader::follows() const noexcept { return engine_->plan.follows(); }
MUSTER_INLINE void loader::grow_to(std::uint64_t records) noexcept { engine_->plan.grow_to(records); }
MUSTER_INLINE held_shards loader::available_shards() const {
  return engine_->last ? engine_->last->source().available_shards() : held_shards();
}
MUSTER_INLINE void loader::assign_samples_to(std::vector<held_shards> shards_of_ranks) {
  engine_->assign_samples_to(std::move(shards_of_ranks));
}
MUSTER_INLINE bool loader::may_grow() const noexcept { return engine_->plan.may_grow(); }
MUSTER_INLINE const data::cursor& loader::cursor() const noexcept { return engine_->plan.cursor(); }
MUSTER_INLINE sampler_handle loader::cursor() noexcept {
  engine_->plan.set_classes(schema().classes);
  return sampler_handle(engine_->plan);
}
MUSTER_INLINE std::uint64_t loader::step() const noexcept { return engine_->plan.step(); }
MUSTER_INLINE std::uint64_t loader::steps_per_epoch() const noexcept { return engine_->plan.steps_per_epoch(); }
MUSTER_INLINE const record_schema& loader::schema() const noexcept {
  static const record_schema none;
  return engine_->last ? engine_->last->schema() : none;
}
MUSTER_INLINE const any_record_source& loader::source() const {
  if (!engine_->last) detail::refuse_without_records();
  return engine_->last->source();
}
MUSTER_INLINE std::string_view loader::name() const noexcept {
  return engine_->last ? engine_->last->source().name() : std::string_view();
}
MUSTER_INLINE const bad_record_log& loader::bad_records() const noexcept { return engine_->log; }
MUSTER_INLINE cache_statistics loader::cache() const {
  return engine_->last ? engine_->last->cache() : cache_statistics();
}

MUSTER_INLINE void loader::replace(detail::loader_source source) {
  engine& e = *engine_;
  if (e.last) {
    if (!source.records) detail::refuse_without_records();
    e.replace(*std::move(source.records));
  }
  e.plan.next_epoch(source.size, source.digest);
  e.reserve_ids();
}

MUSTER_INLINE minibatch loader::next(batch_shard shard) {
  engine& e = *engine_;
  const data::cursor& at = e.plan.cursor();
  minibatch batch;
  batch.global_size = detail::batch_sampler::batch_size(at, shard.world);
  batch.epoch = at.epoch;
  batch.position = at.position;
  batch.schema = &schema();
  const index_range own = part_of(batch.global_size, shard);
  e.plan.set_world(shard.world);
  if (batch.global_size == 0) return batch;  // prepared batches belong to the next epoch and are kept

  if (!e.missing_shards.empty()) e.refuse_missing_shards();
  const scoped_event event(activity::data_wait, "next",
                           own.size() * (e.reads ? batch.schema->record_bytes() : sizeof(sample_id)));
  if (!e.reads) {
    e.plan.ids_of(at, shard, e.ids);
    batch.samples = e.ids;
    return batch;
  }
  detail::batch_slot& slot = e.make(shard);
  batch.samples = slot.ids;
  batch.labels = slot.labels.span().first(slot.ids.size() * slot.label_width);
  batch.bytes = slot.bytes.span().first(slot.used);
  batch.offsets = slot.offsets;
  batch.left_out = slot.left_out;
  return batch;
}

MUSTER_INLINE std::shared_ptr<const void> loader::release_batch() {
  auto& ring = engine_->ring;
  return ring && ring->size() != 0 ? ring->release_first() : nullptr;
}

MUSTER_INLINE minibatch minibatch::part(index_range indices) const {
  minibatch result = *this;
  const std::size_t n = samples.size();
  const auto first = static_cast<std::size_t>(indices.first);
  const auto size = static_cast<std::size_t>(indices.size());
  const auto rows = [&](auto all) {
    const std::size_t each = n == 0 ? 0 : all.size() / n;
    return all.subspan(first * each, size * each);
  };
  result.samples = samples.subspan(first, size);
  result.labels = rows(labels);
  if (offsets.empty())
    result.bytes = rows(bytes);
  else
    result.offsets = offsets.subspan(first, size + 1);  // offsets into the bytes of the whole batch
  return result;
}

MUSTER_INLINE std::vector<minibatch> minibatch::split(int batch_count) const {
  if (batch_count < 1) {
    throw configuration_error("a batch cannot be split into " + std::to_string(batch_count) +
                              " parts (at least 1 is required); give 1 or more");
  }
  std::vector<minibatch> parts;
  for (int k = 0; k < batch_count; ++k) {
    parts.push_back(part(part_of(samples.size(), {k, batch_count})));
    if (k > 0) parts.back().left_out = 0;
  }
  return parts;
}

}}}  // namespace muster::v0::data
