// The collectives over lists of tensors.
#include <ATen/ops/empty.h>

#include <muster/core/error.hpp>

#include "backend.hpp"
#include "request.hpp"
#include "tensors.hpp"

namespace muster::torch_backend {

backend::work_pointer backend::allreduce_coalesced(tensors& data, const c10d::AllreduceCoalescedOptions& opts) {
  std::vector<work_pointer> parts;
  c10d::AllreduceOptions each = opts;
  each.asyncOp = true;
  for (const at::Tensor& tensor : data) {
    tensors one{tensor};
    parts.push_back(allreduce(one, each));
  }
  return joined(std::move(parts), data, opts.asyncOp);
}

backend::work_pointer backend::allgather(tensor_lists& outputs, tensors& inputs, const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = only(inputs, "all_gather");
  const tensors& list = only_list(outputs, getSize(), "all_gather");
  for (const auto& each : list) require_same(input, each, "all_gather");
  at::Tensor flat = at::empty({static_cast<std::int64_t>(list.size()) * input.numel()}, input.options());
  return perform({.kind = collective::allgather,
                  .op_type = OpType::ALLGATHER,
                  .title = "muster:all_gather",
                  .in = moved_elements_of(input, "all_gather"),
                  .out = moved_elements_of(flat, "all_gather"),
                  .timeout = opts.timeout,
                  .is_async = opts.asyncOp,
                  .inputs = {input, flat},
                  .result = list,
                  .finish = [flat, list] { divide(flat, list); }});
}

backend::work_pointer backend::allgather_coalesced(tensor_lists& outputs, tensors& inputs,
                                                   const c10d::AllgatherOptions& opts) {
  if (outputs.size() != static_cast<std::size_t>(getSize()))
    throw muster::configuration_error("allgather_coalesced: there are " + std::to_string(outputs.size()) +
                                      " output lists (one for each rank is needed); pass a list for each rank");
  std::vector<work_pointer> parts;
  tensors result;
  c10d::AllgatherOptions each = opts;
  each.asyncOp = true;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    tensor_lists list(1);
    for (const auto& of_rank : outputs) {
      if (of_rank.size() != inputs.size())
        throw muster::configuration_error(
            "allgather_coalesced: invalid output lists (each has as many tensors as there "
            "are inputs); pass lists of equal length");
      list[0].push_back(of_rank[k]);
    }
    result.insert(result.end(), list[0].begin(), list[0].end());
    tensors one{inputs[k]};
    parts.push_back(allgather(list, one, each));
  }
  return joined(std::move(parts), std::move(result), opts.asyncOp);
}

backend::work_pointer backend::allgather_into_tensor_coalesced(tensors& outputs, tensors& inputs,
                                                               const c10d::AllgatherOptions& opts) {
  require_as_many(inputs, outputs, "all_gather_into_tensor_coalesced");
  std::vector<work_pointer> parts;
  c10d::AllgatherOptions each = opts;
  each.asyncOp = true;
  for (std::size_t k = 0; k < inputs.size(); ++k) parts.push_back(_allgather_base(outputs[k], inputs[k], each));
  return joined(std::move(parts), outputs, opts.asyncOp);
}

backend::work_pointer backend::gather(tensor_lists& outputs, tensors& inputs, const c10d::GatherOptions& opts) {
  const at::Tensor& input = only(inputs, "gather");
  const int root = root_of(opts.rootRank, getSize(), "gather");
  collective_request request{.kind = collective::gather,
                             .op_type = OpType::GATHER,
                             .title = "muster:gather",
                             .in = moved_elements_of(input, "gather"),
                             .out = {nullptr, 0, moved_elements_of(input, "gather").type},
                             .root = root,
                             .timeout = opts.timeout,
                             .is_async = opts.asyncOp,
                             .inputs = {input}};
  if (getRank() == root) {
    const tensors& list = only_list(outputs, getSize(), "gather");
    for (const auto& each : list) require_same(input, each, "gather");
    at::Tensor flat = at::empty({static_cast<std::int64_t>(list.size()) * input.numel()}, input.options());
    request.out = moved_elements_of(flat, "gather");
    request.inputs.push_back(flat);
    request.result = list;
    request.finish = [flat, list] { divide(flat, list); };
  } else if (!outputs.empty() && !outputs[0].empty()) {
    throw muster::configuration_error("gather: requires empty output on non-root (this is rank " +
                                      std::to_string(getRank()) + " and the root is " + std::to_string(root) +
                                      "); pass the list at the root alone");
  }
  return perform(std::move(request));
}

