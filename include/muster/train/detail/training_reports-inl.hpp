// The reports of a training's ranks, and their form in the state and its checkpoints.
#pragma once

#include <muster/train/training_run.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/comm/group/words.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>
#include <muster/ps/ps_settings.hpp>
#include <muster/train/speed_balance.hpp>
#include <muster/train/train_settings.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
// Sums over the ranks. Collective. Rank 0 alone provides the time, and also the samples where all ranks count the same
// samples.
MUSTER_INLINE training::sums training::training_run::sum_over_ranks(group& ranks, const sums& local) const {
  const bool is_first = ranks.rank() == 0;
  const bool counts = is_first || !counts_all_samples(owner);
  detail::wire_writer writer;
  writer.add(counts ? local.samples : 0, is_first ? local.seconds : 0.0);
  for (const auto& entry : local.entries) {
    writer.add_text(entry.name);
    writer.add(entry.values, entry.weights);
  }
  sums all;
  for (const auto& rank_text : detail::allgather_strings(ranks, writer.take())) {
    detail::wire_reader reader(rank_text);
    all.samples += reader.number();
    all.seconds += reader.number<double>();
    while (!reader.rest().empty()) {
      const auto name = reader.text();
      const auto values = reader.number<double>();
      all.add(name, values, reader.number<double>());
    }
  }
  std::ranges::sort(all.entries, {}, &sum::name);
  return all;
}

// Updates the sums that the state saves. Called before each save.
MUSTER_INLINE void training::training_run::update_saved_sums(group& ranks) {
  owner.saved_ = sum_over_ranks(ranks, owner.unreported_);
  owner.saved_at_ = owner.state_.steps();
}

// Restores the saved sums: rank 0 continues with the total sums, the other ranks with none.
MUSTER_INLINE void training::training_run::restore_sums(const group& ranks) {
  if (owner.saved_at_ != owner.state_.steps()) return;
  owner.unreported_ = owner.saved_;
  if (ranks.rank() == 0) return;
  owner.unreported_.entries.clear();
  if (!counts_all_samples(owner)) owner.unreported_.samples = 0;
}

// Returns the course of a training as the state has it.
MUSTER_INLINE std::vector<std::byte> training::training_run::saved_course(const training& source) {
  detail::wire_writer writer;
  writer.add(counts_all_samples(source) ? source.unreported_.samples : 0,
             source.failures_ + (source.continues_ ? 1 : 0), source.measured_at_);
  writer.add(source.saved_at_, source.saved_.samples, source.saved_.seconds,
             std::uint64_t{source.saved_.entries.size()});
  for (const auto& entry : source.saved_.entries) {
    writer.add_text(entry.name);
    writer.add(entry.values, entry.weights);
  }
  for (const auto& entry : source.epochs_) {
    writer.add(entry.epoch, entry.samples, entry.seconds, std::uint64_t{entry.reports.size()});
    for (const auto& [name, value] : entry.reports) {
      writer.add_text(name);
      writer.add(value);
    }
  }
  return writer.bytes();
}

// Sets the course of a training from the bytes of saved_course.
MUSTER_INLINE void training::training_run::restore_course(training& target, std::span<const std::byte> bytes) {
  detail::wire_reader reader(bytes);
  std::uint64_t samples = 0, failures = 0, measured_at = 0, saved_at = 0;
  sums saved;
  reader.read(samples, failures, measured_at, saved_at, saved.samples, saved.seconds);
  for (auto remaining = reader.count(3 * sizeof(double)); remaining > 0; --remaining) {
    const auto name = reader.text();
    const auto values = reader.number<double>();
    saved.add(name, values, reader.number<double>());
  }
  std::vector<epoch_summary> read;
  while (reader.good() && !reader.rest().empty()) {
    epoch_summary summary{reader.number(), reader.number(), reader.number<double>()};
    for (auto remaining = reader.count(2 * sizeof(double)); remaining > 0; --remaining) {
      std::string name(reader.text());
      summary.reports.emplace_back(std::move(name), reader.number<double>());
    }
    read.push_back(std::move(summary));
  }
  if (!reader.is_complete()) {
    throw configuration_error(
        "these epochs of a training cannot be used (another version wrote them); use the version of muster that "
        "wrote them");
  }
  target.epochs_ = std::move(read);
  target.measured_at_ = measured_at;
  target.saved_at_ = saved_at;
  target.saved_ = std::move(saved);
  if (counts_all_samples(target)) target.unreported_.samples = samples;
  target.failures_ = failures;
}

MUSTER_INLINE void training::describe(state_parts& parts) {
  parts.add_property("--compress", context_.configuration().value(setting::compress));
  parts.add_property("--balance", context_.configuration().value(setting::balance));
  parts.add(
      "course of the training", state_kind::replicated, [this] { return training_run::saved_course(*this); },
      [this](std::span<const std::byte> bytes) { training_run::restore_course(*this, bytes); });
  if (balance_) parts.before_step([this](step& current) { balance_->exchange_speeds_if_due(current); });
  if (on_servers_) {
    parts.exchange([this](group&) {
      if (pushed_rate_) servers_->push(*std::exchange(pushed_rate_, std::nullopt));
      servers_->end_clock();
    });
  }
  parts.hook(
      [this] {
        unreported_.add(step_sums_);
        bytes_sent_ += sync_.bytes_sent();
        if (tracker_ != nullptr) tracker_->add_samples(step_sums_.own_samples);
        step_sums_ = {};
        optimizer_waits_ = false;
      },
      [this] {
        step_sums_ = {};
        optimizer_waits_ = false;
        own_updates_.wait = false;
        pushed_rate_.reset();
        continues_ = false;
      });
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
