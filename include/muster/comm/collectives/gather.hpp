// Gather: every rank's data reaches one.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster::inline v0 {

namespace detail {
template <class In, class Out>
collective_call gather_call(group& ranks, In& in, Out& out, int root, const options& how) {
  using T = element_of<In>;
  static_assert(std::same_as<T, element_of<Out>>, "gather: both buffers hold the same type");
  require_root(collective::gather, root, ranks.size());
  if (ranks.rank() == root) {
    require_size(collective::gather, "output", std::ranges::size(out),
                 std::ranges::size(in) * static_cast<std::size_t>(ranks.size()));
  }
  return make_call<T>(collective::gather, input(in), output(out), std::ranges::size(in), how, root);
}
}  // namespace detail

/// The root's `out` becomes all ranks' `in`, one behind the other. `in` has the same length at every rank; `out`,
/// size() times as long, is used at the root alone and may be empty elsewhere. Throws mismatch_error, timeout_error,
/// peer_failure; configuration_error for a wrong root or size.
template <element_range In, mutable_element_range Out>
[[gnu::always_inline]] inline void gather(group& ranks, In&& in, Out&& out, int root, const options& how = {}) {
  detail::check_constant_root(root);
  detail::run(ranks, detail::gather_call(ranks, in, out, root, how));
}

/// Starts a gather; the buffers are the call's until the work is done.
template <element_range In, mutable_element_range Out>
requires lasting_element_range<In> && lasting_element_range<Out>
[[gnu::always_inline]] inline work gather_async(group& ranks, In&& in, Out&& out, int root, const options& how = {}) {
  detail::check_constant_root(root);
  return detail::start(ranks, detail::gather_call(ranks, in, out, root, how));
}

}  // namespace muster::inline v0
