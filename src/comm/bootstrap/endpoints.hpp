// Several ranks in one process: each connected by itself, so that each can be a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Collective over the group: connects each of its ranks so many times to all others and itself, by what the group is
/// connected by (`hierarchical`: by tcp). The k-th of what it returns at rank r is rank k * size + r of `count` * size.
/// Throws configuration_error where the transport cannot do that, timeout_error, and what connecting throws.
[[nodiscard]] std::vector<std::unique_ptr<transport>> connect_endpoints(const settings& configuration, group& ranks,
                                                                        int count);

/// Calls `connect` with each number below `count`, in threads of their own: each end may wait for the others. Throws
/// what the first that failed threw.
[[nodiscard]] std::vector<std::unique_ptr<transport>> connect_at_once(
    int count, const std::function<std::unique_ptr<transport>(int number)>& connect);

}}}  // namespace muster::v0::detail
