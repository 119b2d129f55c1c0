// The ranks that are left of an MPI job, connected anew.
#pragma once

#ifdef MUSTER_HAVE_ULFM

#include <cstdint>
#include <memory>
#include <span>

#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

namespace muster::inline v0::detail {

/// As process_transport::connect_survivors: shrinks MPI's world to the ranks that live, which agree that they are the
/// members, in the same generation.
std::unique_ptr<transport> connect_survivors(const settings& configuration, std::span<const std::uint64_t> members,
                                             int self, std::uint64_t generation);
bool can_connect_survivors();

}  // namespace muster::inline v0::detail

#endif
