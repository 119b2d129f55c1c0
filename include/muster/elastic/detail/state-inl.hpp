#pragma once

#include <muster/elastic/state.hpp>

#include <algorithm>
#include <bit>
#include <set>
#include <string_view>
#include <tuple>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {

MUSTER_INLINE bool state_position::is_beyond(const state_position& other) const noexcept {
  return std::tie(steps, evaluations, runs, data.epoch, data.position) >
         std::tie(other.steps, other.evaluations, other.runs, other.data.epoch, other.data.position);
}

MUSTER_INLINE void state_parts::add(const sampler_handle& sampler) {
  if (cursor_) {
    throw configuration_error(
        "a state has two cursors (a step moves one); make a state for each loader, or train from one");
  }
  cursor_ = sampler;
}

MUSTER_INLINE const std::vector<state_part>& state::parts() {
  if (stage_ == stage::evaluation) return has_.parts_;
  if (stage_ == stage::adoption) {
    throw configuration_error(
        "the state is lost (an owner of its parts failed while it adopted the changes of a step); start again from the "
        "last checkpoint");
  }
  if (stage_ == stage::step) {
    throw configuration_error(
        "a state cannot be described or digested within a step (the step has not made all its changes yet); call "
        "it between two steps, or in an evaluation");
  }
  state_parts described;
  for (const auto& describe : owners_) describe(described);
  std::set<std::string_view> names;
  for (const auto& part : described.parts_) {
    if (part.name.empty()) {
      throw configuration_error("a part of the state has no name (checkpoints identify parts by name); name it");
    }
    if (!names.insert(part.name).second) {
      throw configuration_error("two parts of the state are named '" + part.name +
                                "' (checkpoints identify parts by name); rename one");
    }
  }
  has_ = std::move(described);
  return has_.parts_;
}

MUSTER_INLINE std::uint64_t state::digest() {
  muster::digest all;
  const state_position own_position = position();
  all.add(own_position.steps).add(std::as_bytes(std::span(&own_position.data, 1)));
  for (const auto& part : parts()) {
    if (part.kind != state_kind::replicated) continue;
    all.add(part.name);
    if (part.save)
      all.add(part.save());
    else
      all.add(part.bytes);
  }
  return all.value();
}

MUSTER_INLINE std::vector<compared_property> state::properties() const {
  auto all = has_.properties_;
  for (const auto& part : has_.parts_) {
    if (part.kind != state_kind::replicated) continue;  // each rank has its own
    all.push_back(
        {"part '" + part.name + "'", part.save ? "of any size" : "of " + std::to_string(part.bytes.size()) + " bytes"});
  }
  if (has_.cursor_) {
    for (const auto& [name, value] : has_.cursor_->properties())
      all.push_back({"the " + name + (name.starts_with("dataset") ? "" : " of the data"), value});
  }
  return all;
}

MUSTER_INLINE state_position state::position() const {
  return {steps_, evaluations_, runs_, has_.cursor_ ? has_.cursor_->current() : cursor{}};
}

MUSTER_INLINE training_position state::progress() const {
  if (!has_.cursor_) return {.step = steps_};
  const cursor& at = has_.cursor_->current();
  const double within = at.size == 0 ? 0.0 : static_cast<double>(at.position) / static_cast<double>(at.size);
  return {.step = steps_, .epoch = static_cast<double>(at.epoch) + within};
}

MUSTER_INLINE void state::move_to(const state_position& position) {
  if (has_.cursor_) has_.cursor_->open(position.data);
  steps_ = position.steps;
  evaluations_ = position.evaluations;
  runs_ = position.runs;
}

MUSTER_INLINE bool state::epoch_is_over() const { return has_.cursor_ && has_.cursor_->epoch_is_over(); }

MUSTER_INLINE void state::next_epoch() {
  if (has_.cursor_) has_.cursor_->next_epoch();
}

// Asks the owners for their parts (parts()) at steps 1, 2, 4, 8, ... only: parts appear with the first steps that need
// them, and asking before every step would cost each step time.
MUSTER_INLINE void state::begin_step(bool commits) {
  if (std::has_single_bit(++begun_)) (void)parts();
  shadow_.resize(has_.parts_.size());
  for (std::size_t i = 0; i < has_.parts_.size(); ++i) {
    const auto& part = has_.parts_[i];
    if (part.change != rollback_policy::restore_on_failure) continue;
    if (part.save)
      shadow_[i] = part.save();
    else
      shadow_[i].assign(part.bytes.begin(), part.bytes.end());
  }
  for (const auto& hook : has_.hooks_) {
    if (hook.begin) hook.begin();
  }
  stage_ = commits ? stage::step : stage::evaluation;
}

MUSTER_INLINE void state::before_step(step& current) {
  for (const auto& agree : has_.before_step_functions_) agree(current);
}

MUSTER_INLINE void state::exchange(group& ranks) {
  for (const auto& exchange_changes : has_.exchanges_) exchange_changes(ranks);
}

MUSTER_INLINE void state::commit_step() {
  if (has_.cursor_) has_.cursor_->commit();  // may throw, and then nothing has happened
  stage_ = stage::adoption;
  for (const auto& hook : has_.hooks_) {
    if (hook.adopt) hook.adopt();
  }
  ++steps_;
  stage_ = stage::between_steps;
}

MUSTER_INLINE void state::finish_evaluation() noexcept {
  roll_back();
  ++evaluations_;
}

MUSTER_INLINE void state::roll_back() noexcept {
  if (!may_roll_back()) return;
  stage_ = stage::between_steps;
  for (std::size_t i = 0; i < has_.parts_.size(); ++i) {
    const auto& part = has_.parts_[i];
    if (part.change != rollback_policy::restore_on_failure) continue;
    if (part.load)
      part.load(shadow_[i]);
    else
      std::ranges::copy(shadow_[i], part.bytes.begin());
  }
  for (const auto& hook : has_.hooks_) {
    if (hook.discard) hook.discard();
  }
}

MUSTER_INLINE void state::require_restored() {
  std::set<std::string> known_names;
  for (const auto& part : has_.parts_) known_names.insert(part.name);
  for (const auto& part : parts()) {
    if (part.change != rollback_policy::restore_on_failure || known_names.contains(part.name)) continue;
    throw configuration_error("part '" + part.name +
                              "' of the state was added in a step that failed (there is no copy to restore, and the "
                              "step cannot be run again); describe it before the first step");
  }
}

}}  // namespace muster::v0
