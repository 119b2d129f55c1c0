#include <muster/comm/transports/nccl/communicator.hpp>

#include <muster/core/error.hpp>

#include "nccl_state.hpp"

namespace muster { inline namespace v0 { namespace nccl {
namespace {

std::shared_ptr<detail::nccl_state> connect(group& ranks, seconds requested_timeout) {
  return std::make_shared<detail::nccl_state>(
      ranks, requested_timeout > seconds(0) ? requested_timeout : ranks.settings().timeout);
}

}  // namespace

int version() {
  int number = 0;
  detail::check_nccl(ncclGetVersion(&number), "ncclGetVersion");
  return number;
}

// ---- work ----

bool work::test() {
  if (operation_ != nullptr && !operation_->test()) return false;
  operation_.reset();
  return true;
}

void work::wait() { (void)wait_for(seconds::max()); }

bool work::wait_for(seconds limit) {
  if (operation_ != nullptr && !operation_->wait_for(limit)) return false;
  operation_.reset();
  return true;
}

void work::delay(device_stream_ref stream) const {
  if (operation_ != nullptr) operation_->mark().delay(stream);
}

// ---- communicator ----

communicator::communicator(group& ranks, const communicator_options& options)
    : options_(options), state_(connect(ranks, options.timeout)) {}

int communicator::rank() const noexcept { return state_->rank(); }
int communicator::size() const noexcept { return state_->size(); }
bool communicator::failed() const noexcept { return state_->failed(); }

void communicator::abort(std::string_view reason) noexcept {
  state_->fail(std::make_exception_ptr(
      peer_failure({state_->rank()}, "this rank gave up (" + std::string(reason) + "); see its own message")));
}

void communicator::rebuild(group& ranks) {
  if (state_->connects(ranks)) return;
  abort("it is rebuilt with other ranks");
  state_ = connect(ranks, options_.timeout);
}

void communicator::require_rank_in_range(const char* operation, int rank) const {
  if (rank >= 0 && rank < size()) return;
  throw configuration_error(std::string(operation) + " has no rank " + std::to_string(rank) + " (there are " +
                            std::to_string(size()) + "); count from 0");
}

registration communicator::register_bytes([[maybe_unused]] void* address, [[maybe_unused]] std::size_t bytes) {
  state_->check_before_call();
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  void* handle = nullptr;
  detail::check_nccl(ncclCommRegister(state_->comm(), address, bytes, &handle), "registering memory", state_->comm());
  return {handle, [state = state_](void* memory_handle) {
            // The end of the communicator has already released its registrations.
            if (memory_handle != nullptr && state->comm() != nullptr)
              (void)ncclCommDeregister(state->comm(), memory_handle);
          }};
#else
  return nullptr;
#endif
}

work communicator::start(std::span<const device_call> calls, device_stream_ref stream) {
  state_->check_before_call();
  if (calls.empty()) return {};
  return work(std::make_shared<detail::nccl_operation>(state_, calls, stream));
}

}}}  // namespace muster::v0::nccl
