#pragma once

#include <muster/train/sync/gradient_sync.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include <muster/train/sync/host_gradients.hpp>
#include <muster/train/sync/ordered_gradients.hpp>
#include <muster/train/sync/typed_gradients.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// Base of the number of samples, which is sent as two floats, so that their sums over ranks are exact.
inline constexpr std::uint64_t count_base = 4096;

// Divides the gradients into buckets. The first bucket has `first_bucket` bytes, and the next buckets are full, since
// each bucket costs a synchronisation between all ranks. Towards the end a bucket has at most a third of the remaining
// gradients, down to an eighth of a full bucket, since the last bucket's reduction overlaps with no computation. The
// limit is a third because a bucket is reduced while the remaining gradients are computed. With a half, each reduction
// would end after the next bucket is ready, unless the pass is twice as fast as the link.
MUSTER_INLINE std::vector<gradient_bucket> plan_buckets(std::span<const block> extents, std::size_t bucket,
                                                        std::size_t first_bucket) {
  const std::size_t all = extents.empty() ? 0 : extents.front().first + extents.front().count;
  std::vector<gradient_bucket> buckets;
  std::size_t begin = 0, end = 0;
  gradient_bucket open;
  const auto close = [&] {
    open.elements = {begin, end - begin};
    buckets.push_back(std::exchange(open, {}));
    begin = end;
  };
  for (std::size_t tensor = extents.size(); tensor-- > 0;) {
    const std::size_t remaining = (all - begin) * sizeof(float);
    const std::size_t bytes = std::min(bucket, std::max(bucket / 8, remaining / 3));
    const std::size_t limit = (buckets.empty() ? first_bucket : bytes) / sizeof(float);
    const std::size_t count = extents[tensor].count;
    if (!open.tensors.empty() && end - begin + count > limit) close();
    open.tensors.push_back(tensor);
    end += count;
  }
  close();
  return buckets;
}

MUSTER_INLINE std::unique_ptr<gradient_backend> backend_of(arena& tensors, const sync_options& options) {
  if (options.virtual_shards > 0) return std::make_unique<detail::ordered_gradients>(tensors, options.virtual_shards);
  if (options.codec) return options.codec(tensors);
  const bool is_float =
      std::ranges::all_of(tensors.shapes(), [](const auto& shape) { return shape.type == dtype::float32; });
  if (is_float) return std::make_unique<host_gradients>(tensors, options.reproducible);
  return std::make_unique<typed_gradients>(tensors, options.reproducible);
}

}  // namespace detail

// ---- the interface for models ----

MUSTER_INLINE backward_pass::backward_pass(gradient_sync& owner, group* ranks, int passes) : sync_(&owner) {
  owner.reset(ranks, passes);
}
MUSTER_INLINE backward_pass::~backward_pass() { sync_->abandon_step(); }
MUSTER_INLINE std::span<const float> backward_pass::parameter(std::size_t tensor) const {
  return sync_->on_host().parameter(tensor);
}
MUSTER_INLINE std::span<float> backward_pass::gradient(std::size_t tensor) {
  const auto place = sync_->on_host().gradient(tensor);
  sync_->requested_[tensor] = 1;
  sync_->step_.wrote = true;
  return place;
}
MUSTER_INLINE bool backward_pass::adds(std::size_t tensor) const {
  return sync_->written_.at(tensor) > 0 && !sync_->keeps_passes_apart();
}
MUSTER_INLINE void backward_pass::ready(std::size_t tensor) {
  sync_->step_.wrote = true;
  sync_->note_written(tensor);
}
MUSTER_INLINE void backward_pass::wait() { sync_->wait(); }
MUSTER_INLINE std::uint64_t backward_pass::samples() const noexcept { return sync_->step_.samples; }
MUSTER_INLINE double backward_pass::norm() const noexcept { return std::sqrt(sync_->step_.squares); }

