// Broadcast: one rank's data reaches all ranks.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class R>
[[gnu::always_inline]] inline collective_call broadcast_call(group& ranks, R& data, int root,
                                                             const collective_options& call_options) {
  require_root(ranks, collective::broadcast, root);
  return make_call(collective::broadcast, data, data, std::ranges::size(data), call_options, root);
}
}  // namespace detail

/// Replaces the other ranks' `data` by the root's `data`. The number of elements is the same at every rank. Throws
/// mismatch_error, timeout_error, peer_failure; configuration_error for a root that is not a rank.
template <mutable_element_range R>
[[gnu::always_inline]] inline void broadcast(group& ranks, R&& data, int root,
                                             const collective_options& call_options = {}) {
  detail::run(ranks, detail::broadcast_call(ranks, data, root, call_options));
}

/// Broadcasts a single value.
template <transferable T>
requires(!std::ranges::range<T>)
    [[gnu::always_inline]] inline void broadcast(group& ranks, T& value, int root,
                                                 const collective_options& call_options = {}) {
  broadcast(ranks, std::span(&value, 1), root, call_options);
}

/// Starts a broadcast; the call owns `data` until the work is done.
template <lasting_mutable_range R>
[[gnu::always_inline]] inline work broadcast_async(group& ranks, R&& data, int root,
                                                   const collective_options& call_options = {}) {
  return detail::start(ranks, detail::broadcast_call(ranks, data, root, call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
