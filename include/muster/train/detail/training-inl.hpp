#pragma once

#include <muster/train/training.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>
#include <muster/train/kept_values.hpp>
#include <muster/train/optimizers/optimizer_of.hpp>
#include <muster/train/parameter_server_backend.hpp>
#include <muster/train/speed_balance.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/sync/sync_mode.hpp>
#include <muster/train/train_settings.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// An event sink that detects a collective on its thread.
struct collective_watch final : event_sink {
  void record(const event& event) noexcept override {
    if (event.kind == activity::communication) called = true;
    if (event_sink* const former = installed.former()) former->record(event);
  }
  bool called = false;
  scoped_event_sink installed{*this};
};

inline bool differs(float before, float after) {
  return std::bit_cast<std::uint32_t>(before) != std::bit_cast<std::uint32_t>(after);
}

}  // namespace detail

// ---- a step ----

MUSTER_INLINE training_step::training_step(training& owner, const step& current)
    : step(current.group(), current.generation(), current.number(), current), training_(&owner) {}

MUSTER_INLINE batch_shard training_step::shard() const noexcept {
  const bool by_lease = training_->servers_ && &group() == &training_->servers_->workers();
  batch_shard mine = by_lease ? training_->servers_->shard() : step::shard();
  mine.virtual_shards = training_->sync_.options().virtual_shards;
  if (training_->balance_) mine.weights = training_->balance_->weights(generation());
  return mine;
}

MUSTER_INLINE const minibatch& training_step::part_read() const {
  if (!read_) {
    throw configuration_error(
        "the gradients of a loss cannot be computed (the step has read no batch, so their samples are not known); read "
        "the batch by step.next(loader) before");
  }
  if (shard().virtual_shards > 0) {
    throw configuration_error(
        "the gradients of one loss cannot be cut into virtual shards (each shard needs a loss of its own); give "
        "backward() the batch and a function that computes the loss of its part");
  }
  return read_;
}

MUSTER_INLINE std::span<const minibatch> training_step::parts_of(const minibatch& batch) {
  const batch_shard mine = shard();
  if (mine.virtual_shards == 0) return {&batch, 1};
  if (batch.left_out > 0) {
    throw configuration_error("records " + std::to_string(batch.position) + " and on of epoch " +
                              std::to_string(batch.epoch + 1) +
                              " cannot be cut into virtual shards (bad records were skipped among them); stop at bad "
                              "records, or use no virtual shards");
  }
  const auto before = part_of(batch.global_size, mine).first;  // samples of other ranks
  const auto own = part_of(static_cast<std::uint64_t>(mine.virtual_shards), {mine.rank, mine.world, 0, mine.weights});
  training_->shards_.clear();
  for (auto shard = own.first; shard < own.last; ++shard) {
    const auto [first, last] = part_of(batch.global_size, {static_cast<int>(shard), mine.virtual_shards});
    training_->shards_.push_back(batch.part({first - before, last - before}));
  }
  return training_->shards_;
}

MUSTER_INLINE std::span<const minibatch> training_step::micro_batches(std::span<const minibatch> batches) const {
  if (shard().virtual_shards > 0) {
    throw configuration_error(
        "micro-batches cannot be used with virtual shards (each shard is a separate pass); give backward() the whole "
        "batch, and more shards");
  }
  return batches;
}

// Places the rows of this rank's shards between zeros. The allreduce therefore only gathers the rows of all shards, in
// whatever order the allreduce adds.
MUSTER_INLINE void training_step::mean_over_shards(std::span<const float> mine, std::span<float> means) {
  const batch_shard own_shard = shard();
  const auto [first, last] = part_of(static_cast<std::uint64_t>(own_shard.virtual_shards),
                                     {own_shard.rank, own_shard.world, 0, own_shard.weights});
  const std::size_t width = means.size();
  if (own_shard.virtual_shards == 0 || mine.size() != static_cast<std::size_t>(last - first) * width) {
    throw configuration_error("a mean over virtual shards cannot be computed from " + std::to_string(mine.size()) +
                              " values (this rank has " + std::to_string(last - first) + " of the " +
                              std::to_string(own_shard.virtual_shards) + " shards, with " + std::to_string(width) +
                              " values each); use virtual shards, and give a row for each");
  }
  std::vector<float> rows(static_cast<std::size_t>(own_shard.virtual_shards) * width);
  std::ranges::copy(mine, rows.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * width));
  allreduce(group(), rows, muster::sum);
  for (std::size_t k = 0; k < width; ++k) {
    double all = 0;
    for (std::size_t at = k; at < rows.size(); at += width) all += double{rows[at]};
    means[k] = static_cast<float>(all / own_shard.virtual_shards);
  }
}

