// Algorithms of collectives from outside of the library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/algorithms/algorithm.hpp>
#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 {

using detail::executor;
using detail::task;

/// One rank's part of a collective: a coroutine that sends, receives and waits by `at`, and neither blocks nor throws
/// for what peers do. `call` lives until it ends. Buffers hold what the collective's own algorithms have: an allreduce
/// begins with this rank's values in `call.out` and ends with the result there; a broadcast has its data in `call.out`;
/// others have `call.in` and `call.out`. `call.count` elements of `call.element_size` bytes, combined by `call.reduce`
/// (`executor::receive_combine`, which keeps the order of ranks) and finished once by `call.reduce.finish`. Scratch
/// memory: `executor::scratch`.
using algorithm_body = task (*)(executor& at, const collective_call& call);

/// Makes `body` an algorithm of that collective under `name` (lower-case letters, digits and underscores), which every
/// group of more than one rank then has: `--algorithm allreduce:NAME`, `options{.algorithm = ...}` with what this
/// returns, rules. The library chooses it by itself only where a rule says so. One name may be registered for several
/// collectives. At every rank the same ones in the same order, before the first context: where ranks differ, the
/// context throws mismatch_error. Throws configuration_error for a name that is taken or is none, for the ninth name,
/// and for `none` and `finish`.
algorithm register_algorithm(collective kind, std::string_view name, algorithm_body body);

/// All algorithms that there are, `automatic` first, then the library's, then those that were registered.
[[nodiscard]] std::vector<algorithm> known_algorithms();

namespace detail {

/// Null for an algorithm of the library.
[[nodiscard]] algorithm_body registered_body(collective kind, algorithm how) noexcept;
/// For ranks to compare: "allreduce:mine broadcast:mine".
[[nodiscard]] std::string registered_algorithms();

}  // namespace detail

}}  // namespace muster::v0
