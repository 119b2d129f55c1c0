// The checks of a parameter server's options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>
#include <muster/elastic/state.hpp>
#include <muster/ps/job.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

/// Returns the properties that must be equal at all ranks: tables, options and `job_options::properties`.
[[nodiscard]] std::vector<compared_property> properties_of(const job_options& options, const table_layout& layout);

/// Throws configuration_error for options that are impossible with so many ranks.
void check_options(const job_options& options, int rank_count);
/// Throws configuration_error for an impossible `--remote-servers`.
void check_remote(const settings& configuration, const job_options& options);
/// Throws configuration_error: this transport cannot receive from any source.
[[noreturn]] void refuse_transport(const transport_abilities& abilities);
/// Returns the smallest memory limit in bytes of the control groups (cgroups) that contain this process; the largest
/// number without a limit. Reads the list of the groups, and their files below the folder `mounted`.
[[nodiscard]] std::uint64_t memory_limit(const std::string& groups = "/proc/self/cgroup",
                                         const std::string& mounted = "/sys/fs/cgroup");
/// Returns the bytes of the dense tables at one of so many servers, with replicas and the arrays of update functions.
[[nodiscard]] std::uint64_t bytes_of_server(const job_options& options, int server_count);
/// Throws configuration_error if the server at that rank needs more bytes than its limit.
void check_memory(int rank, std::uint64_t needed, std::uint64_t limit);
/// Collective. Checks all options, the transport and the memory of the servers, and throws mismatch_error at every rank
/// if properties differ.
void check_ranks(group& ranks, const job_options& options, const table_layout& layout);

}}}  // namespace muster::v0::ps::detail
