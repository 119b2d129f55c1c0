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
#include <muster/train/settings.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/sync/sync_mode.hpp>

#include "kept_values.hpp"
#include "optimizers/optimizer_of.hpp"
#include "served.hpp"
#include "speed_balance.hpp"

namespace muster { inline namespace v0 {
namespace {

// Hears whether its thread calls a collective.
struct collective_watch final : event_sink {
  void record(const event& event) noexcept override {
    if (event.what == activity::communication) called = true;
    if (event_sink* const other = installed.former()) other->record(event);
  }
  bool called = false;
  scoped_event_sink installed{*this};
};

bool is_other(float one, float other) {
  return std::bit_cast<std::uint32_t>(one) != std::bit_cast<std::uint32_t>(other);
}

}  // namespace

// ---- a step ----

training_step::training_step(training& of, const step& now)
    : step(now.group(), now.generation(), now.number(), now), of_(&of) {}

batch_shard training_step::shard() const noexcept {
  const bool by_lease = of_->served_ && &group() == &of_->served_->workers();
  batch_shard mine = by_lease ? of_->served_->shard() : step::shard();
  mine.virtual_shards = of_->sync_.options().virtual_shards;
  if (of_->balance_) mine.weights = of_->balance_->weights(generation());
  return mine;
}

std::span<const minibatch> training_step::parts_of(const minibatch& batch) {
  const batch_shard mine = shard();
  if (mine.virtual_shards == 0) return {&batch, 1};
  if (batch.left_out > 0) {
    throw configuration_error("records " + std::to_string(batch.position) + " and on of epoch " +
                              std::to_string(batch.epoch + 1) +
                              " cannot be cut into virtual shards (bad records were left out of them); stop at bad "
                              "records, or use no virtual shards");
  }
  const auto before = part_of(batch.global_size, mine).first;  // samples of other ranks
  const auto own = part_of(static_cast<std::uint64_t>(mine.virtual_shards), {mine.rank, mine.world, 0, mine.weights});
  of_->shards_.clear();
  for (auto shard = own.first; shard < own.last; ++shard) {
    const auto [first, last] = part_of(batch.global_size, {static_cast<int>(shard), mine.virtual_shards});
    of_->shards_.push_back(batch.part({first - before, last - before}));
  }
  return of_->shards_;
}

std::span<const minibatch> training_step::micro_batches(std::span<const minibatch> batches) const {
  if (shard().virtual_shards > 0) {
    throw configuration_error(
        "micro-batches cannot be used with virtual shards (each shard is a pass of its own); give backward() the whole "
        "batch, and more shards");
  }
  return batches;
}

// The rows of others are zeros here, so that a sum of all ranks only gathers them, in whatever order it adds.
void training_step::mean_over_shards(std::span<const float> mine, std::span<float> means) {
  const batch_shard here = shard();
  const auto [first, last] =
      part_of(static_cast<std::uint64_t>(here.virtual_shards), {here.rank, here.world, 0, here.weights});
  const std::size_t width = means.size();
  if (here.virtual_shards == 0 || mine.size() != static_cast<std::size_t>(last - first) * width) {
    throw configuration_error("a mean over virtual shards cannot be taken of " + std::to_string(mine.size()) +
                              " values (this rank has " + std::to_string(last - first) + " of the " +
                              std::to_string(here.virtual_shards) + " shards, and each has " + std::to_string(width) +
                              "); use virtual shards, and give a row for each");
  }
  std::vector<float> rows(static_cast<std::size_t>(here.virtual_shards) * width);
  std::ranges::copy(mine, rows.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * width));
  allreduce(group(), rows, muster::sum);
  for (std::size_t k = 0; k < width; ++k) {
    double all = 0;
    for (std::size_t at = k; at < rows.size(); at += width) all += double{rows[at]};
    means[k] = static_cast<float>(all / here.virtual_shards);
  }
}

backward_pass training_step::begin(int passes) {
  if (of_->optimizer_waits_) {
    throw configuration_error(
        "a second backward pass cannot begin (an optimizer steps by the gradients of the first when the step commits); "
        "make it a step of its own");
  }
  const batch_shard here = shard();
  if (here.virtual_shards > 0) passes = std::max(passes, 1);  // a rank without shards
  of_->sync_.deal_by(here.weights);
  if (!of_->served_) return of_->sync_.begin(group(), passes);
  if (!of_->served_->is_sparse()) of_->served_->pull();
  return of_->sync_.begin(of_->served_->alone(), passes);
}

void training_step::count(std::span<const minibatch> batches, backward_pass& pass) {
  std::uint64_t samples = 0;
  for (const minibatch& batch : batches) samples += batch.samples.size();
  batches_.assign(batches.begin(), batches.end());
  of_->of_step_.own_samples += samples;
  // A worker pushes its part of the gradient of the global batch.
  pass.add_samples(of_->on_servers_ && !batches.empty() ? batches.front().global_size : samples);
}

void training_step::count(const backward_pass& pass) {
  of_->of_step_.samples += of_->on_servers_ ? of_->of_step_.own_samples : pass.samples();
}

void training_step::pull(std::span<const std::uint64_t> elements) {
  if (of_->served_ && of_->served_->is_sparse()) of_->served_->pull(elements);
}

bool training_step::pushes(double learning_rate) {
  if (!of_->on_servers_) {
    of_->optimizer_waits_ = of_->sync_.options().mode.what == sync_mode::kind::allreduce;  // others step at once
    return false;
  }
  detail::require_learning_rate(learning_rate);
  if (of_->pushed_rate_) {
    throw configuration_error(
        "a second update in a step cannot be made by servers (a table has one update function); update once, or use "
        "another --mode");
  }
  of_->pushed_rate_ = learning_rate;
  return true;
}

bool training_step::must_own(const void* by) {
  auto& own = of_->own_updates_;
  return own.must_repeat && std::exchange(own.owned, by) != by;
}

void training_step::require_owned(const std::function<void(state_parts&)>& describe) {
  struct optimizer_alone {
    const std::function<void(state_parts&)>& of;
    void describe(state_parts& parts) { of(parts); }
  };
  state alone{optimizer_alone{describe}};
  const auto& owned = std::as_const(of_->state_).parts();
  for (const auto& part : std::as_const(alone).parts()) {
    const auto is_same = [&](const state_part& one) {
      return one.name == part.name && one.bytes.data() == part.bytes.data();
    };
    if (std::ranges::any_of(owned, is_same)) continue;
    throw configuration_error("an optimizer updates that the training does not own (its '" + part.name +
                              "' would be lost with a rank, and is in no checkpoint); pass it to the training");
  }
}

// Leaves the parameters as `by` made them. Whether it does the same again shows in the first steps; later ones are for
// what it does now and then.
void training_step::require_repeatable(const std::function<void()>& by) {
  arena& values = of_->on_host("a function cannot update parameters");
  const auto& parts = std::as_const(of_->state_).parts();
  const detail::kept_values before(values, parts);
  by();
  const detail::kept_values after(values, parts);
  before.put_back();
  by();
  if (after.is_same()) return;
  before.put_back();
  throw configuration_error(
      "an update gives other parameters when it is called again with the same parameters, gradients and state "
      "(it keeps a momentum, say, which a step that fails does not restore and no checkpoint has, or lets go of its "
      "gradients); give that to the training as an owner of state (muster::restored_values), or use an optimizer of "
      "muster");
}

void training_step::update(const std::function<void()>& by) {
  if (of_->on_servers_) {
    throw configuration_error(
        "a function cannot update parameters in mode ps (the servers apply an optimizer to what workers push); give "
        "update() an optimizer, or use another --mode");
  }
  auto& own = of_->own_updates_;
  arena& values = of_->on_host("a function cannot update parameters");
  const auto parameters = values.parameters();
  own.before.assign(parameters.begin(), parameters.end());
  const auto put_back = [&] { std::ranges::copy(own.before, parameters.begin()); };
  if (!own.wait) ++own.steps;
  collective_watch watch;
  try {
    if (own.must_repeat && std::has_single_bit(own.steps))
      require_repeatable(by);
    else
      by();
  } catch (...) {
    put_back();
    throw;
  }
  if (!own.wait) own.after = own.before;  // of several in a step, each has what it changed
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (is_other(parameters[i], own.before[i])) own.after[i] = parameters[i];
  }
  put_back();
  if (watch.called) {
    throw configuration_error(
        "an update called a collective (each rank updates alone); call it in the step, before the update");
  }
  if (std::exchange(own.wait, true)) return;
  values.update([&own, parameters] {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (is_other(own.after[i], own.before[i])) parameters[i] = own.after[i];
    }
    own.wait = false;
  });
}

