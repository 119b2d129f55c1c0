#include <muster/comm/transports/nccl/communicator.hpp>

#include <cstring>
#include <thread>
#include <utility>

#include <muster/comm/bootstrap/exchange.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/core/error.hpp>

#include "../../timing.hpp"
#include "library.hpp"
#include "state.hpp"

namespace muster::inline v0::nccl {
namespace {

std::shared_ptr<detail::nccl_state> connect(group& ranks, seconds asked) {
  const seconds timeout = asked > seconds(0) ? asked : ranks.settings().timeout;
  const auto mine = detail::make_card(ranks.rank() == 0);
  std::vector<detail::nccl_card> endpoints(static_cast<std::size_t>(ranks.size()));
  const auto bytes = [](auto* cards_of, std::size_t count) {
    using byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(cards_of)>>, const unsigned char,
                                    unsigned char>;
    return std::span<byte>(reinterpret_cast<byte*>(cards_of), count * sizeof(detail::nccl_card));
  };
  allgather(ranks, bytes(&mine, 1), bytes(endpoints.data(), endpoints.size()), {.timeout = timeout});
  return std::make_shared<detail::nccl_state>(endpoints, ranks.rank(), ranks.state(), timeout);
}

std::shared_ptr<detail::nccl_state> connect(any_store& store, std::string_view key, int rank, int size, seconds asked) {
  const seconds timeout = asked > seconds(0) ? asked : detail::nccl_timing::default_timeout;
  const auto until = deadline_after(timeout);
  const auto mine = detail::make_card(rank == 0);
  const auto words =
      exchange(store, key, rank, size, std::string_view(reinterpret_cast<const char*>(&mine), sizeof mine), until);
  std::vector<detail::nccl_card> endpoints(words.size());
  for (std::size_t from = 0; from < words.size(); ++from) {
    if (words[from].size() != sizeof(detail::nccl_card)) {
      throw configuration_error("rank " + std::to_string(from) +
                                " sent a description of its device that this rank cannot read (another version of "
                                "muster); install one version on all hosts");
    }
    std::memcpy(&endpoints[from], words[from].data(), sizeof(detail::nccl_card));
  }
  return std::make_shared<detail::nccl_state>(endpoints, rank, nullptr, timeout);
}

}  // namespace

int version() {
  int number = 0;
  if (const auto answer = ncclGetVersion(&number); answer != ncclSuccess)
    std::rethrow_exception(detail::nccl_failure(answer, "ncclGetVersion", nullptr));
  return number;
}

// ---- work ----

work::work(std::shared_ptr<detail::nccl_state> of, device_stream_ref stream, std::string what, std::uint64_t sequence,
           clock::time_point deadline)
    : state_(std::move(of)),
      done_(std::make_shared<const device_event>(stream)),
      what_(std::move(what)),
      sequence_(sequence),
      deadline_(deadline) {
  state_->remember(done_);
}

work& work::operator=(work&& other) noexcept {
  end();
  state_ = std::move(other.state_);
  done_ = std::move(other.done_);
  what_ = std::move(other.what_);
  sequence_ = other.sequence_;
  deadline_ = other.deadline_;
  return *this;
}

work::~work() { end(); }

bool work::test() {
  if (!state_) return true;
  // An aborted collective is done too, without a result: hence the failure first, and again behind the mark.
  state_->look(what_);
  if (!done_->test()) {
    if (clock::now() >= deadline_) state_->time_out(what_, sequence_);
    return false;
  }
  state_->look(what_);
  state_.reset();
  return true;
}

void work::wait() {
  constexpr int quick = 2000;  // small collectives take microseconds, and a sleep takes sixty
  for (int turn = 0; !test(); ++turn) {
    if (turn >= quick) std::this_thread::sleep_for(detail::nccl_timing::poll);
  }
}

void work::end() noexcept {
  try {
    if (state_ && !state_->failed()) wait();
  } catch (...) {  // it stays in the communicator
  }
  state_.reset();
}

// ---- registration ----

registration::registration(std::shared_ptr<detail::nccl_state> of, void* handle) noexcept
    : state_(std::move(of)), handle_(handle) {}

registration::registration(registration&& other) noexcept
    : state_(std::move(other.state_)), handle_(std::exchange(other.handle_, nullptr)) {}

registration& registration::operator=(registration&& other) noexcept {
  end();
  state_ = std::move(other.state_);
  handle_ = std::exchange(other.handle_, nullptr);
  return *this;
}

registration::~registration() { end(); }

void registration::end() noexcept {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  // With the communicator went what it was told.
  if (handle_ != nullptr && state_->comm() != nullptr) (void)ncclCommDeregister(state_->comm(), handle_);
#endif
  handle_ = nullptr;
  state_.reset();
}

registration communicator::register_bytes([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
  state_->enter();
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  void* handle = nullptr;
  if (const auto answer = ncclCommRegister(state_->comm(), memory, bytes, &handle); answer != ncclSuccess)
    std::rethrow_exception(detail::nccl_failure(answer, "registering memory", state_->comm()));
  return {state_, handle};
#else
  return {};
#endif
}

// ---- communicator ----

communicator::communicator(group& ranks, const communicator_options& options)
    : options_(options), state_(connect(ranks, options.timeout)) {}

communicator::communicator(any_store& store, std::string_view key, int rank, int size,
                           const communicator_options& options)
    : options_(options), state_(connect(store, key, rank, size, options.timeout)) {}

communicator::communicator(communicator&&) noexcept = default;
communicator& communicator::operator=(communicator&&) noexcept = default;
communicator::~communicator() = default;

int communicator::rank() const noexcept { return state_->rank(); }
int communicator::size() const noexcept { return state_->size(); }
bool communicator::failed() const noexcept { return state_->failed(); }

void communicator::abort(std::string_view reason) noexcept {
  state_->fail(std::make_exception_ptr(
      peer_failure({state_->rank()}, "this rank gave up (" + std::string(reason) + "); see its own message")));
}

void communicator::rebuild(group& ranks) {
  abort("it is rebuilt with other ranks");
  state_ = connect(ranks, options_.timeout);
}

void communicator::require_peer(const char* what, int peer) const {
  if (peer >= 0 && peer < size()) return;
  throw configuration_error(std::string(what) + " has no rank " + std::to_string(peer) + " (there are " +
                            std::to_string(size()) + "); count from 0");
}

work communicator::start(std::span<const device_call> calls, device_stream_ref stream) {
  state_->enter();
  if (calls.empty()) return {};
  const auto until = deadline_after(state_->timeout());
  const auto sequence = state_->put_on(calls, stream, until);
  return {state_, stream, std::string("device ") + detail::name_of(calls.front().what), sequence, until};
}

}  // namespace muster::inline v0::nccl
