// Several ranks in one process. Each rank is connected by itself, so that each can be used by its own thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Connects each rank of the group `count` times to all others and itself, by the group's transport (`hierarchical`: by
/// tcp). Collective over the group. Element k of the result at rank r is rank k * size + r of `count` * size. Throws
/// configuration_error if the transport does not support that, timeout_error, and the errors of connecting.
[[nodiscard]] std::vector<std::unique_ptr<transport>> connect_endpoints(const settings& configuration, group& ranks,
                                                                        int count);

/// Calls `connect` with each number below `count`, each in its own thread, because each call may wait for the others.
/// Throws the exception of the first call that failed.
[[nodiscard]] std::vector<std::unique_ptr<transport>> connect_at_once(
    int count, const std::function<std::unique_ptr<transport>(int number)>& connect);

}}}  // namespace muster::v0::detail
