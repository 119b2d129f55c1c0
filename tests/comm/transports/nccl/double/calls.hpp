// TEST DOUBLE, never installed: a call of NCCL's as one rank makes it, and what it does to memory.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace nccl_double {

enum class kind { allreduce, reduce, broadcast, allgather, reduce_scatter, send, receive };

struct call {
  kind what = kind::allreduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = 0;

  [[nodiscard]] bool goes_with(const call& other) const {
    return what == other.what && count == other.count && type == other.type && op == other.op && peer == other.peer;
  }
  [[nodiscard]] bool between_two() const { return what == kind::send || what == kind::receive; }
};

std::size_t size_of(ncclDataType_t type);

/// A collective of which every rank's call is there.
void perform(const std::vector<call>& calls);

}  // namespace nccl_double