namespace {

// Returns the first number of a batch that is not finite, with its record, for an error; empty if all are finite.
std::string number_that_is_none(const minibatch& batch, const loader& from) {
  for (std::size_t k = 0; batch.schema != nullptr && !batch.bytes.empty() && k < batch.samples.size(); ++k) {
    std::string found;
    auto rest = batch.record(k);
    const auto look = [&]<class T>(T /*kind*/, const std::string& field, std::uint64_t place) {
      T number;
      std::memcpy(&number, rest.data(), sizeof number);
      const auto value = static_cast<double>(number);
      if (!std::isfinite(value) && found.empty())
        found = std::string(std::isnan(value) ? "nan" : "inf") + " in " + field + "[" + std::to_string(place) + "]";
      rest = rest.subspan(sizeof number);
    };
    for (const record_field& field : batch.schema->fields) {
      const auto behind = rest.subspan(field.bytes());
      detail::with_one_of<float16, bfloat16, float, double>(field.type, [&](auto kind) {
        for (std::uint64_t n = 0; n < field.elements(); ++n) look(kind, field.name, n);
      });
      rest = behind;
    }
    while (batch.schema->form == record_form::sparse && !rest.empty()) {
      sparse_entry entry;
      std::memcpy(&entry, rest.data(), sizeof entry);
      rest = rest.subspan(offsetof(sparse_entry, value));
      look(float{}, "features", entry.index);
    }
    if (!found.empty()) return from.source().where(batch.samples[k]).to_string() + " has " + found;
  }
  return {};
}

}  // namespace

