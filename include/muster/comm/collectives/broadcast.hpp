// Broadcast: one rank's data reaches all.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class R>
[[gnu::always_inline]] inline collective_call broadcast_call(group& ranks, R& data, int root, const options& how) {
  require_root(ranks, collective::broadcast, root);
  return make_call(collective::broadcast, data, data, std::ranges::size(data), how, root);
}
}  // namespace detail

/// The root's `data` replaces that of all other ranks. The same number of elements at every rank.
/// Throws mismatch_error, timeout_error, peer_failure; configuration_error for a root that is no rank.
template <mutable_element_range R>
[[gnu::always_inline]] inline void broadcast(group& ranks, R&& data, int root, const options& how = {}) {
  detail::run(ranks, detail::broadcast_call(ranks, data, root, how));
}

/// The same of one value.
template <transferable T>
requires(!std::ranges::range<T>)
    [[gnu::always_inline]] inline void broadcast(group& ranks, T& value, int root, const options& how = {}) {
  broadcast(ranks, std::span(&value, 1), root, how);
}

/// Starts a broadcast; `data` is the call's until the work is done.
template <lasting_mutable_range R>
[[gnu::always_inline]] inline work broadcast_async(group& ranks, R&& data, int root, const options& how = {}) {
  return detail::start(ranks, detail::broadcast_call(ranks, data, root, how));
}

}}  // namespace muster::v0