MUSTER_INLINE backward_pass training_step::begin(int passes) {
  if (training_->optimizer_waits_) {
    throw configuration_error(
        "a second backward pass cannot begin (an optimizer uses the gradients of the first pass when the step "
        "commits); "
        "make it a separate step");
  }
  const batch_shard own_shard = shard();
  if (own_shard.virtual_shards > 0) passes = std::max(passes, 1);  // for a rank without shards
  training_->sync_.deal_by(own_shard.weights);
  if (!training_->servers_) return training_->sync_.begin(group(), passes);
  if (!training_->servers_->is_sparse()) training_->servers_->pull();
  return training_->sync_.begin(training_->servers_->alone(), passes);
}

MUSTER_INLINE void training_step::count(std::span<const minibatch> batches, backward_pass& pass) {
  std::uint64_t samples = 0;
  for (const minibatch& batch : batches) samples += batch.samples.size();
  batches_.assign(batches.begin(), batches.end());
  training_->step_sums_.own_samples += samples;
  // A worker pushes its part of the gradient of the global batch.
  pass.add_samples(training_->on_servers_ && !batches.empty() ? batches.front().global_size : samples);
}

MUSTER_INLINE void training_step::count(const backward_pass& pass) {
  training_->step_sums_.samples += training_->on_servers_ ? training_->step_sums_.own_samples : pass.samples();
}

MUSTER_INLINE void training_step::pull(std::span<const std::uint64_t> elements) {
  if (training_->servers_ && training_->servers_->is_sparse()) training_->servers_->pull(elements);
}

MUSTER_INLINE bool training_step::pushes(double learning_rate) {
  if (!training_->on_servers_) {
    training_->optimizer_waits_ = training_->sync_.options().mode.method ==
                                  sync_mode::kind::allreduce;  // in other modes the optimizer steps at once
    return false;
  }
  detail::require_learning_rate(learning_rate);
  if (training_->pushed_rate_) {
    throw configuration_error(
        "servers cannot make a second update in a step (a table has one update function); update once, or use "
        "another --mode");
  }
  training_->pushed_rate_ = learning_rate;
  return true;
}

MUSTER_INLINE bool training_step::must_own(const void* updater) {
  auto& own = training_->own_updates_;
  return own.must_repeat && std::exchange(own.owned, updater) != updater;
}

MUSTER_INLINE void training_step::require_owned(const std::function<void(state_parts&)>& describe) {
  struct optimizer_alone {
    const std::function<void(state_parts&)>& describe_optimizer;
    void describe(state_parts& parts) { describe_optimizer(parts); }
  };
  state alone{optimizer_alone{describe}};
  const auto& owned = std::as_const(training_->state_).parts();
  for (const auto& part : std::as_const(alone).parts()) {
    const auto is_same = [&](const state_part& owned_part) {
      return owned_part.name == part.name && owned_part.bytes.data() == part.bytes.data();
    };
    if (std::ranges::any_of(owned, is_same)) continue;
    throw configuration_error("the training does not own the state of an optimizer (its '" + part.name +
                              "' would be lost with a rank, and is in no checkpoint); pass it to the training");
  }
}

// Leaves the parameters as `change` computed them. The first steps show whether a second call gives the same result.
// Later checks find state that `change` updates only now and then.
MUSTER_INLINE void training_step::require_repeatable(const std::function<void()>& change) {
  arena& tensors = training_->on_host("a function cannot update parameters");
  const auto& parts = std::as_const(training_->state_).parts();
  const detail::kept_values before(tensors, parts);
  change();
  const detail::kept_values after(tensors, parts);
  before.restore();
  change();
  if (after.is_same()) return;
  before.restore();
  throw configuration_error(
      "an update gives different parameters when it is called again with the same parameters, gradients and state "
      "(it may keep a momentum, which a failed step does not restore and no checkpoint contains, or release its "
      "gradients); give that state to the training as an owner of state (muster::restored_values), or use an optimizer "
      "of muster");
}

