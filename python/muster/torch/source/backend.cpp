#include "backend.hpp"

#include <algorithm>

#include <muster/core/error.hpp>

#include "request.hpp"
#include "tensors.hpp"

namespace muster::torch_backend {

backend::backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                 c10::intrusive_ptr<backend_options> options)
    : Backend(rank, size), options_(std::move(options)) {
  init();
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  if (options_->enable_reconfigure) {
    reconnects_ = std::make_unique<reconnectable>();
    return;
  }
#endif
  ranks_ = connect(store, rank, size, {options_->timeout, options_->transport});
}

backend::~backend() = default;

connection& backend::connected() {
  if (!ranks_)
    throw muster::configuration_error(
        "the process group has no ranks (it was shut down, or waits for reconfigure()); "
        "call reconfigure() or make a new group");
  ranks_->check();
  return *ranks_;
}

std::string backend::transport_name() {
  auto& own = connected();
  return std::string(own.ranks.abilities().name);
}

std::chrono::milliseconds backend::limit_of(std::chrono::milliseconds requested) const {
  return requested.count() > 0 ? requested : options_->timeout;
}

backend::work_pointer backend::begun(const c10::intrusive_ptr<open_work>& work, bool is_async) {
  {
    const std::lock_guard lock(coalescing_mutex_);
    if (is_coalescing_) {
      coalesced_.push_back(work);
      work->watch();
      return work;
    }
  }
  if (is_async)
    work->watch();
  else
    work->wait(kNoTimeout);
  return work;
}

backend::work_pointer backend::perform(collective_request&& request) {
  auto& own = connected();
  muster::detail::typed_call call;
  call.kind = request.kind;
  call.in = request.in;
  call.out = request.out;
  call.op = request.reduction.op;
  call.bits = request.reduction.bits;
  call.root = request.root;
  call.options.timeout = std::chrono::duration<double>(limit_of(request.timeout));
  const std::uint64_t number = ++sequence_;
  if (!request.is_async && !request.finish && !is_coalescing_) {
    run(own, call);
    return c10::make_intrusive<done_work>(request.op_type, std::move(request.result));
  }
  auto work = c10::make_intrusive<collective_work>(ranks_, request.op_type, request.title, std::move(request.inputs),
                                                   std::move(request.result), number);
  if (request.finish) work->set_finish(std::move(request.finish));
  {
    const std::lock_guard held(own.mutex);
    work->hold(muster::detail::start(own.ranks, call));
  }
  return begun(work, request.is_async);
}

backend::work_pointer backend::joined(std::vector<work_pointer> parts, tensors result, bool is_async) {
  auto all = c10::make_intrusive<joined_work>(std::move(parts), std::move(result));
  if (!is_async) all->wait(kNoTimeout);
  return all;
}

backend::work_pointer backend::broadcast(tensors& data, const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = only(data, "broadcast");
  const auto elements = elements_of(tensor, "broadcast");
  return perform({.kind = collective::broadcast,
                  .op_type = OpType::BROADCAST,
                  .title = "muster:broadcast",
                  .in = elements,
                  .out = elements,
                  .root = root_of(opts.rootRank, getSize(), "broadcast"),
                  .timeout = opts.timeout,
                  .is_async = opts.asyncOp,
                  .inputs = {tensor},
                  .result = {tensor}});
}

backend::work_pointer backend::allreduce(tensors& data, const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = only(data, "allreduce");
  if (tensor.is_sparse()) return allreduce_sparse(data, opts);
  const auto elements = elements_of(tensor, "allreduce");
  scale(tensor, opts.reduceOp);
  return perform({.kind = collective::allreduce,
                  .op_type = OpType::ALLREDUCE,
                  .title = "muster:all_reduce",
                  .in = elements,
                  .out = elements,
                  .reduction = reduction_for(opts.reduceOp, tensor),
                  .timeout = opts.timeout,
                  .is_async = opts.asyncOp,
                  .inputs = {tensor},
                  .result = {tensor}});
}

backend::work_pointer backend::reduce(tensors& data, const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = only(data, "reduce");
  const int root = root_of(opts.rootRank, getSize(), "reduce");
  const auto elements = elements_of(tensor, "reduce");
  const bool is_root = getRank() == root;
  at::Tensor input = tensor;
  if (opts.reduceOp == c10d::ReduceOp::PREMUL_SUM) {
    input = tensor.clone();
    scale(input, opts.reduceOp);
  }
  const auto from = elements_of(input, "reduce");
  return perform({.kind = collective::reduce,
                  .op_type = OpType::REDUCE,
                  .title = "muster:reduce",
                  .in = from,
                  .out = is_root ? elements : muster::detail::typed_elements{nullptr, 0, elements.type},
                  .reduction = reduction_for(opts.reduceOp, tensor),
                  .root = root,
                  .timeout = opts.timeout,
                  .is_async = opts.asyncOp,
                  .inputs = {tensor, input},
                  .result = {tensor}});
}

