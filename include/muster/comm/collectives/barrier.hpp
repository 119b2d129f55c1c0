// Barrier: no rank leaves the barrier before all ranks have entered it.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
inline collective_call barrier_call(const collective_options& call_options) {
  return collective_call({.kind = collective::barrier, .algorithm = call_options.algorithm}, nullptr, nullptr, 1, {},
                         call_options.timeout);
}
}  // namespace detail

/// Returns when every rank of the group has called it. Throws mismatch_error, timeout_error, peer_failure.
inline void barrier(group& ranks, const collective_options& call_options = {}) {
  detail::run(ranks, detail::barrier_call(call_options));
}

/// Starts a barrier.
inline work barrier_async(group& ranks, const collective_options& call_options = {}) {
  return detail::start(ranks, detail::barrier_call(call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
