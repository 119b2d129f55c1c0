#pragma once

#include <muster/comm/bootstrap/rank_threads.hpp>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <muster/comm/collectives/call.hpp>
#include <muster/comm/comm_timing.hpp>
#include <muster/comm/group/group_state.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline thread_local group* world_of_thread = nullptr;

// The exception of a rank. If several ranks failed, the lowest rank whose failure was not caused by another rank's
// failure provides the exception of the job.
struct outcome {
  std::exception_ptr thrown;
  bool failed_by_own_cause = false;
};

MUSTER_INLINE rank_of_thread::rank_of_thread(group& world) noexcept : before_(std::exchange(world_of_thread, &world)) {}
MUSTER_INLINE rank_of_thread::~rank_of_thread() { world_of_thread = before_; }
MUSTER_INLINE group* rank_of_thread::world() noexcept { return world_of_thread; }

MUSTER_INLINE void finish(group& world) {
  try {
    run(world, collective_call({.kind = collective::finish}, nullptr, nullptr, 1, {}, exit_timing::success_agreement));
  } catch (const timeout_error&) {
    log(log_level::warning, "other ranks have not finished within 600 s; this rank exits without them");
  }
}

MUSTER_INLINE context::outcome agree_on_exit_status_of_world(group& world, std::exception_ptr failure) {
  context::outcome mine{failure ? exit_status_of(failure) : 0, true, failure ? describe(failure) : ""};
  if (world.size() == 1) return mine;
  auto& state = *world.state();
  if (!failure && !world.failed()) {
    try {
      finish(world);
      mine.prints_failure = world.rank() == 0;
      return mine;
    } catch (...) {
      failure = std::current_exception();
    }
  }
  const auto held = state.guard();
  if (!failure) failure = state.failure();
  const bool failed_by_own_cause = !state.follows();
  if (!state.failed()) state.fail(failure);
  mine = {exit_status_of(failure), failed_by_own_cause, describe(failure)};
  const auto& departures = state.await_departures(deadline_after(exit_timing::failure_agreement));
  for (int rank = world.size() - 1; rank >= 0; --rank) {
    const auto& departed = departures[static_cast<std::size_t>(rank)];
    if (!departed || !departed->failed_by_own_cause) continue;
    if (failed_by_own_cause && rank > world.rank()) continue;
    mine = {departed->status, false, departed->text};
  }
  return mine;
}

MUSTER_INLINE void run_as_threads(int rank_count, const group_settings& settings, const function<void(group&)>& body) {
  const auto hub = std::make_shared<thread_hub>(rank_count);
  std::vector<outcome> outcomes(static_cast<std::size_t>(rank_count));
  std::vector<std::jthread> threads;  // joined even if not all threads could be started
  for (int rank = 0; rank < rank_count; ++rank) {
    threads.emplace_back([&, rank] {
      set_log_rank(rank);
      group world(std::make_unique<thread_transport>(hub, rank), settings);
      const rank_of_thread current_rank(world);
      try {
        body(world);
        if (!world.failed()) finish(world);
      } catch (...) {
        const bool failed_by_own_cause = !world.failed() || !world.state()->follows();
        outcomes[static_cast<std::size_t>(rank)] = {std::current_exception(), failed_by_own_cause};
        const auto held = world.state()->guard();
        world.state()->fail(std::current_exception());
      }
    });
  }
  threads.clear();
  const auto worst = std::ranges::max_element(
      outcomes, {}, [](const outcome& result) { return result.thrown ? 1 + result.failed_by_own_cause : 0; });
  if (worst->thrown) std::rethrow_exception(worst->thrown);
}

}}}  // namespace muster::v0::detail
