// Messages between two ranks, and the collectives that are made of messages.
#include <algorithm>
#include <string>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <muster/core/error.hpp>

#include "backend.hpp"
#include "tensors.hpp"

namespace muster::torch_backend {
namespace {

using c10d::OpType;

// The tags of the backend's own messages, above the tags of users.
constexpr std::uint32_t tag_of_pieces = muster::detail::message_port::first_reserved_tag;
constexpr std::uint32_t tag_of_barrier = tag_of_pieces - 1;
constexpr std::uint32_t tag_of_answer = tag_of_pieces - 2;
constexpr int first_own_tag = static_cast<int>(tag_of_answer);

std::uint32_t checked_tag(int tag) {
  if (tag >= 0 && tag < first_own_tag) return static_cast<std::uint32_t>(tag);
  throw muster::configuration_error("the tag cannot be " + std::to_string(tag) + " (tags are from 0 to " +
                                    std::to_string(first_own_tag - 1) + "); choose another tag");
}

muster::seconds seconds_of(std::chrono::milliseconds time) { return std::chrono::duration<double>(time); }

std::size_t bytes_of(const muster::detail::typed_elements& elements) {
  return elements.count * muster::size_of(elements.type);
}

std::vector<std::int64_t> even_splits(const at::Tensor& tensor, int size, const char* name) {
  if (tensor.size(0) % size != 0)
    throw muster::configuration_error(std::string("all_to_all_single: Tensor's dim 0 does not divide equally across "
                                                  "group size (it is the ") +
                                      name + "); pass split sizes");
  return std::vector<std::int64_t>(static_cast<std::size_t>(size), tensor.size(0) / size);
}

std::vector<at::Tensor> cut(const at::Tensor& tensor, std::vector<std::int64_t> splits, int size, const char* name) {
  if (splits.empty()) splits = even_splits(tensor, size, name);
  if (splits.size() != static_cast<std::size_t>(size))
    throw muster::configuration_error("all_to_all_single: Number of tensor splits not equal to group size");
  std::int64_t sum = 0;
  for (const auto each : splits) sum += each;
  if (sum != tensor.size(0))
    throw muster::configuration_error("all_to_all_single: Split sizes doesn't match total dim 0 size");
  return tensor.split_with_sizes(splits, 0);
}

}  // namespace

backend::work_pointer backend::send(tensors& data, int peer, int tag) {
  const at::Tensor& tensor = only(data, "send");
  const auto elements = moved_elements_of(tensor, "send");
  auto& own = connected();
  auto work = c10::make_intrusive<message_work>(ranks_, OpType::SEND, "muster:send", tensors{tensor}, tensors{tensor},
                                                ++sequence_);
  work->hold(own.port.send(elements.data, bytes_of(elements), peer, checked_tag(tag), seconds_of(options_->timeout)));
  return begun(work, true);
}

backend::work_pointer backend::recv(tensors& data, int peer, int tag) {
  const at::Tensor& tensor = only(data, "recv");
  const auto elements = moved_elements_of(tensor, "recv");
  auto& own = connected();
  auto work = c10::make_intrusive<message_work>(ranks_, OpType::RECV, "muster:recv", tensors{tensor}, tensors{tensor},
                                                ++sequence_);
  work->hold(
      own.port.receive(elements.data, bytes_of(elements), peer, checked_tag(tag), seconds_of(options_->timeout)));
  return begun(work, true);
}

backend::work_pointer backend::recvAnysource(tensors& data, int tag) {
  const at::Tensor& tensor = only(data, "recvAnysource");
  const auto elements = moved_elements_of(tensor, "recvAnysource");
  auto& own = connected();
  auto work = c10::make_intrusive<message_work>(ranks_, OpType::RECVANYSOURCE, "muster:recvAnySource", tensors{tensor},
                                                tensors{tensor}, ++sequence_);
  work->hold(own.port.receive(elements.data, bytes_of(elements), std::nullopt, checked_tag(tag),
                              seconds_of(options_->timeout)));
  return begun(work, true);
}

// Sends a piece to each rank, and receives one from each. Pieces may differ in size; the own piece is copied.
backend::work_pointer backend::exchange_pieces(const tensors& outputs, const tensors& inputs, tensors result,
                                               const c10d::AllToAllOptions& opts) {
  auto& own = connected();
  const auto timeout = seconds_of(limit_of(opts.timeout));
  tensors kept = inputs;
  kept.insert(kept.end(), outputs.begin(), outputs.end());
  auto work = c10::make_intrusive<message_work>(ranks_, OpType::ALLTOALL_BASE, "muster:all_to_all", std::move(kept),
                                                std::move(result), ++sequence_);
  const auto rank = static_cast<std::size_t>(getRank());
  outputs[rank].copy_(inputs[rank]);
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    const auto piece = moved_elements_of(outputs[r], "all_to_all");
    if (r == rank || piece.count == 0) continue;
    work->hold(own.port.receive(piece.data, bytes_of(piece), static_cast<int>(r), tag_of_pieces, timeout));
  }
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    const auto piece = moved_elements_of(inputs[r], "all_to_all");
    if (r == rank || piece.count == 0) continue;
    work->hold(own.port.send(piece.data, bytes_of(piece), static_cast<int>(r), tag_of_pieces, timeout));
  }
  return begun(work, opts.asyncOp);
}

