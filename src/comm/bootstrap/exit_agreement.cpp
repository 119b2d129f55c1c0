#include "exit_agreement.hpp"

#include <muster/comm/collectives/call.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "../group/group_state.hpp"
#include "../timing.hpp"

namespace muster::inline v0::detail {

void finish(group& world) {
  try {
    run(world, collective_call({.kind = collective::finish}, nullptr, nullptr, 1, {}, exit_timing::success_agreement));
  } catch (const timeout_error&) {
    log(log_level::warning, "other ranks have not finished within 600 s; this rank exits without them");
  }
}

context::outcome settle_world(group& world, std::exception_ptr failure) {
  context::outcome mine{failure ? exit_status_of(failure) : 0, true, failure ? describe(failure) : ""};
  if (world.size() == 1) return mine;
  auto& state = *world.state();
  if (!failure && !state.failed()) {
    try {
      finish(world);
      mine.speaker = world.rank() == 0;
      return mine;
    } catch (...) {
      failure = std::current_exception();
    }
  }
  const auto held = state.guard();
  if (!failure) failure = state.failure();
  const bool first_hand = !state.follows();
  if (!state.failed()) state.fail(failure);
  mine = {exit_status_of(failure), first_hand, describe(failure)};
  const auto& left = state.await_departures(deadline_after(exit_timing::failure_agreement));
  for (int rank = world.size() - 1; rank >= 0; --rank) {
    const auto& other = left[static_cast<std::size_t>(rank)];
    if (!other || !other->first_hand) continue;
    if (first_hand && rank > world.rank()) continue;
    mine = {other->status, false, other->text};
  }
  return mine;
}

}  // namespace muster::inline v0::detail
