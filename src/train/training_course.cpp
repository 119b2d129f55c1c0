// The course of a training: what its ranks have reported, as the state and its checkpoints have it.
#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/error.hpp>

#include "../comm/group/words.hpp"
#include "../core/wire.hpp"
#include "speed_balance.hpp"
#include "training_run.hpp"

namespace muster::inline v0 {
namespace {

// The names that any rank has, in order: a rank without samples may have reported nothing.
std::set<std::string> names_of_all(group& ranks, const std::vector<std::string>& mine) {
  detail::wire_writer writer;
  for (const auto& name : mine) writer.add_text(name);
  std::set<std::string> names;
  for (const auto& said : detail::words_of_all(ranks, writer.take())) {
    detail::wire_reader reader(said);
    while (reader.good() && !reader.rest().empty()) names.emplace(reader.text());
  }
  return names;
}

}  // namespace

// Collective. The time is rank 0's.
training::sums training::one_run::of_all(group& ranks, sums here) const {
  std::vector<std::string> mine;
  for (const auto& one : here.of) mine.push_back(one.name);
  const auto names = names_of_all(ranks, mine);
  if (of.sync_.options().mode.what != sync_mode::kind::allreduce)
    here.samples = allreduce(ranks, here.samples, muster::sum);
  std::vector<double> all;
  for (const auto& name : names) {
    const auto at = std::ranges::find(here.of, name, &sum::name);
    all.push_back(at == here.of.end() ? 0.0 : at->values);
    all.push_back(at == here.of.end() ? 0.0 : at->weights);
  }
  if (!all.empty()) allreduce(ranks, all, muster::sum);
  broadcast(ranks, std::span(&here.seconds, 1), 0);
  here.of.clear();
  std::size_t at = 0;
  for (const auto& name : names) {
    here.add(name, all[at], all[at + 1]);
    at += 2;
  }
  return here;
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
  parts.add(
      "course of the training", state_kind::replicated,
      [this] {
        detail::wire_writer writer;
        writer.add(here_.samples, failures_ + (goes_on_ ? 1 : 0), measured_at_);
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
      [this](std::span<const std::byte> bytes) {
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
        here_.samples = samples;
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
      },
      [this] {
        of_step_ = {};
        own_updates_.wait = false;
        pushed_rate_.reset();
        goes_on_ = false;
      });
}

}  // namespace muster::inline v0
