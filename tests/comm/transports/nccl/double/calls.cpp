#include "calls.hpp"

#include <cstring>

#include <muster/core/float16.hpp>

namespace nccl_double {

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

namespace {

template <class T>
T combine(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return static_cast<T>(a * b);
    case ncclMax:
      return a < b ? b : a;
    case ncclMin:
      return b < a ? b : a;
    default:
      return static_cast<T>(a + b);
  }
}

/// Combines `count` elements, starting at `first`, over all inputs in the order of the ranks.
template <class T>
std::vector<T> combined(const std::vector<call>& calls, std::size_t first, std::size_t count) {
  std::vector<T> sums(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = [&](std::size_t rank) { return static_cast<const T*>(calls[rank].in)[first + i]; };
    sums[i] = at(0);
    for (std::size_t rank = 1; rank < calls.size(); ++rank) sums[i] = combine(sums[i], at(rank), calls[0].op);
    if (calls[0].op == ncclAvg) sums[i] = static_cast<T>(sums[i] / static_cast<T>(static_cast<float>(calls.size())));
  }
  return sums;
}

template <class T>
void write(const std::vector<T>& values, std::size_t first, std::size_t count, void* destination) {
  if (count > 0) std::memcpy(destination, values.data() + first, count * sizeof(T));
}

/// Performs a collective once every rank's call has arrived.
template <class T>
void perform(const std::vector<call>& calls) {
  const std::size_t count = calls[0].count;
  const std::size_t ranks = calls.size();
  const auto root = static_cast<std::size_t>(calls[0].peer);
  switch (calls[0].operation) {
    case kind::broadcast: {
      const std::vector<T> values(static_cast<const T*>(calls[root].in), static_cast<const T*>(calls[root].in) + count);
      for (const auto& rank_call : calls) write(values, 0, count, rank_call.out);
      return;
    }
    case kind::reduce:
      write(combined<T>(calls, 0, count), 0, count, calls[root].out);
      return;
    case kind::allgather: {
      std::vector<T> all;
      for (const auto& rank_call : calls)
        all.insert(all.end(), static_cast<const T*>(rank_call.in), static_cast<const T*>(rank_call.in) + count);
      for (const auto& rank_call : calls) write(all, 0, all.size(), rank_call.out);
      return;
    }
    case kind::reduce_scatter: {
      const auto all = combined<T>(calls, 0, count * ranks);
      for (std::size_t rank = 0; rank < ranks; ++rank) write(all, count * rank, count, calls[rank].out);
      return;
    }
    default: {
      const auto all = combined<T>(calls, 0, count);
      for (const auto& rank_call : calls) write(all, 0, count, rank_call.out);
    }
  }
}

}  // namespace

void perform(const std::vector<call>& calls) {
  switch (calls[0].type) {
    case ncclInt8:
      return perform<signed char>(calls);
    case ncclUint8:
      return perform<unsigned char>(calls);
    case ncclInt32:
      return perform<int>(calls);
    case ncclUint32:
      return perform<unsigned>(calls);
    case ncclInt64:
      return perform<long long>(calls);
    case ncclUint64:
      return perform<unsigned long long>(calls);
    case ncclFloat16:
      return perform<muster::float16>(calls);
    case ncclBfloat16:
      return perform<muster::bfloat16>(calls);
    case ncclFloat64:
      return perform<double>(calls);
    default:
      return perform<float>(calls);
  }
}

}  // namespace nccl_double
