// All-to-all: every rank sends a piece to every other rank.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class In, class Out>
collective_call all_to_all_call(group& ranks, In& in, Out& out, const collective_options& call_options) {
  const auto n = static_cast<std::size_t>(ranks.size());
  require_size(ranks, collective::all_to_all, "output", std::ranges::size(out), std::ranges::size(in));
  require_size(ranks, collective::all_to_all, "input", std::ranges::size(in), std::ranges::size(in) / n * n);
  return make_call(collective::all_to_all, in, out, std::ranges::size(in) / n, call_options);
}
}  // namespace detail

/// Exchanges pieces: piece r of `out` becomes the piece for this rank in rank r's `in`. Both have the same length at
/// every rank, a multiple of size(), are divided into size() equal pieces, and do not overlap. Throws mismatch_error,
/// timeout_error, peer_failure; configuration_error for a wrong size.
template <element_range In, mutable_element_range Out>
void all_to_all(group& ranks, In&& in, Out&& out, const collective_options& call_options = {}) {
  detail::run(ranks, detail::all_to_all_call(ranks, in, out, call_options));
}

/// Starts an all-to-all; the call owns the buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out>
work all_to_all_async(group& ranks, In&& in, Out&& out, const collective_options& call_options = {}) {
  return detail::start(ranks, detail::all_to_all_call(ranks, in, out, call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
