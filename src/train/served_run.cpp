// A training among the workers of a parameter server.
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "../elastic/rank_comparison.hpp"
#include "checkpoint_file.hpp"
#include "training_run.hpp"

namespace muster { inline namespace v0 {

// Each worker goes through parts of the data that the servers hand out, at its own pace; the first one saves.
void training::one_run::train_on_servers() {
  using kind = ps::lease::kind;
  auto& servers = *of.served_;
  if (servers.is_server()) return servers.serve(options.checkpoint);
  require_equal_workers();
  if (options.each_group) options.each_group(servers.workers(), false);
  bool began_any = false;
  for (bool is_over = false; !is_over;) {
    const auto& lease = servers.next_lease();
    if (lease.what == kind::unknown) {
      begin_on_servers();
      continue;
    }
    is_over = lease.what == kind::last || lease.what == kind::over;
    go_to(lease);
    if (lease.what == kind::granted) began_any = steps({.steps = lease.steps + lease.batches}) || began_any;
    if (of.state_.epoch_is_over() || (is_over && began_any)) end_epochs_before(lease.from.epoch + 1);
    if (lease.what == kind::save) servers.save(options.checkpoint);
  }
  say_ended(began_any);
  conclude();
  if (of.is_root()) servers.pass_end();
  servers.finish();
  servers.require_saved();
}

// One that has died meanwhile is no reason to end: the others train on.
void training::one_run::require_equal_workers() {
  try {
    detail::require_equal_properties(of.served_->workers(), of.state_.properties());
  } catch (const peer_failure& gone) {
    log(log_level::debug, std::string("the workers were not compared: ") + gone.what());
  } catch (const timeout_error& late) {
    log(log_level::warning, std::string("the workers were not compared: ") + late.what());
  }
}

void training::one_run::begin_on_servers() {
  ps::order_plan plan{.from = of.state_.position().at, .epochs_limit = options.epochs, .steps_limit = options.steps};
  if (!options.checkpoint.empty()) {
    detail::require_checkpoint_folder(options.checkpoint);
    (every.unit == detail::interval::steps ? plan.steps_to_save : plan.epochs_to_save) = every.count;
  }
  const auto saved = of.served_->begin(options.resume ? options.checkpoint : "", plan);
  if (!saved) return;
  of.state_.move_to(saved->at);
  epochs_ended = saved->at.at.epoch + (of.state_.epoch_is_over() ? 1 : 0);
  say_resumed();
}

// Where the state is there already, what was read ahead stays.
void training::one_run::go_to(const ps::lease& lease) {
  if (!epochs_ended) epochs_ended = lease.from.epoch;  // those before are not this worker's to report
  end_epochs_before(lease.from.epoch);
  while (of.state_.position().at.epoch < lease.from.epoch) of.state_.next_epoch();
  const auto here = of.state_.position();
  if (here.steps != lease.steps || here.at != lease.from) of.state_.move_to({.steps = lease.steps, .at = lease.from});
}

// This worker has no more of them; others may.
void training::one_run::end_epochs_before(std::uint64_t epoch) {
  for (; *epochs_ended < epoch; ++*epochs_ended) {
    while (of.state_.position().at.epoch < *epochs_ended) of.state_.next_epoch();
    if (!of.evaluate_once([&](step& now) { end_epoch(now); })) of.here_ = {};
  }
}

void training::one_run::refuse_what_workers_cannot() const {
  const char* const used = options.max_seconds > 0                               ? "option max_seconds"
                           : options.stop                                        ? "option stop"
                           : options.patience != 0                               ? "option patience"
                           : of.schedule_ != nullptr && of.schedule_->observes() ? "a plateau schedule"
                                                                                 : nullptr;
  if (used != nullptr) {
    throw configuration_error(std::string(used) +
                              " cannot be used in mode ps (one worker alone sees the results, and the others do not "
                              "wait for it); leave it out, or use another mode");
  }
  if (of.data_.follows()) {
    throw configuration_error(std::string(of.data_.name()) +
                              " cannot be followed in mode ps (the servers hand out the records that there are at the "
                              "start); leave out follow and every, or use another mode");
  }
  if (!options.checkpoint.empty() && every.unit != detail::interval::epochs && every.unit != detail::interval::steps) {
    throw configuration_error("checkpoints of servers cannot be written every '" + options.checkpoint_every +
                              R"(' (each worker has a clock of its own); write "2 epochs" or "500 steps")");
  }
  if (of.ran_) {
    throw configuration_error(
        "a training in mode ps cannot run again (its servers have ended); give the first run all its epochs");
  }
}

}}  // namespace muster::v0
