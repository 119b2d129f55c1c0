#include <muster/elastic/state.hpp>

#include <algorithm>
#include <set>
#include <string_view>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

namespace muster::inline v0 {

void state_parts::add(const live_cursor& at) {
  if (cursor_) {
    throw configuration_error(
        "a state has two cursors (a step moves one); make a state for each loader, or train from one");
  }
  cursor_ = at;
}

const std::vector<state_part>& state::parts() {
  state_parts asked;
  for (const auto& describe : owners_) describe(asked);
  std::set<std::string_view> names;
  for (const auto& part : asked.parts_) {
    if (part.name.empty()) {
      throw configuration_error("a part of the state has no name (checkpoints go by it); name it");
    }
    if (!names.insert(part.name).second) {
      throw configuration_error("two parts of the state are named '" + part.name +
                                "' (checkpoints go by the name); rename one");
    }
  }
  has_ = std::move(asked);
  return has_.parts_;
}

std::uint64_t state::digest() {
  muster::digest all;
  const state_position here = position();
  all.add(here.steps).add(std::as_bytes(std::span(&here.at, 1)));
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

state_position state::position() const {
  return {steps_, evaluations_, runs_, has_.cursor_ ? has_.cursor_->now() : cursor{}};
}

training_position state::progress() const {
  if (!has_.cursor_) return {.step = steps_};
  const cursor& at = has_.cursor_->now();
  const double within = at.size == 0 ? 0.0 : static_cast<double>(at.position) / static_cast<double>(at.size);
  return {.step = steps_, .epoch = static_cast<double>(at.epoch) + within};
}

void state::move_to(const state_position& there) {
  if (has_.cursor_) has_.cursor_->open(there.at);
  steps_ = there.steps;
  evaluations_ = there.evaluations;
  runs_ = there.runs;
}

bool state::epoch_is_over() const { return has_.cursor_ && has_.cursor_->epoch_is_over(); }

void state::next_epoch() {
  if (has_.cursor_) has_.cursor_->next_epoch();
}

void state::begin_step() {
  shadow_.resize(has_.parts_.size());
  for (std::size_t i = 0; i < has_.parts_.size(); ++i) {
    const auto& part = has_.parts_[i];
    if (part.change == in_step::restore_on_failure) shadow_[i].assign(part.bytes.begin(), part.bytes.end());
  }
  for (const auto& hook : has_.hooks_) {
    if (hook.begin) hook.begin();
  }
  in_step_ = true;
}

void state::meet(step& with) {
  for (const auto& one : has_.meetings_) one(with);
}

void state::exchange(group& among) {
  for (const auto& one : has_.exchanges_) one(among);
}

void state::commit_step() {
  if (has_.cursor_) has_.cursor_->commit();  // may throw, and then nothing has happened
  for (const auto& hook : has_.hooks_) {
    if (hook.adopt) hook.adopt();
  }
  ++steps_;
  in_step_ = false;
}

void state::finish_evaluation() noexcept {
  roll_back();
  ++evaluations_;
}

void state::roll_back() noexcept {
  if (!in_step_) return;
  in_step_ = false;
  for (std::size_t i = 0; i < has_.parts_.size(); ++i) {
    const auto& part = has_.parts_[i];
    if (part.change == in_step::restore_on_failure) std::ranges::copy(shadow_[i], part.bytes.begin());
  }
  for (const auto& hook : has_.hooks_) {
    if (hook.discard) hook.discard();
  }
}

}  // namespace muster::inline v0