MUSTER_INLINE void backward_pass::end_pass() {
  for (std::size_t tensor = sync_->requested_.size();
       tensor-- > 0;) {  // in the order in which buckets start, from the last layer to the first
    const bool was_requested = std::exchange(sync_->requested_[tensor], 0) != 0;
    if (sync_->written_[tensor] > sync_->step_.pass) continue;
    if (!was_requested && !sync_->keeps_passes_apart()) continue;
    if (!was_requested) sync_->gradients_->clear(sync_->gradients_->base_arena().places()[tensor]);
    sync_->note_written(tensor);
  }
  if (++sync_->step_.pass < sync_->step_.passes) sync_->gradients_->end_pass();
}

MUSTER_INLINE void backward_pass::clear() {
  sync_->on_host().clear_gradients();
  std::ranges::fill(sync_->requested_, 1);
  sync_->step_.wrote = true;
}

MUSTER_INLINE void backward_pass::add_samples(std::uint64_t samples) {
  if (sync_->step_.next_start > 0) {
    throw configuration_error(
        "samples are counted too late (the first bucket has already started); call add_samples before a "
        "pass writes its gradients, and begin() with the number of passes");
  }
  sync_->step_.samples_here += samples;
  sync_->step_.counted = true;
}

MUSTER_INLINE void backward_pass::divided_by(double divisor) {
  if (!(divisor > 0 && std::isfinite(divisor))) {
    throw configuration_error("gradients cannot have been divided by " + std::to_string(divisor) +
                              " (it is not a positive number); give the size of the global batch");
  }
  sync_->step_.divisor = divisor;
}

// ---- buckets ----

MUSTER_INLINE gradient_sync::gradient_sync(arena& tensors, const sync_options& options)
    : gradient_sync(detail::backend_of(tensors, options), options) {}

MUSTER_INLINE gradient_sync::gradient_sync(std::unique_ptr<gradient_backend> gradients, const sync_options& options)
    : gradients_(std::move(gradients)), arena_(dynamic_cast<arena*>(&gradients_->base_arena())), options_(options) {
  if (!(options.clip >= 0 && std::isfinite(options.clip))) {
    throw configuration_error("gradients cannot be clipped to a norm of " + std::to_string(options.clip) +
                              " (it must be finite and not negative); give a positive number, or 0 for no clipping");
  }
  if (options.mode.method == sync_mode::kind::parameter_server) {
    throw configuration_error(
        "mode ps cannot be used by a gradient_sync (it reduces among workers); push and pull through a ps::client, or "
        "use another mode");
  }
  if (options.virtual_shards < 0 || (options.virtual_shards > 0 && (options.codec || !exchanges_gradients()))) {
    throw configuration_error("a batch cannot be cut into " + std::to_string(options.virtual_shards) +
                              " virtual shards " +
                              (options.virtual_shards < 0 ? "(the number of parts is negative); give 1 or more, or 0"
                               : options.codec ? "(a codec's messages and residuals depend on the ranks); use no codec"
                                               : "(ranks exchange weights); use mode allreduce"));
  }
  if (options.reproducible && (options.codec || !exchanges_gradients() || arena_ == nullptr)) {
    throw configuration_error("gradients cannot be summed reproducibly " +
                              std::string(options.codec ? "(a codec's messages depend on the ranks); use no codec"
                                          : arena_ == nullptr
                                              ? "(a device sums in an order of its own); train on the host"
                                              : "(ranks exchange weights); use mode allreduce"));
  }
  if (!exchanges_gradients() && options.codec) {
    throw configuration_error(
        "a codec cannot be used in mode " + to_string(options.mode) +
        " (a codec compresses gradients, and these ranks exchange weights); use mode allreduce or "
        "no codec");
  }
  if (!exchanges_gradients() || options.codec || options.virtual_shards > 0) {
    on_host().require_floats(options.codec                ? "a codec cannot be used"
                             : options.virtual_shards > 0 ? "virtual shards cannot be used"
                                                          : "mode " + to_string(options.mode) + " cannot be used");
  }
  const std::size_t tensors = gradients_->base_arena().shapes().size();
  bucket_of_.resize(tensors);
  written_.resize(tensors);
  requested_.resize(tensors);
  buckets_ = detail::plan_buckets(gradients_->base_arena().places(), options_.bucket, options_.first_bucket);
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    for (const std::size_t tensor : buckets_[bucket].tensors) bucket_of_[tensor] = bucket;
  bucket_progress_.resize(buckets_.size());

  arena_sharing shared{.beside = [this](state_parts& parts) { describe(parts); }};
  if (!exchanges_gradients()) {
    shared.change = rollback_policy::restore_on_failure;
    shared.states = state_kind::rank_local;
    if (options.mode.method != sync_mode::kind::allreduce_weights) shared.parameters = state_kind::rank_local;
  }
  gradients_->attach(buckets_);
  gradients_->base_arena().share(std::move(shared));
}

