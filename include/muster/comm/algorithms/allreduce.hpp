// Allreduce by any of the algorithms that are made of messages.
#pragma once

#include <muster/comm/algorithms/direct.hpp>
#include <muster/comm/algorithms/halving_doubling.hpp>
#include <muster/comm/algorithms/recursive_doubling.hpp>
#include <muster/comm/algorithms/ring.hpp>
#include <muster/comm/algorithms/tree.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// In place. What is no algorithm of an allreduce is taken for recursive doubling.
inline task allreduce_by(executor& f, algorithm how, std::byte* data, std::size_t count, const reduction& reduce) {
  switch (how) {
    case algorithm::ring:
      return ring_allreduce(f, {data, count, reduce.element_size(), f.size()}, reduce);
    case algorithm::tree:
      return tree_allreduce(f, data, count * reduce.element_size(), reduce);
    case algorithm::direct:
      return direct_allreduce(f, {data, count, reduce.element_size(), f.size()}, reduce);
    case algorithm::halving_doubling:
      return halving_doubling_allreduce(f, data, count, reduce);
    default:
      return recursive_doubling_allreduce(f, data, count * reduce.element_size(), reduce);
  }
}

}}}  // namespace muster::v0::detail