MUSTER_INLINE void training_step::update(const std::function<void()>& change) {
  if (training_->on_servers_) {
    throw configuration_error(
        "a function cannot update parameters in mode ps (the servers apply an optimizer to the workers' pushes); give "
        "update() an optimizer, or use another --mode");
  }
  auto& own = training_->own_updates_;
  arena& tensors = training_->on_host("a function cannot update parameters");
  const auto parameters = tensors.parameters();
  own.before.assign(parameters.begin(), parameters.end());
  const auto restore = [&] { std::ranges::copy(own.before, parameters.begin()); };
  if (!own.wait) ++own.steps;
  detail::collective_watch watch;
  try {
    if (own.must_repeat && std::has_single_bit(own.steps))
      require_repeatable(change);
    else
      change();
  } catch (...) {
    restore();
    throw;
  }
  if (!own.wait) own.after = own.before;  // of several updates in a step, each adds its changes
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (detail::differs(parameters[i], own.before[i])) own.after[i] = parameters[i];
  }
  restore();
  if (watch.called) {
    throw configuration_error(
        "an update called a collective (ranks do not call updates together); call it in the step, before the update");
  }
  if (std::exchange(own.wait, true)) return;
  tensors.update([&own, parameters] {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (detail::differs(own.after[i], own.before[i])) parameters[i] = own.after[i];
    }
    own.wait = false;
  });
}

namespace detail {

// Returns the first number of a batch that is not finite, with its record, for an error; empty if all are finite.
inline std::string first_non_finite(const minibatch& batch, const loader& training_data) {
  for (std::size_t k = 0; batch.schema != nullptr && !batch.bytes.empty() && k < batch.samples.size(); ++k) {
    std::string found;
    auto rest = batch.record(k);
    const auto check = [&]<class T>(T /*kind*/, const std::string& field, std::uint64_t place) {
      T number;
      std::memcpy(&number, rest.data(), sizeof number);
      const auto value = static_cast<double>(number);
      if (!std::isfinite(value) && found.empty())
        found = std::string(std::isnan(value) ? "nan" : "inf") + " in " + field + "[" + std::to_string(place) + "]";
      rest = rest.subspan(sizeof number);
    };
    for (const data::record_field& field : batch.schema->fields) {
      const auto after_field = rest.subspan(field.bytes());
      detail::with_one_of<float16, bfloat16, float, double>(field.type, [&](auto kind) {
        for (std::uint64_t n = 0; n < field.elements(); ++n) check(kind, field.name, n);
      });
      rest = after_field;
    }
    while (batch.schema->form == data::record_form::sparse && !rest.empty()) {
      data::sparse_entry entry;
      std::memcpy(&entry, rest.data(), sizeof entry);
      rest = rest.subspan(offsetof(data::sparse_entry, value));
      check(float{}, "features", entry.index);
    }
    if (!found.empty()) return training_data.source().location_of(batch.samples[k]).to_string() + " has " + found;
  }
  return {};
}

}  // namespace detail

MUSTER_INLINE void training_step::report(std::string_view name, double value, double weight) {
  if (weight != 0) report_sum(name, value * weight, weight);
}

MUSTER_INLINE void training_step::report_sum(std::string_view name, double values, double weight) {
  if (weight == 0) return;
  if (!std::isfinite(values) || !std::isfinite(weight)) {
    std::string reason;
    for (const minibatch& batch : batches_) {
      if (reason.empty()) reason = detail::first_non_finite(batch, training_->data_);
    }
    throw training_error(std::string(name) + " is " + std::to_string(values) + " in step " + std::to_string(number()) +
                         " at rank " + std::to_string(group().rank()) + " (" +
                         (reason.empty() ? "the training has diverged); lower the learning rate, or clip gradients"
                                         : reason + "); leave such records out, or replace the missing values"));
  }
  training_->step_sums_.add(name, values, weight);
}

// ---- sums ----

MUSTER_INLINE void training::sums::add(std::string_view name, double values, double weights) {
  auto at = std::ranges::find(entries, name, &sum::name);
  if (at == entries.end()) at = entries.insert(entries.end(), {std::string(name), 0.0, 0.0});
  at->values += values;
  at->weights += weights;
}

MUSTER_INLINE void training::sums::add(const sums& more) {
  samples += more.samples;
  for (const auto& entry : more.entries) add(entry.name, entry.values, entry.weights);
}

