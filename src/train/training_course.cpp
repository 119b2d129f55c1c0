// The course of a training: what its ranks have reported, as the state and its checkpoints have it.
#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/ps/settings.hpp>
#include <muster/train/settings.hpp>

#include "../comm/group/words.hpp"
#include "../core/wire.hpp"
#include "speed_balance.hpp"
#include "training_run.hpp"

namespace muster { inline namespace v0 {
// Collective. The time is rank 0's, and so are samples that all ranks count alike.
training::sums training::one_run::of_all(group& ranks, const sums& here) const {
  const bool is_first = ranks.rank() == 0;
  const bool counts = is_first || of.sync_.options().mode.what != sync_mode::kind::allreduce;
  detail::wire_writer writer;
  writer.add(counts ? here.samples : 0, is_first ? here.seconds : 0.0);
  for (const auto& one : here.of) {
    writer.add_text(one.name);
    writer.add(one.values, one.weights);
  }
  sums all;
  for (const auto& said : detail::words_of_all(ranks, writer.take())) {
    detail::wire_reader reader(said);
    all.samples += reader.number();
    all.seconds += reader.number<double>();
    while (!reader.rest().empty()) {
      const auto name = reader.text();
      const auto values = reader.number<double>();
      all.add(name, values, reader.number<double>());
    }
  }
  std::ranges::sort(all.of, {}, &sum::name);
  return all;
}

// Before each save, so that the state has them.
void training::one_run::sum_up(group& ranks) {
  of.saved_ = of_all(ranks, of.here_);
  of.saved_at_ = of.state_.steps();
}

// Rank 0 goes on with the sums of all, the others with none.
void training::one_run::take_sums(const group& ranks) {
  if (of.saved_at_ != of.state_.steps()) return;
  of.here_ = of.saved_;
  if (ranks.rank() == 0) return;
  of.here_.of.clear();
  if (of.sync_.options().mode.what != sync_mode::kind::allreduce) of.here_.samples = 0;
}

void training::describe(state_parts& parts) {
  parts.add_property("--compress", context_.configuration().value(setting::compress));
  parts.add_property("--balance", context_.configuration().value(setting::balance));
  // Else samples are this rank's own, and no part of what all ranks have alike: a save has them in its sums.
  const bool counts_all = sync_.options().mode.what == sync_mode::kind::allreduce;
  parts.add(
      "course of the training", state_kind::replicated,
      [this, counts_all] {
        detail::wire_writer writer;
        writer.add(counts_all ? here_.samples : 0, failures_ + (goes_on_ ? 1 : 0), measured_at_);
        writer.add(saved_at_, saved_.samples, saved_.seconds, std::uint64_t{saved_.of.size()});
        for (const auto& one : saved_.of) {
          writer.add_text(one.name);
          writer.add(one.values, one.weights);
        }
        for (const auto& one : epochs_) {
          writer.add(one.epoch, one.samples, one.seconds, std::uint64_t{one.reports.size()});
          for (const auto& [name, value] : one.reports) {
            writer.add_text(name);
            writer.add(value);
          }
        }
        return writer.bytes();
      },
      [this, counts_all](std::span<const std::byte> bytes) {
        detail::wire_reader reader(bytes);
        const auto samples = reader.number();
        const auto failures = reader.number();
        const auto measured_at = reader.number();
        const auto saved_at = reader.number();
        sums saved;
        saved.samples = reader.number();
        saved.seconds = reader.number<double>();
        for (auto left = reader.count(3 * sizeof(double)); left > 0; --left) {
          const auto name = reader.text();
          const auto values = reader.number<double>();
          saved.add(name, values, reader.number<double>());
        }
        std::vector<epoch_summary> read;
        while (reader.good() && !reader.rest().empty()) {
          epoch_summary one{reader.number(), reader.number(), reader.number<double>()};
          for (auto left = reader.count(2 * sizeof(double)); left > 0; --left) {
            std::string name(reader.text());
            one.reports.emplace_back(std::move(name), reader.number<double>());
          }
          read.push_back(std::move(one));
        }
        if (!reader.whole()) {
          throw configuration_error(
              "these epochs of a training cannot be used (they are of another version); use the muster they were "
              "written with");
        }
        epochs_ = std::move(read);
        measured_at_ = measured_at;
        saved_at_ = saved_at;
        saved_ = std::move(saved);
        if (counts_all) here_.samples = samples;
        failures_ = failures;
      });
  if (balance_) parts.meet([this](step& with) { balance_->meet(with); });
  if (on_servers_) {
    parts.exchange([this](group&) {
      if (pushed_rate_) served_->push(*std::exchange(pushed_rate_, std::nullopt));
      served_->end_clock();
    });
  }
  parts.hook(
      [this] {
        here_.add(of_step_);
        bytes_sent_ += sync_.bytes_sent();
        if (tracker_ != nullptr) tracker_->add_samples(of_step_.own_samples);
        of_step_ = {};
        optimizer_waits_ = false;
      },
      [this] {
        of_step_ = {};
        optimizer_waits_ = false;
        own_updates_.wait = false;
        pushed_rate_.reset();
        goes_on_ = false;
      });
}

}}  // namespace muster::v0
