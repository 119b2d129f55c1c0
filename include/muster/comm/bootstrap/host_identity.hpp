// Detection of the ranks that share a host.
#pragma once

#include <string>

#include <muster/core/env.hpp>

namespace muster { inline namespace v0 {

/// Returns a text that is equal at two processes when they run on one host: under the same boot of a kernel, in the
/// same network namespace, with the same host name. So containers on a machine count as separate hosts unless they
/// share the machine's network namespace and host name. `--host` or MUSTER_HOST replaces this text, for instance to
/// make one machine look like several.
[[nodiscard]] std::string host_identity(const settings& configuration);

namespace detail {

[[nodiscard]] std::string host_name();
/// Returns the kernel's random identifier (UUID) of this boot, the same in all containers on the machine; empty if the
/// kernel has none.
[[nodiscard]] std::string boot_number();

}  // namespace detail
}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
