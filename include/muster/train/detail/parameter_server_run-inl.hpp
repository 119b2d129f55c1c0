// A training among the workers of a parameter server.
#pragma once

#include <muster/train/training_run.hpp>

#include <cstdio>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/train/checkpoint_file.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline void print_line(std::FILE* file, const std::string& line) {
  if (!line.empty()) std::fprintf(file, "%s\n", line.c_str());
}

}  // namespace detail

// Runs the training of a worker. Each worker trains parts of the data that the servers assign, at its own pace. The
// first worker saves.
MUSTER_INLINE void training::training_run::train_on_servers() {
  using kind = ps::lease::kind;
  auto& servers = *owner.servers_;
  if (servers.is_server()) return servers.serve(options.checkpoint);
  if (options.each_group) options.each_group(servers.workers(), false);
  bool began_any = false;
  for (bool is_over = false; !is_over;) {
    const auto& lease = servers.next_lease();
    if (lease.outcome == kind::unknown) {
      begin_on_servers();
      continue;
    }
    is_over = lease.outcome == kind::last || lease.outcome == kind::over;
    move_to_lease(lease);
    if (lease.outcome == kind::granted) began_any = steps({.steps = lease.steps + lease.batches}) || began_any;
    if (owner.state_.epoch_is_over() || (is_over && began_any)) end_epochs_before(lease.from.epoch + 1);
    if (lease.outcome == kind::save) servers.save(options.checkpoint);
  }
  print_ended(began_any);
  conclude();
  if (owner.is_root()) servers.confirm_end();
  servers.finish();
  const auto load = servers.load_report();
  if (prints() && began_any) detail::print_line(options.log, load);
  servers.require_saved();
}

MUSTER_INLINE void training::training_run::begin_on_servers() {
  ps::order_plan plan{
      .from = owner.state_.position().data, .epochs_limit = options.epochs, .steps_limit = options.steps};
  if (!options.checkpoint.empty()) {
    detail::require_checkpoint_folder(options.checkpoint);
    (every.unit == detail::interval::steps ? plan.steps_to_save : plan.epochs_to_save) = every.count;
  }
  const auto saved = owner.servers_->begin(options.resume ? options.checkpoint : "", plan);
  if (!saved) return;
  owner.state_.move_to(saved->position);
  epochs_ended = saved->position.data.epoch + (owner.state_.epoch_is_over() ? 1 : 0);
  print_resumed();
}

// Moves the state to the start of a lease. If the state is already there, the data that was read ahead remains valid.
MUSTER_INLINE void training::training_run::move_to_lease(const ps::lease& lease) {
  if (!epochs_ended) epochs_ended = lease.from.epoch;  // the first worker reports the earlier epochs
  end_epochs_before(lease.from.epoch);
  while (owner.state_.position().data.epoch < lease.from.epoch) owner.state_.next_epoch();
  const auto position = owner.state_.position();
  if (position.steps != lease.steps || position.data != lease.from)
    owner.state_.move_to({.steps = lease.steps, .data = lease.from});
}

// Ends the epochs before `epoch`: this worker has no more data in these epochs, though other workers may have some.
MUSTER_INLINE void training::training_run::end_epochs_before(std::uint64_t epoch) {
  for (; *epochs_ended < epoch; ++*epochs_ended) {
    while (owner.state_.position().data.epoch < *epochs_ended) owner.state_.next_epoch();
    if (!owner.evaluate_once([&](step& current) { end_epoch(current); })) owner.unreported_ = {};
  }
}

MUSTER_INLINE void training::training_run::require_worker_options() const {
  const char* const used = options.max_seconds > 0                                     ? "option max_seconds"
                           : options.stop                                              ? "option stop"
                           : options.patience != 0                                     ? "option patience"
                           : owner.schedule_ != nullptr && owner.schedule_->observes() ? "a plateau schedule"
                                                                                       : nullptr;
  if (used != nullptr) {
    throw configuration_error(std::string(used) +
                              " cannot be used in mode ps (only one worker has the results, and the others do not "
                              "wait for it); leave it out, or use another mode");
  }
  if (owner.data_.follows()) {
    throw configuration_error(std::string(owner.data_.name()) +
                              " cannot be followed in mode ps (the servers assign the records that exist at the "
                              "start); leave out follow and every, or use another mode");
  }
  if (!options.checkpoint.empty() && every.unit != detail::interval::epochs && every.unit != detail::interval::steps) {
    throw configuration_error("checkpoints of servers cannot be written every '" + options.checkpoint_every +
                              R"(' (each worker has its own clock); write "2 epochs" or "500 steps")");
  }
  if (owner.ran_) {
    throw configuration_error(
        "a training in mode ps cannot run again (its servers have ended); give the first run all its epochs");
  }
}

}}  // namespace muster::v0
