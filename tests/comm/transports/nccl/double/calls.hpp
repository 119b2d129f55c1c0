// TEST DOUBLE, never installed: a call to NCCL by one rank, and its effect on memory.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace nccl_double {

enum class kind { allreduce, reduce, broadcast, allgather, reduce_scatter, send, receive };

struct call {
  kind operation = kind::allreduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = 0;

  [[nodiscard]] bool matches(const call& peer_call) const {
    return operation == peer_call.operation && count == peer_call.count && type == peer_call.type &&
           op == peer_call.op && peer == peer_call.peer;
  }
  [[nodiscard]] bool between_two() const { return operation == kind::send || operation == kind::receive; }
};

std::size_t size_of(ncclDataType_t type);

/// Performs a collective once every rank's call has arrived.
void perform(const std::vector<call>& calls);

}  // namespace nccl_double