backend::work_pointer backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::AllgatherOptions& opts) {
  require_same_type(input, output, "all_gather_into_tensor");
  if (input.numel() * getSize() != output.numel())
    throw muster::configuration_error(
        "all_gather_into_tensor: output tensor size must be equal to world_size times "
        "input tensor size");
  return perform({.kind = collective::allgather,
                  .op_type = OpType::_ALLGATHER_BASE,
                  .title = "muster:_all_gather_base",
                  .in = moved_elements_of(input, "all_gather_into_tensor"),
                  .out = moved_elements_of(output, "all_gather_into_tensor"),
                  .timeout = opts.timeout,
                  .is_async = opts.asyncOp,
                  .inputs = {input},
                  .result = {output}});
}

backend::work_pointer backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::ReduceScatterOptions& opts) {
  require_same_type(input, output, "reduce_scatter_tensor");
  if (output.numel() * getSize() != input.numel())
    throw muster::configuration_error(
        "reduce_scatter_tensor: input tensor must be the same size as output size times "
        "world size");
  at::Tensor from = input;
  if (opts.reduceOp == c10d::ReduceOp::PREMUL_SUM) {
    from = input.clone();
    scale(from, opts.reduceOp);
  }
  return perform({.kind = collective::reduce_scatter,
                  .op_type = OpType::_REDUCE_SCATTER_BASE,
                  .title = "muster:_reduce_scatter_base",
                  .in = elements_of(from, "reduce_scatter_tensor"),
                  .out = elements_of(output, "reduce_scatter_tensor"),
                  .reduction = reduction_for(opts.reduceOp, input),
                  .timeout = opts.timeout,
                  .is_async = opts.asyncOp,
                  .inputs = {from},
                  .result = {output}});
}

backend::work_pointer backend::barrier(const c10d::BarrierOptions& opts) {
  return perform({.kind = collective::barrier,
                  .op_type = OpType::BARRIER,
                  .title = "muster:barrier",
                  .timeout = opts.timeout,
                  .is_async = opts.asyncOp});
}

void backend::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  is_coalescing_ = true;
  coalesced_.clear();
}

backend::work_pointer backend::endCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  is_coalescing_ = false;
  tensors result;
  for (const auto& part : coalesced_) {
    const auto some = part->result();
    result.insert(result.end(), some.begin(), some.end());
  }
  return c10::make_intrusive<joined_work>(std::exchange(coalesced_, {}), std::move(result));
}

c10::intrusive_ptr<c10d::Backend> backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& opts) {
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) return nullptr;
  auto options = c10::make_intrusive<backend_options>(opts ? opts->timeout : options_->timeout);
  options->transport = options_->transport;
  if (opts) {
    options->group_name = opts->group_name;
    options->global_ranks_in_group = opts->global_ranks_in_group;
  }
  auto made = c10::make_intrusive<backend>(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                                           options);
  return c10::static_intrusive_pointer_cast<c10d::Backend>(made);
}

void backend::abort() {
  if (ranks_) ranks_->abort("the process group was aborted at rank " + std::to_string(getRank()));
}

void backend::shutdown() { ranks_.reset(); }

c10d::ErrorType backend::getError() {
  if (!ranks_) return c10d::ErrorType::SUCCESS;
  if (ranks_->is_aborted) return c10d::ErrorType::COMM_ERROR;
  const std::lock_guard held(ranks_->mutex);
  return ranks_->ranks.failed() ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::SUCCESS;
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
c10d::ReconfigureHandle backend::get_reconfigure_handle() const {
  if (!reconnects_)
    throw muster::configuration_error(
        "the process group cannot be reconfigured (it was not made for it); pass "
        "enable_reconfigure=True to init_process_group");
  return reconnects_->handle();
}

backend::work_pointer backend::reconfigure(const c10d::ReconfigureOptions& opts) {
  (void)get_reconfigure_handle();
  std::vector<std::string> handles;
  if (const auto* const ordered = std::get_if<std::vector<std::string>>(&opts.handles)) {
    handles = *ordered;
  } else {
    const auto& any = std::get<std::unordered_set<std::string>>(opts.handles);
    handles.assign(any.begin(), any.end());
    std::sort(handles.begin(), handles.end());
  }
  if (ranks_) ranks_->abort("the process group is reconfigured");
  ranks_.reset();
  ranks_ = reconnects_->connect(handles, opts.uuid, {opts.timeout.value_or(options_->timeout), options_->transport});
  const auto own = std::find(handles.begin(), handles.end(), reconnects_->handle());
  rank_ = static_cast<int>(own - handles.begin());
  size_ = static_cast<int>(handles.size());
  sequence_ = 0;
  return c10::make_intrusive<done_work>(OpType::UNKNOWN, tensors());
}
#endif

}  // namespace muster::torch_backend
