// Works of torch.distributed over muster's works and messages.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <muster/comm/work.hpp>
#include <typed_call.hpp>

#include "connection.hpp"

namespace muster::torch_backend {

/// A call that was done when its function returned.
class done_work final : public c10d::Work {
 public:
  done_work(c10d::OpType kind, std::vector<at::Tensor> result) : Work(-1, kind), result_(std::move(result)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return result_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

 private:
  std::vector<at::Tensor> result_;
};

/// A call that may be outstanding. A thread of the process advances all of them, and so does each waiter.
class open_work : public c10d::Work {
 public:
  open_work(std::shared_ptr<connection> ranks, c10d::OpType kind, const char* title, std::vector<at::Tensor> inputs,
            std::vector<at::Tensor> result, std::uint64_t sequence);
  ~open_work() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  std::vector<at::Tensor> result() override { return result_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }

  /// Makes progress for at most `limit`; returns true when the call has ended. Never throws.
  bool advance(muster::seconds limit) noexcept;
  /// Lets the process's thread advance it from now on.
  void watch();
  /// Sets what is done once after success, such as copies into the caller's tensors.
  void set_finish(std::function<void()> finish) { finish_ = std::move(finish); }

 protected:
  /// Makes progress, for at most `limit`; returns true when the call is done. Throws its error.
  virtual bool poll(muster::seconds limit) = 0;
  /// Frees the call's own resources.
  virtual void release() noexcept = 0;

  std::shared_ptr<connection> ranks_;

 private:
  void complete(std::exception_ptr failure) noexcept;

  std::mutex turn_;  // held by the thread that advances
  std::atomic<bool> is_over_ = false;
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> result_;
  std::function<void()> finish_;
  std::uint64_t sequence_;
  bool is_watched_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// A collective.
class collective_work final : public open_work {
 public:
  using open_work::open_work;
  ~collective_work() override { release(); }
  void hold(muster::work&& started) { work_.emplace(std::move(started)); }

 private:
  bool poll(muster::seconds limit) override;
  void release() noexcept override;
  std::optional<muster::work> work_;
};

/// Messages that belong to one call.
class message_work final : public open_work {
 public:
  using open_work::open_work;
  ~message_work() override { release(); }
  void hold(std::unique_ptr<muster::detail::port_message> message) { messages_.push_back(std::move(message)); }
  int sourceRank() const override { return source_; }

 private:
  bool poll(muster::seconds limit) override;
  void release() noexcept override { messages_.clear(); }
  std::vector<std::unique_ptr<muster::detail::port_message>> messages_;
  std::size_t done_ = 0;
  int source_ = -1;
};

/// Runs a collective and waits. A signal's handler in Python that raises ends the group.
void run(connection& ranks, const muster::detail::typed_call& call);

/// Several works as one: it is done when all are.
class joined_work final : public c10d::Work {
 public:
  joined_work(std::vector<c10::intrusive_ptr<c10d::Work>> parts, std::vector<at::Tensor> result)
      : Work(-1, c10d::OpType::COALESCED), parts_(std::move(parts)), result_(std::move(result)) {}
  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return result_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
  std::vector<at::Tensor> result_;
};

/// Starts no further work of the process's thread and ends it: before the interpreter ends, and in children of fork().
void stop_progress() noexcept;
void forget_progress() noexcept;

}  // namespace muster::torch_backend