MUSTER_INLINE gradient_sync::~gradient_sync() {
  abandon_step();
  gradients_->base_arena().end_sharing();
}

MUSTER_INLINE arena& gradient_sync::on_host() {
  if (arena_ != nullptr) return *arena_;
  throw configuration_error(
      "codecs, exchanges of weights, virtual shards and views of gradients need gradients on the host (these are on a "
      "device); use mode allreduce, no codec, no virtual shards, and the views of the device_arena");
}

MUSTER_INLINE bool gradient_sync::exchanges_gradients() const noexcept {
  return options_.mode.method == sync_mode::kind::allreduce;
}

// ---- a step ----

MUSTER_INLINE backward_pass gradient_sync::begin(group& ranks, int passes) { return begin(&ranks, passes); }
MUSTER_INLINE backward_pass gradient_sync::begin(int passes) { return begin(nullptr, passes); }

MUSTER_INLINE backward_pass gradient_sync::begin(group* ranks, int passes) {
  if (under_way_) {
    throw configuration_error(
        "a backward pass cannot begin (the last pass is unfinished); end it, by wait() or by leaving its scope");
  }
  if (passes < 1) {
    throw configuration_error("a step cannot have " + std::to_string(passes) +
                              " passes (it needs at least one); give 1 or more");
  }
  return backward_pass(*this, ranks, passes);
}

MUSTER_INLINE void gradient_sync::reset(group* ranks, int passes) {
  gradients_->begin(ranks, progress_.steps);
  under_way_ = true;
  step_ = {.passes = passes, .polls = ranks != nullptr && !ranks->settings().progress_thread};
  std::ranges::fill(written_, 0);
  std::ranges::fill(requested_, 0);
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    bucket_progress_[bucket] = {.missing = buckets_[bucket].tensors.size()};
  bytes_sent_ = 0;
  next_progress_ = progress_;
  ++next_progress_.steps;
  began_ = true;
  complete_ = false;
}

// Abandons an unfinished step. No collective uses the gradients afterwards.
MUSTER_INLINE void gradient_sync::abandon_step() noexcept {
  if (!under_way_) return;
  gradients_->abandon();
  under_way_ = false;
}

MUSTER_INLINE void gradient_sync::note_written(std::size_t tensor) {
  if (tensor >= written_.size() || written_[tensor] == step_.passes) {
    throw configuration_error(tensor >= written_.size()
                                  ? "no tensor has index " + std::to_string(tensor) + " (the arena has " +
                                        std::to_string(written_.size()) + "); count from 0"
                                  : "the gradient of '" + gradients_->base_arena().shapes()[tensor].name +
                                        "' was written more often than there are passes (" +
                                        std::to_string(step_.passes) +
                                        "); call ready once per pass, and begin() with the number of passes");
  }
  if (++written_[tensor] == step_.passes && --bucket_progress_[bucket_of_[tensor]].missing == 0)
    start_complete_buckets();
  if (step_.polls) poll();
}

MUSTER_INLINE void gradient_sync::start_complete_buckets() {
  while (step_.next_start < buckets_.size() && bucket_progress_[step_.next_start].missing == 0)
    start(step_.next_start++);
}

MUSTER_INLINE void gradient_sync::start(std::size_t bucket) {
  if (examines_own()) step_.own_squares += gradients_->sum_of_squares(buckets_[bucket].elements);
  if (!exchanges_gradients()) return;
  auto& flight = bucket_progress_[bucket];
  if (bucket == 0)
    gradients_->put_head({static_cast<float>(step_.samples_here / detail::count_base),
                          static_cast<float>(step_.samples_here % detail::count_base)});
  if (current_event_sink() != nullptr) flight.begin = clock::now();
  flight.bytes = gradients_->start(bucket);
  bytes_sent_ += flight.bytes;
}

