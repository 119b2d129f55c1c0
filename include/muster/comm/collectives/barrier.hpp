// Barrier: no rank leaves it before all ranks have entered it.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
inline collective_call barrier_call(const options& how) {
  return collective_call({.kind = collective::barrier, .algorithm = how.algorithm}, nullptr, nullptr, 1, {},
                         how.timeout);
}
}  // namespace detail

/// Returns when every rank of the group has called it. Throws mismatch_error, timeout_error, peer_failure.
inline void barrier(group& ranks, const options& how = {}) { detail::run(ranks, detail::barrier_call(how)); }

/// Starts a barrier.
inline work barrier_async(group& ranks, const options& how = {}) {
  return detail::start(ranks, detail::barrier_call(how));
}

}}  // namespace muster::v0
