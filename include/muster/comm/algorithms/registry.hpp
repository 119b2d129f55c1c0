// Registration of algorithms from outside the library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/algorithms/algorithm.hpp>
#include <muster/comm/algorithms/chooser.hpp>
#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 {

/// One rank's part of a collective: a coroutine that sends, receives and waits through `ctx`, and neither blocks nor
/// throws because of peers. `call` lives until the coroutine ends. The buffers have the same content as for the
/// collective's own algorithms: an allreduce begins with this rank's values in `call.out` and ends with the result in
/// it. A broadcast has its data in `call.out`. Other collectives use `call.in` and `call.out`. The larger buffer holds
/// `call.count` elements of `call.element_size` bytes; in a gather, scatter or all_to_all `call.count` is the elements
/// of a single piece. `collective_context::receive_combine` combines by `call.reduce`, with the value of the lower rank
/// on the left, and each result is finished once by `call.reduce.finish`. Scratch memory:
/// `collective_context::scratch`.
using algorithm_body = task (*)(collective_context& ctx, const collective_call& call);

/// Registers `body` as an algorithm for that collective under `name` (lower-case letters, digits and underscores) for
/// every group of more than one rank. Afterwards `--algorithm allreduce:NAME`, `collective_options{.algorithm = ...}`
/// with the returned value, and rules can select the algorithm. The library chooses the algorithm by itself only if a
/// rule names it. A name may be registered for several collectives. Every rank registers the same names in the same
/// order, before the first context; if a rank differs from rank 0, its world fails with mismatch_error, and the first
/// collective throws the error. Throws configuration_error for a name that is taken or invalid, for the ninth name, and
/// for the collectives `none` and `finish`.
algorithm register_algorithm(collective kind, std::string_view name, algorithm_body body);

/// Returns all algorithms: `automatic` first, then the library's, then the registered ones.
[[nodiscard]] std::vector<algorithm> known_algorithms();

namespace detail {

/// Returns the coroutine of a registered algorithm; null for an algorithm of the library, or if the algorithm is not
/// registered for that collective.
[[nodiscard]] algorithm_body registered_body(collective kind, algorithm name) noexcept;
/// Returns the registered algorithms as text, for comparison between ranks: "allreduce:mine broadcast:mine".
[[nodiscard]] std::string registered_algorithms();

}  // namespace detail

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
