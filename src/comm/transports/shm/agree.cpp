// What the ranks of a host find out together before they begin.
#include <sched.h>
#include <sys/uio.h>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "transport.hpp"

namespace muster::inline v0::detail {
namespace {

// Of slot_head::vote.
constexpr std::uint32_t first_round = 1;
constexpr std::uint32_t second_round = 2;
constexpr std::uint32_t for_pulling = 8;
constexpr std::uint32_t for_asymmetry = 16;

// Whether the system lets this process read that one.
bool can_read(pid_t process, std::uint64_t address) {
  std::byte copy;
  const iovec here{&copy, 1};
  const iovec there{reinterpret_cast<void*>(address), 1};
  return ::process_vm_readv(process, &here, 1, &there, 1, 0) == 1;
}

}  // namespace

// Every rank says its part of `mine`; what all of them say comes back. Collective; rounds are told apart by a bit.
std::uint32_t shm_transport::vote(std::uint32_t mine, std::uint32_t round, clock::time_point until,
                                  const std::function<bool()>& given_up) {
  shm_.mine().vote.store(mine | round, std::memory_order_release);
  std::uint32_t all = ~0u;
  for (int p = 0; p < size(); ++p) {
    auto& theirs = shm_.slot(p).vote;
    while ((theirs.load(std::memory_order_acquire) & round) == 0) {
      if (clock::now() >= until) throw timeout_error("meeting", 0, {p}, 0);
      if (shm_.host().ended(shm_.host_rank(p)) || (given_up && given_up())) fail_bootstrap_without(p);
      sched_yield();
    }
    all &= theirs.load(std::memory_order_acquire);
  }
  return all;
}

void shm_transport::agree(cma_wish wish, clock::time_point until, const std::function<bool()>& given_up) {
  const std::byte probe{};
  shm_.mine().probe = reinterpret_cast<std::uint64_t>(&probe);
  std::uint32_t mine = shm_group::can_be_asymmetric() ? for_asymmetry : 0u;
  vote(mine, first_round, until, given_up);

  bool allowed = wish != cma_wish::never;
  for (int p = 0; p < size() && allowed; ++p)
    allowed = p == rank() || can_read(shm_.host().process(shm_.host_rank(p)), shm_.slot(p).probe);
  if (!allowed && wish == cma_wish::wherever_allowed) {
    log(log_level::warning,
        "--cma on: the system does not let this process read the others; data goes through shared memory");
  }
  mine |= first_round | (allowed ? for_pulling : 0u);
  const std::uint32_t able = vote(mine, second_round, until, given_up);
  const bool may_pull = (able & for_pulling) != 0;
  shm_.host().agree({may_pull, may_pull && wish == cma_wish::wherever_allowed, (able & for_asymmetry) != 0});
  log(log_level::debug, std::string("shm: the ranks ") + (may_pull ? "may" : "cannot") + " read each other's memory");
}

}  // namespace muster::inline v0::detail