MUSTER_INLINE double epoch_summary::operator[](std::string_view name) const noexcept {
  const auto at = std::ranges::find(reports, name, [](const auto& report) { return std::string_view(report.first); });
  return at == reports.end() ? std::numeric_limits<double>::quiet_NaN() : at->second;
}

// ---- servers ----

MUSTER_INLINE sync_options training::of_ranks(sync_options options) {
  if (options.mode.method == sync_mode::kind::parameter_server) {
    options.mode = {};
    options.codec = {};  // the worker's pushes are encoded instead
  }
  return options;
}

MUSTER_INLINE arena& training::on_host(const char* problem) {
  if (auto* const values = dynamic_cast<arena*>(&sync_.base_arena())) return *values;
  throw configuration_error(std::string(problem) +
                            " (the parameters are on a device); give update() an optimizer of the device, in mode "
                            "allreduce, or train on the host");
}

MUSTER_INLINE std::function<void(std::size_t, std::span<float>)> training::initial_values_on_servers(
    const sync_options& options) {
  auto* const values = dynamic_cast<arena*>(&sync_.base_arena());
  if (!on_servers_ || options.sparse || values == nullptr) return {};
  return values->take_initial();
}

MUSTER_INLINE void training::open_servers(const sync_options& options) {
  if (options.virtual_shards > 0) {
    throw configuration_error(
        "virtual shards cannot be used in mode ps (servers apply the workers' pushes in the order of their arrival); "
        "use mode allreduce");
  }
  if (options.reproducible) {
    throw configuration_error(
        "gradients cannot be summed reproducibly in mode ps (servers apply the workers' pushes in the order of their "
        "arrival); use mode allreduce");
  }
  if (server_update_.empty()) {
    throw configuration_error(
        "mode ps needs an optimizer that servers can apply (the training has none); pass it to the constructor, "
        "or use another mode");
  }
  on_host("mode ps cannot be used").require_floats("mode ps cannot be used");
  servers_ = std::make_shared<detail::parameter_server_backend>(context_, on_host("mode ps cannot be used"),
                                                                server_update_, std::move(initial_values_),
                                                                options.sparse, state_.properties());
  if (servers_->is_server()) on_host("mode ps cannot be used").discard();
  session_ = detail::separate_session(servers_->workers());
}

MUSTER_INLINE std::uint64_t training::bytes_sent() const noexcept {
  return servers_ ? servers_->bytes_pushed() : bytes_sent_;
}

MUSTER_INLINE bool training::is_root() { return servers_ ? servers_->is_first() : session_.group().rank() == 0; }

MUSTER_INLINE bool training::evaluate_once(const std::function<void(step&)>& f) {
  if (!servers_) return session_.evaluate(state_, f);
  bool ended = false;
  if (servers_->is_first()) servers_->evaluate([&] { ended = fixed_session(servers_->alone()).evaluate(state_, f); });
  return ended;
}

// ---- the state ----

MUSTER_INLINE sync_options training::sync_of_job(const context& ctx) {
  return {.codec = compress(ctx.configuration()),
          .mode = sync_mode_of(ctx),
          .virtual_shards = static_cast<int>(ctx.configuration().integer(setting::virtual_shards)),
          .reproducible = ctx.configuration().choice(setting::reproducible, {"off", "on"}) == 1};
}

MUSTER_INLINE std::shared_ptr<detail::speed_balance> training::balance_of(const context& ctx,
                                                                          const sync_options& options) {
  const settings& chosen = ctx.configuration();
  if (chosen.choice(setting::balance, {"equal", "speed"}) == 0) return nullptr;
  if (options.mode.method != sync_mode::kind::allreduce) {
    throw configuration_error(chosen.origin(setting::balance) + " is speed (in mode " + to_string(options.mode) +
                              " ranks do not wait for one another's gradients, or have equal weights); use mode "
                              "allreduce, or --balance equal");
  }
  return std::make_shared<detail::speed_balance>();
}

MUSTER_INLINE void training::refuse_shards_of(const cursor& position) const {
  if (sync_.options().virtual_shards > 0 && position.per_rank != 0) {
    throw configuration_error(
        "batches of each rank cannot be cut into virtual shards (the global batch depends on the number of ranks); "
        "give the size of the global batch");
  }
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