// Advances the collectives and finishes the buckets whose sums are complete, while their gradients are still in a
// cache.
MUSTER_INLINE void gradient_sync::poll() {
  while (step_.next_finish < step_.next_start && (!exchanges_gradients() || gradients_->test(step_.next_finish)))
    finish(step_.next_finish++);
}

MUSTER_INLINE void gradient_sync::read_sample_count() {
  step_.samples = step_.samples_here;
  if (exchanges_gradients()) {
    const auto [high, low] = gradients_->head();
    step_.samples = static_cast<std::uint64_t>(high) * detail::count_base + static_cast<std::uint64_t>(low);
  }
  if (step_.samples > 0) step_.factor = step_.divisor / static_cast<double>(step_.samples);
}

MUSTER_INLINE void gradient_sync::finish(std::size_t bucket) {
  if (bucket == 0) read_sample_count();
  const auto& flight = bucket_progress_[bucket];
  if (event_sink* const sink = current_event_sink(); sink != nullptr && flight.bytes > 0)
    sink->record({activity::bucket, "bucket", flight.begin, clock::now(), flight.bytes});
  if (step_.factor != 1.0) gradients_->scale(buckets_[bucket].elements, step_.factor);
  if (options_.clip == 0) return;
  const auto& places = gradients_->base_arena().places();  // tensor by tensor: the sum does not depend on the buckets
  for (const std::size_t tensor : buckets_[bucket].tensors) step_.squares += gradients_->sum_of_squares(places[tensor]);
}

MUSTER_INLINE void gradient_sync::require_written() const {
  if (step_.wrote || step_.samples_here == 0 || written_.empty()) return;
  throw configuration_error("a backward pass of " + std::to_string(step_.samples_here) +
                            " samples wrote no gradient (it did not request the place of any, so the step would train "
                            "nothing); write pass.gradient(t) in each pass, or bind the model's gradients to it there");
}

// Returns true in the first step of a training with samples, for gradients that are this rank's own before the
// exchange. A resumed training, or a rank that joins, has been examined in its first step.
MUSTER_INLINE bool gradient_sync::examines_own() const noexcept {
  return !examined_ && arena_ != nullptr && !keeps_passes_apart() && step_.samples_here > 0 && progress_.steps == 0;
}

// Warns once if all gradients are zero. Such a training makes no progress, and shows no other symptom. If only this
// rank's gradients are zero, the rank logs an error, because other ranks than rank 0 log errors alone.
MUSTER_INLINE void gradient_sync::warn_about_zeros() {
  if (examined_ || step_.samples == 0) return;
  const bool own_are_zero = examines_own() && step_.own_squares == 0;
  examined_ = true;
  const bool all_are_zero = exchanges_gradients() && std::ranges::all_of(buckets_, [&](const auto& bucket) {
                              return gradients_->sum_of_squares(bucket.elements) == 0;
                            });
  if (!all_are_zero && !own_are_zero) return;
  log(all_are_zero ? log_level::warning : log_level::error,
      std::string("all gradients of ") + (all_are_zero ? "the first step" : "this rank in the first step") +
          " are 0 (the training may learn nothing" + (all_are_zero ? "" : " from this rank's samples") +
          "); check that the model writes to pass.gradient(t) in each pass, and that no call, such as zero_grad(), "
          "binds it to other memory");
}