void training_step::report(std::string_view name, double value, double weight) {
  if (weight != 0) report_sum(name, value * weight, weight);
}

void training_step::report_sum(std::string_view name, double values, double weight) {
  if (weight == 0) return;
  if (!std::isfinite(values) || !std::isfinite(weight)) {
    std::string why;
    for (const minibatch& batch : batches_) {
      if (why.empty()) why = number_that_is_none(batch, of_->data_);
    }
    throw training_error(std::string(name) + " is " + std::to_string(values) + " in step " + std::to_string(number()) +
                         " at rank " + std::to_string(group().rank()) + " (" +
                         (why.empty() ? "the training has diverged); lower the learning rate, or clip gradients"
                                      : why + "); leave such records out, or fill in what is missing"));
  }
  of_->of_step_.add(name, values, weight);
}

// ---- sums ----

void training::sums::add(std::string_view name, double values, double weights) {
  auto at = std::ranges::find(of, name, &sum::name);
  if (at == of.end()) at = of.insert(of.end(), {std::string(name), 0.0, 0.0});
  at->values += values;
  at->weights += weights;
}

void training::sums::add(const sums& more) {
  samples += more.samples;
  for (const auto& one : more.of) add(one.name, one.values, one.weights);
}

double epoch_summary::operator[](std::string_view name) const noexcept {
  const auto at = std::ranges::find(reports, name, [](const auto& one) { return std::string_view(one.first); });
  return at == reports.end() ? std::numeric_limits<double>::quiet_NaN() : at->second;
}

// ---- servers ----

sync_options training::of_ranks(sync_options how) {
  if (how.mode.what == sync_mode::kind::parameter_server) {
    how.mode = {};
    how.codec = {};  // pushes are encoded
  }
  return how;
}

arena& training::on_host(const char* what) {
  if (auto* const values = dynamic_cast<arena*>(&sync_.of())) return *values;
  throw configuration_error(std::string(what) +
                            " (the parameters are on a device); give update() an optimizer of the device, in mode "
                            "allreduce, or train on the host");
}

void training::open_servers(const sync_options& how) {
  if (how.virtual_shards > 0) {
    throw configuration_error(
        "virtual shards cannot be used in mode ps (servers apply what workers push in the order in which it comes); "
        "use "
        "mode allreduce");
  }
  if (server_update_.empty()) {
    throw configuration_error(
        "mode ps needs an optimizer that servers can apply (the training was given none); pass it to the constructor, "
        "or use another mode");
  }
  served_ = std::make_shared<detail::served>(context_, on_host("mode ps cannot be used"), server_update_, how.sparse);
  session_ = detail::separate_session(served_->workers());
}

std::uint64_t training::bytes_sent() const noexcept { return served_ ? served_->bytes_pushed() : bytes_sent_; }

bool training::is_root() { return served_ ? served_->is_first() : session_.group().rank() == 0; }

bool training::evaluate_once(const std::function<void(step&)>& f) {
  if (!served_) return session_.evaluate(state_, f);
  bool ended = false;
  if (served_->is_first()) served_->evaluate([&] { ended = fixed_session(served_->alone()).evaluate(state_, f); });
  return ended;
}

// ---- the state ----

sync_options training::sync_of_job(const context& of) {
  return {.codec = compress(of.configuration()),
          .mode = sync_mode_of(of),
          .virtual_shards = static_cast<int>(of.configuration().integer(setting::virtual_shards))};
}

std::shared_ptr<detail::speed_balance> training::balance_of(const context& of, const sync_options& how) {
  const settings& chosen = of.configuration();
  if (chosen.choice(setting::balance, {"equal", "speed"}) == 0) return nullptr;
  if (how.mode.what != sync_mode::kind::allreduce) {
    throw configuration_error(chosen.origin(setting::balance) + " is speed (in mode " + to_string(how.mode) +
                              " ranks do not wait for one another's gradients, or count alike); use mode allreduce, or "
                              "--balance equal");
  }
  return std::make_shared<detail::speed_balance>();
}

void training::refuse_shards_of(const cursor& data) const {
  if (sync_.options().virtual_shards > 0 && data.per_rank != 0) {
    throw configuration_error(
        "batches of each rank cannot be cut into virtual shards (the global batch depends on the number of ranks); "
        "give the size of the global batch");
  }
}

}}  // namespace muster::v0