backend::work_pointer backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                             std::vector<std::int64_t>& output_splits,
                                             std::vector<std::int64_t>& input_splits,
                                             const c10d::AllToAllOptions& opts) {
  require_same_type(input, output, "all_to_all_single");
  (void)moved_elements_of(input, "all_to_all_single");
  (void)moved_elements_of(output, "all_to_all_single");
  const tensors to = cut(output, output_splits, getSize(), "output");
  const tensors from = cut(input, input_splits, getSize(), "input");
  return exchange_pieces(to, from, {output}, opts);
}

backend::work_pointer backend::alltoall(tensors& outputs, tensors& inputs, const c10d::AllToAllOptions& opts) {
  if (outputs.size() != static_cast<std::size_t>(getSize()) || inputs.size() != outputs.size())
    throw muster::configuration_error("all_to_all: there are " + std::to_string(inputs.size()) + " inputs and " +
                                      std::to_string(outputs.size()) + " outputs (one for each of " +
                                      std::to_string(getSize()) + " ranks is needed); pass a tensor for each rank");
  return exchange_pieces(outputs, inputs, outputs, opts);
}

void backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  auto& own = connected();
  const auto limit = limit_of(opts.timeout);
  const auto timeout = seconds_of(limit);
  std::byte word{};
  const auto await = [&](std::unique_ptr<muster::detail::port_message> message) {
    while (!own.port.wait_until(*message, muster::deadline_after(muster::seconds(0.1)))) own.check();
  };
  if (getRank() != 0) {
    try {
      await(own.port.send(&word, 1, 0, tag_of_barrier, timeout));
      await(own.port.receive(&word, 1, 0, tag_of_answer, timeout));
    } catch (const muster::error& failure) {
      throw muster::timeout_error("monitored_barrier", {0},
                                  "Rank " + std::to_string(getRank()) +
                                      " successfully reached monitoredBarrier, but received errors while waiting for "
                                      "send/recv from rank 0. Please check rank 0 logs for faulty rank. (" +
                                      failure.what() + ")");
    }
    return;
  }
  std::vector<int> missing;
  const auto began = muster::clock::now();
  for (int rank = 1; rank < getSize(); ++rank) {
    try {
      const auto left = std::max<muster::seconds>(timeout - (muster::clock::now() - began), muster::seconds(0.001));
      await(own.port.receive(&word, 1, rank, tag_of_barrier, left));
    } catch (const muster::error&) {
      missing.push_back(rank);
      if (!wait_all_ranks) break;
    }
  }
  if (!missing.empty()) {
    std::string names;
    for (const int rank : missing) names += (names.empty() ? "" : ", ") + std::to_string(rank);
    throw muster::timeout_error("monitored_barrier", missing,
                                "[Rank 0]: Rank" + std::string(missing.size() > 1 ? "s " : " ") + names +
                                    " failed to pass monitoredBarrier in " + std::to_string(limit.count()) + " ms");
  }
  for (int rank = 1; rank < getSize(); ++rank) await(own.port.send(&word, 1, rank, tag_of_answer, timeout));
}

// Gathers all ranks' indices and values, padded to the longest, and adds them up.
backend::work_pointer backend::allreduce_sparse(tensors& data, const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = only(data, "allreduce");
  if (opts.reduceOp != c10d::ReduceOp::SUM)
    throw muster::configuration_error(
        "allreduce: unsupported reduction operation (sparse tensors are summed alone); "
        "pass ReduceOp.SUM");
  const at::Tensor own = tensor.coalesce();
  const auto size = static_cast<std::int64_t>(getSize());
  const auto gathered = [&](const at::Tensor& mine) {
    at::Tensor input = mine.contiguous();
    std::vector<std::int64_t> shape = input.sizes().vec();
    shape.insert(shape.begin(), size);
    at::Tensor all = at::empty(shape, input.options());
    c10d::AllgatherOptions each;
    each.timeout = opts.timeout;
    each.asyncOp = false;
    _allgather_base(all, input, each)->wait(kNoTimeout);
    return all;
  };
  const at::Tensor counts = gathered(at::full({1}, own._nnz(), at::kLong));
  const auto most = counts.max().item<std::int64_t>();
  const auto padded = [&](const at::Tensor& mine, std::int64_t dim) {
    std::vector<std::int64_t> shape = mine.sizes().vec();
    shape[static_cast<std::size_t>(dim)] = most - shape[static_cast<std::size_t>(dim)];
    return at::cat({mine, at::zeros(shape, mine.options())}, dim);
  };
  const at::Tensor indices = gathered(padded(own._indices(), 1));
  const at::Tensor values = gathered(padded(own._values(), 0));
  at::Tensor sum;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    const auto count = counts[rank][0].item<std::int64_t>();
    const at::Tensor part = at::sparse_coo_tensor(indices[rank].narrow(1, 0, count), values[rank].narrow(0, 0, count),
                                                  tensor.sizes(), tensor.options());
    sum = sum.defined() ? sum.add(part) : part;
  }
  tensor.copy_(sum.coalesce());
  return c10::make_intrusive<done_work>(OpType::_ALLREDUCE_SPARSE, tensors{tensor});
}

}  // namespace muster::torch_backend
