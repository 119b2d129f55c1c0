// Allreduce by any algorithm that uses messages.
#pragma once

#include <muster/comm/algorithms/direct.hpp>
#include <muster/comm/algorithms/halving_doubling.hpp>
#include <muster/comm/algorithms/recursive_doubling.hpp>
#include <muster/comm/algorithms/ring.hpp>
#include <muster/comm/algorithms/tree.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Performs an allreduce in place. Uses recursive doubling for an algorithm that an allreduce does not have.
inline task allreduce_by(collective_context& ctx, algorithm selected, std::byte* data, std::size_t count,
                         const reduction& reduce) {
  switch (selected) {
    case algorithm::ring:
      return ring_allreduce(ctx, {data, count, reduce.element_size(), ctx.size()}, reduce);
    case algorithm::tree:
      return tree_allreduce(ctx, data, count * reduce.element_size(), reduce);
    case algorithm::direct:
      return direct_allreduce(ctx, {data, count, reduce.element_size(), ctx.size()}, reduce);
    case algorithm::halving_doubling:
      return halving_doubling_allreduce(ctx, data, count, reduce);
    default:
      return recursive_doubling_allreduce(ctx, data, count * reduce.element_size(), reduce);
  }
}

}}}  // namespace muster::v0::detail
