#include "state.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

#include "../../../core/device/check.hpp"
#include "../../group/group_state.hpp"
#include "../../timing.hpp"
#include "library.hpp"

namespace muster::inline v0::detail {
namespace {

ncclConfig_t not_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

// ---- endpoints ----

nccl_card make_card(bool root) {
  nccl_card card;
  if (const auto answer = ncclGetVersion(&card.version); answer != ncclSuccess)
    std::rethrow_exception(nccl_failure(answer, "ncclGetVersion", nullptr));
  check_cuda(cudaDeviceGetPCIBusId(card.device, sizeof card.device, current_device()), "cudaDeviceGetPCIBusId");
  card.host = digest().add(host_identity(settings())).value();
  if (root) {
    if (const auto answer = ncclGetUniqueId(&card.id); answer != ncclSuccess)
      std::rethrow_exception(nccl_failure(answer, "ncclGetUniqueId", nullptr));
  }
  return card;
}

void check_cards(std::span<const nccl_card> endpoints) {
  for (std::size_t rank = 1; rank < endpoints.size(); ++rank) {
    if (endpoints[rank].version != endpoints[0].version) {
      throw configuration_error("rank 0 runs with NCCL " + std::to_string(endpoints[0].version) + " and rank " +
                                std::to_string(rank) + " with " + std::to_string(endpoints[rank].version) +
                                " (different versions do not work together); install one version on all hosts");
    }
    for (std::size_t other = 0; other < rank; ++other) {
      if (endpoints[other].host != endpoints[rank].host ||
          std::strcmp(endpoints[other].device, endpoints[rank].device) != 0)
        continue;
      throw configuration_error("ranks " + std::to_string(other) + " and " + std::to_string(rank) +
                                " have the same device, " + endpoints[rank].device +
                                " (NCCL needs one device for each rank); call use_device with the local rank");
    }
  }
}

// ---- connecting ----

nccl_state::nccl_state(std::span<const nccl_card> endpoints, int rank, std::shared_ptr<group_state> ranks,
                       seconds timeout)
    : ranks_(std::move(ranks)),
      rank_(rank),
      size_(static_cast<int>(endpoints.size())),
      device_(current_device()),
      timeout_(timeout) {
  check_cards(endpoints);
  auto config = not_blocking();
  const auto until = deadline_after(timeout_);
  settle(ncclCommInitRankConfig(&comm_, size_, endpoints[0].id, rank_, &config), "connecting devices by NCCL", until);
}

void nccl_state::settle(ncclResult_t answer, const std::string& what, clock::time_point until) {
  while (answer == ncclInProgress) {
    look_at_group();
    if (failure_) std::rethrow_exception(failure_);
    if (clock::now() >= until) time_out(what, sequence_);
    std::this_thread::sleep_for(nccl_timing::poll);
    if (comm_ == nullptr) continue;  // the call has not made it yet
    if (const auto asked = ncclCommGetAsyncError(comm_, &answer); asked != ncclSuccess) answer = asked;
  }
  if (answer == ncclSuccess) return;
  const auto cause = nccl_failure(answer, what, comm_);
  ask_group_for_names();
  fail(cause);
  std::rethrow_exception(failure_);
}

// ---- calls ----

void nccl_state::enter() {
  if (!failure_) look_at_group();
  if (failure_) std::rethrow_exception(failure_);
  if (const int device = current_device(); device != device_) {
    throw configuration_error("a communicator of device " + std::to_string(device_) + " was called with device " +
                              std::to_string(device) +
                              " current (its streams belong to its own device); call use_device first");
  }
}

std::uint64_t nccl_state::put_on(std::span<const nccl::device_call> calls, device_stream_ref stream,
                                 clock::time_point until) {
  const bool grouped = calls.size() != 1;
  auto answer = grouped ? ncclGroupStart() : ncclSuccess;
  const auto good = [&] { return answer == ncclSuccess || answer == ncclInProgress; };
  for (std::size_t i = 0; i < calls.size() && good(); ++i) answer = put(calls[i], comm_, stream.handle);
  if (grouped) {  // ended in any case, or the thread's next call would belong to it
    const auto ended = ncclGroupEnd();
    if (good()) answer = ended;
  }
  settle(answer, calls.empty() ? "an empty list" : name_of(calls.front().what), until);
  return sequence_++;
}

void nccl_state::remember(const std::shared_ptr<const device_event>& signature) {
  std::erase_if(under_way_, [](const auto& one) { return one.expired(); });
  under_way_.push_back(signature);
}

void nccl_state::look(const std::string& what) {
  if (!failure_) look_at_group();
  if (!failure_) {
    ncclResult_t answer = ncclSuccess;
    if (const auto asked = ncclCommGetAsyncError(comm_, &answer); asked != ncclSuccess) answer = asked;
    if (answer != ncclSuccess && answer != ncclInProgress) {
      const auto cause = nccl_failure(answer, what, comm_);
      ask_group_for_names();
      fail(cause);
    }
  }
  if (failure_) std::rethrow_exception(failure_);
}

// ---- the end ----

void nccl_state::look_at_group() {
  if (!ranks_) return;
  std::exception_ptr theirs;
  {
    const auto lock = ranks_->guard();
    ranks_->poll_notices();
    theirs = ranks_->failure();
  }
  if (theirs) fail(theirs);
}

void nccl_state::ask_group_for_names() {
  if (!ranks_ || !ranks_->abilities.detects_death) return;
  const auto until = deadline_after(std::min(nccl_timing::failed_ranks, timeout_));
  while (!failure_ && clock::now() < until) {
    look_at_group();
    std::this_thread::sleep_for(nccl_timing::poll);
  }
}

void nccl_state::time_out(const std::string& what, std::uint64_t sequence) {
  fail(std::make_exception_ptr(timeout_error(what, sequence, {}, timeout_.count())));
  std::rethrow_exception(failure_);
}

void nccl_state::fail(std::exception_ptr cause) noexcept {
  if (failure_) return;
  failure_ = cause;
  if (ranks_) {
    const auto lock = ranks_->guard();
    ranks_->abort(describe(cause), exit_status_of(cause));
  }
  let_go();
}

// A kernel of NCCL ends when it sees the abort; until then it may write to buffers, which are not ours to give back.
void nccl_state::let_go() noexcept {
  if (comm_ != nullptr) (void)ncclCommAbort(std::exchange(comm_, nullptr));
  try {
    const auto until = deadline_after(nccl_timing::abort);
    for (const auto& one : std::exchange(under_way_, {})) {
      if (const auto signature = one.lock()) signature->wait(until);
    }
  } catch (...) {  // a device that failed runs nothing, and says so at the next call
  }
}

nccl_state::~nccl_state() {
  if (comm_ == nullptr) return;
  try {
    if (std::uncaught_exceptions() == 0) {
      const auto until = deadline_after(timeout_);
      settle(ncclCommFinalize(comm_), "ending NCCL", until);
      (void)ncclCommDestroy(std::exchange(comm_, nullptr));
    }
  } catch (...) {  // then it ends without the others
  }
  let_go();
}

}  // namespace muster::inline v0::detail
