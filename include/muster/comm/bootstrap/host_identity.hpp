// Which ranks share a host.
#pragma once

#include <string>

#include <muster/core/env.hpp>

namespace muster { inline namespace v0 {

/// Equal at two processes when they run on one host: under one running system, in one network namespace, by one name.
/// So containers and network namespaces of one machine count as hosts of their own unless they share the network.
/// `--host` or MUSTER_HOST says something else, for instance to make one machine look like several.
[[nodiscard]] std::string host_identity(const settings& configuration);

namespace detail {

[[nodiscard]] std::string host_name();
/// The kernel's number of this start of the machine, the same in all its containers; empty where it tells none.
[[nodiscard]] std::string boot_number();

}  // namespace detail
}}  // namespace muster::v0
