// What a job of a parameter server cannot be.
#pragma once

#include <string>

#include <muster/comm/group.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>
#include <muster/ps/job.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

/// What must be the same at all ranks, a line for each.
[[nodiscard]] std::string description_of(const job_options& options, const table_layout& layout);

/// Throws configuration_error for options that so many ranks cannot have.
void check_options(const job_options& options, int ranks);
/// The same for `--remote-servers`.
void check_remote(const settings& chosen, const job_options& options);
/// Throws configuration_error: it has no receives from any source.
[[noreturn]] void refuse_transport(const transport_abilities& its);
/// Collective: all of that, and mismatch_error at every rank where options differ.
void check_ranks(group& ranks, const job_options& options, const table_layout& layout);

}}}  // namespace muster::v0::ps::detail