MUSTER_INLINE void gradient_sync::wait() {
  const scoped_event measured(activity::aggregate, "aggregate", 0);
  require_written();
  const auto& extents = gradients_->base_arena().places();
  for (std::size_t tensor = 0; tensor < written_.size(); ++tensor) {
    if (written_[tensor] == 0) gradients_->clear(extents[tensor]);
  }
  for (auto& flight : bucket_progress_) flight.missing = 0;
  start_complete_buckets();
  for (; step_.next_finish < buckets_.size(); ++step_.next_finish) {
    if (exchanges_gradients()) bytes_sent_ += gradients_->wait(step_.next_finish);
    finish(step_.next_finish);
  }
  if (step_.samples == 0 && !step_.counted && std::ranges::any_of(written_, [](int times) { return times > 0; })) {
    throw configuration_error(
        "the gradients cannot be divided by the number of samples (no sample was counted); call add_samples in the "
        "backward pass");
  }
  warn_about_zeros();
  if (const double norm = std::sqrt(step_.squares); options_.clip > 0 && norm > double{options_.clip}) {
    for (const auto& bucket : buckets_) gradients_->scale(bucket.elements, double{options_.clip} / norm);
  }
  gradients_->finish();
  under_way_ = false;
  complete_ = true;
}

// ---- weights ----

MUSTER_INLINE void gradient_sync::exchange(group& ranks) {
  if (!std::exchange(began_, false)) return;
  next_progress_.samples_since_average = progress_.samples_since_average + step_.samples_here;
  if (options_.mode.method == sync_mode::kind::gossip) {
    gossip(ranks, options_.mode.graph, arena_->parameters(), scratch_);
    bytes_sent_ +=
        arena_->parameters().size_bytes() * neighbours(options_.mode.graph, ranks.rank(), ranks.size()).size();
    return;
  }
  if (options_.mode.method == sync_mode::kind::local_sgd && (progress_.steps + 1) % options_.mode.period != 0) return;
  average_weights(ranks, next_progress_.samples_since_average);
  if (ranks.size() > 1) bytes_sent_ += arena_->parameters().size_bytes();
  next_progress_.samples_since_average = 0;
}

MUSTER_INLINE void gradient_sync::average(group& ranks) {
  if (exchanges_gradients()) return;
  average_weights(ranks, options_.mode.method == sync_mode::kind::gossip ? 0 : progress_.samples_since_average);
  progress_.samples_since_average = next_progress_.samples_since_average = 0;
}

// Computes in a scratch array, so that an error leaves the parameters unchanged.
MUSTER_INLINE void gradient_sync::average_weights(group& ranks, std::uint64_t mine) {
  if (ranks.size() == 1) return;
  std::vector<std::uint64_t> trained_with(static_cast<std::size_t>(ranks.size()));
  allgather(ranks, std::span(&mine, 1), trained_with);
  std::uint64_t all = 0;
  bool equal = true;
  for (const std::uint64_t samples : trained_with) {
    all += samples;
    equal = equal && samples == trained_with.front();
  }
  const auto parameters = arena_->parameters();
  scratch_.resize(parameters.size());
  const std::span<float> sums(scratch_);
  if (equal) {
    allreduce(ranks, std::span<const float>(parameters), sums, mean);
  } else {
    const auto weight = static_cast<float>(static_cast<double>(mine) / static_cast<double>(all));
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = weight * parameters[i];
    allreduce(ranks, sums, sum);
  }
  std::ranges::copy(sums, parameters.begin());
}

// ---- state ----

MUSTER_INLINE void gradient_sync::describe(state_parts& parts) {
  parts.add_property("the mode in which ranks exchange", to_string(options_.mode));
  parts.add_property("the norm to which gradients are clipped", number_text(options_.clip));
  parts.add_property("the number of virtual shards", std::to_string(options_.virtual_shards));
  if (options_.reproducible) parts.add_property("the sums of gradients", "reproducible");
  parts.add_property("the bytes of a bucket",
                     std::to_string(options_.bucket) + " after " + std::to_string(options_.first_bucket));
  parts.add("steps of gradient_sync", std::span(&progress_.steps, 1));
  parts.add("samples since the weights were averaged", std::span(&progress_.samples_since_average, 1),
            state_kind::rank_local);
  parts.hook([this] { commit(); },
             [this] {
               next_progress_ = progress_;
               began_ = complete_ = false;
             });
  if (!exchanges_gradients()) parts.exchange([this](group& ranks) { exchange(ranks); });
  gradients_->describe(parts);
}

MUSTER_INLINE void gradient_sync::commit() noexcept {
  progress_ = next_progress_;
  if (std::exchange(complete_, false)) gradients_->commit();
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