#ifdef C10D_BACKEND_HAS_HOOKS
backend::work_pointer backend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                  const c10d::GatherOptions& opts) {
  const int root = root_of(opts.rootRank, getSize(), "gather_into_tensor");
  const auto from = moved_elements_of(input, "gather_into_tensor");
  const bool is_root = getRank() == root;
  return perform({.kind = collective::gather,
                  .op_type = OpType::GATHER,
                  .title = "muster:gather",
                  .in = from,
                  .out = is_root ? moved_elements_of(output, "gather_into_tensor")
                                 : muster::detail::typed_elements{nullptr, 0, from.type},
                  .root = root,
                  .timeout = opts.timeout,
                  .is_async = opts.asyncOp,
                  .inputs = {input},
                  .result = {output}});
}
#endif

backend::work_pointer backend::scatter(tensors& outputs, tensor_lists& inputs, const c10d::ScatterOptions& opts) {
  const at::Tensor& output = only(outputs, "scatter");
  const int root = root_of(opts.rootRank, getSize(), "scatter");
  const auto to = moved_elements_of(output, "scatter");
  collective_request request{.kind = collective::scatter,
                             .op_type = OpType::SCATTER,
                             .title = "muster:scatter",
                             .in = {nullptr, 0, to.type},
                             .out = to,
                             .root = root,
                             .timeout = opts.timeout,
                             .is_async = opts.asyncOp,
                             .inputs = {},
                             .result = {output}};
  if (getRank() == root) {
    const tensors& list = only_list(inputs, getSize(), "scatter");
    for (const auto& each : list) require_same(output, each, "scatter");
    at::Tensor flat = flattened(list);
    request.in = moved_elements_of(flat, "scatter");
    request.inputs = {flat};
  } else if (!inputs.empty() && !inputs[0].empty()) {
    throw muster::configuration_error("scatter: requires empty input on non-root (this is rank " +
                                      std::to_string(getRank()) + " and the root is " + std::to_string(root) +
                                      "); pass the list at the root alone");
  }
  return perform(std::move(request));
}

backend::work_pointer backend::reduce_scatter(tensors& outputs, tensor_lists& inputs,
                                              const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = only(outputs, "reduce_scatter");
  const tensors& list = only_list(inputs, getSize(), "reduce_scatter");
  const at::Tensor& own = list[static_cast<std::size_t>(getRank())];
  require_same(output, own, "reduce_scatter");
  bool is_even = true;
  for (const auto& each : list) {
    require_same_type(output, each, "reduce_scatter");
    is_even &= each.numel() == own.numel();
  }
  if (!is_even) return reduce_each_to_its_rank(outputs, list, opts);
  at::Tensor flat = flattened(list);
  return _reduce_scatter_base(outputs[0], flat, opts);
}

// Pieces of different sizes: a reduce for each rank.
backend::work_pointer backend::reduce_each_to_its_rank(tensors& outputs, const tensors& list,
                                                       const c10d::ReduceScatterOptions& opts) {
  std::vector<work_pointer> parts;
  for (int rank = 0; rank < getSize(); ++rank) {
    c10d::ReduceOptions each;
    each.reduceOp = opts.reduceOp;
    each.rootRank = rank;
    each.timeout = opts.timeout;
    at::Tensor piece = list[static_cast<std::size_t>(rank)].contiguous();
    if (rank == getRank()) {
      outputs[0].copy_(piece);
      piece = outputs[0];
    }
    tensors one{piece};
    parts.push_back(reduce(one, each));
  }
  return joined(std::move(parts), outputs, opts.asyncOp);
}

backend::work_pointer backend::reduce_scatter_tensor_coalesced(tensors& outputs, tensors& inputs,
                                                               const c10d::ReduceScatterOptions& opts) {
  require_as_many(inputs, outputs, "reduce_scatter_tensor_coalesced");
  std::vector<work_pointer> parts;
  c10d::ReduceScatterOptions each = opts;
  each.asyncOp = true;
  for (std::size_t k = 0; k < inputs.size(); ++k) parts.push_back(_reduce_scatter_base(outputs[k], inputs[k], each));
  return joined(std::move(parts), outputs, opts.asyncOp);
}

}  // namespace muster::torch_backend
