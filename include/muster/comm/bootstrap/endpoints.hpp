// Several endpoints (ranks of a larger world) in one process. Each has its own connections, so that each can be used by
// its own thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Makes `rank_count` endpoints at each rank of the group, and connects all `rank_count` * size endpoints as the ranks
/// of a new, larger world, by the group's transport (`hierarchical`: by tcp). Collective over the group. Element k of
/// the result at rank r is rank k * size + r of that world. Throws configuration_error if the transport does not
/// support that, timeout_error, and the errors of connecting.
[[nodiscard]] std::vector<std::unique_ptr<transport>> connect_endpoints(const settings& configuration, group& ranks,
                                                                        int rank_count);

/// Calls `connect` with each number below `rank_count`, each in its own thread, because each call may wait for the
/// others. Waits for all calls. Throws the exception of the failed call with the lowest number.
[[nodiscard]] std::vector<std::unique_ptr<transport>> connect_at_once(
    int rank_count, const std::function<std::unique_ptr<transport>(int number)>& connect);

}}}  // namespace muster::v0::detail
