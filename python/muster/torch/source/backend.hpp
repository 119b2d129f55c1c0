// The backend "muster" of torch.distributed.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <typed_call.hpp>

#include "connection.hpp"
#include "work.hpp"

namespace muster::torch_backend {

/// Options of a process group.
struct backend_options : c10d::Backend::Options {
  explicit backend_options(std::chrono::milliseconds limit = kBackendDefaultTimeout)
      : c10d::Backend::Options("muster", limit) {}
#ifdef C10D_BACKEND_HAS_HOOKS
  c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
    return c10::make_intrusive<backend_options>(*this);
  }
#endif
  std::string transport = "auto";
};

/// The collectives of torch.distributed for tensors on the host. Calls of several threads take turns, in one order at
/// all ranks.
class backend final : public c10d::Backend {
 public:
  /// Connects the ranks, unless the options ask for reconfigure(). Collective.
  backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
          c10::intrusive_ptr<backend_options> options);
  ~backend() override;

  const std::string getBackendName() const override { return "muster"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}

  using work_pointer = c10::intrusive_ptr<c10d::Work>;
  using tensors = std::vector<at::Tensor>;
  using tensor_lists = std::vector<std::vector<at::Tensor>>;

  work_pointer broadcast(tensors& data, const c10d::BroadcastOptions& opts) override;
  work_pointer allreduce(tensors& data, const c10d::AllreduceOptions& opts) override;
  work_pointer allreduce_sparse(tensors& data, const c10d::AllreduceOptions& opts) override;
  work_pointer allreduce_coalesced(tensors& data, const c10d::AllreduceCoalescedOptions& opts) override;
  work_pointer reduce(tensors& data, const c10d::ReduceOptions& opts) override;
  work_pointer allgather(tensor_lists& outputs, tensors& inputs, const c10d::AllgatherOptions& opts) override;
  work_pointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  work_pointer allgather_coalesced(tensor_lists& outputs, tensors& inputs, const c10d::AllgatherOptions& opts) override;
  work_pointer allgather_into_tensor_coalesced(tensors& outputs, tensors& inputs,
                                               const c10d::AllgatherOptions& opts) override;
  work_pointer gather(tensor_lists& outputs, tensors& inputs, const c10d::GatherOptions& opts) override;
  work_pointer scatter(tensors& outputs, tensor_lists& inputs, const c10d::ScatterOptions& opts) override;
  work_pointer reduce_scatter(tensors& outputs, tensor_lists& inputs, const c10d::ReduceScatterOptions& opts) override;
  work_pointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                    const c10d::ReduceScatterOptions& opts) override;
  work_pointer reduce_scatter_tensor_coalesced(tensors& outputs, tensors& inputs,
                                               const c10d::ReduceScatterOptions& opts) override;
  work_pointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                             std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  work_pointer alltoall(tensors& outputs, tensors& inputs, const c10d::AllToAllOptions& opts) override;
#ifdef C10D_BACKEND_HAS_HOOKS
  work_pointer gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) override;
#endif
  work_pointer barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  work_pointer send(tensors& data, int peer, int tag) override;
  work_pointer recv(tensors& data, int peer, int tag) override;
  work_pointer recvAnysource(tensors& data, int tag) override;

  void startCoalescing() override;
  work_pointer endCoalescing() override;
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override;
  void abort() override;
  void shutdown() override;
  c10d::ErrorType getError() override;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  work_pointer reconfigure(const c10d::ReconfigureOptions& opts) override;
#endif

  /// Returns the name of the transport, for tests and logs.
  [[nodiscard]] std::string transport_name();

 private:
  struct collective_request;
  [[nodiscard]] connection& connected();
  [[nodiscard]] std::chrono::milliseconds limit_of(std::chrono::milliseconds requested) const;
  work_pointer perform(collective_request&& request);
  work_pointer exchange_pieces(const tensors& outputs, const tensors& inputs, tensors result,
                               const c10d::AllToAllOptions& opts);
  work_pointer reduce_each_to_its_rank(tensors& outputs, const tensors& list, const c10d::ReduceScatterOptions& opts);
  work_pointer begun(const c10::intrusive_ptr<open_work>& work, bool is_async);
  work_pointer joined(std::vector<work_pointer> parts, tensors result, bool is_async);

  c10::intrusive_ptr<backend_options> options_;
  std::shared_ptr<connection> ranks_;
  std::unique_ptr<reconnectable> reconnects_;
  std::atomic<std::uint64_t> sequence_ = 0;
  std::mutex coalescing_mutex_;
  bool is_coalescing_ = false;
  std::vector<work_pointer> coalesced_;
};

}  // namespace muster::torch_backend
