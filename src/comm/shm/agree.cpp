// What the ranks of a host find out together before they begin.
#include <sched.h>
#include <sys/uio.h>

#include <algorithm>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "transport.hpp"

namespace muster::inline v0::detail {
namespace {

// Of lane_head::vote.
constexpr std::uint32_t first_round = 1;
constexpr std::uint32_t second_round = 2;
constexpr std::uint32_t third_round = 4;
constexpr std::uint32_t for_pulling = 8;
constexpr std::uint32_t for_asymmetry = 16;

constexpr std::size_t probe_bytes = std::size_t{256} << 10;
constexpr int probes = 3;

// Whether the system lets this process read that one.
bool can_read(pid_t process, std::uint64_t address) {
  std::byte copy;
  const iovec here{&copy, 1};
  const iovec there{reinterpret_cast<void*>(address), 1};
  return ::process_vm_readv(process, &here, 1, &there, 1, 0) == 1;
}

}  // namespace

// Seconds of an allreduce of private memory done that way, the fastest of some. Collective.
double shm_transport::time_exchange(bool pulls, std::vector<float>& data, clock::time_point until) {
  auto way = board_.host().agreed();
  way.pulls = pulls;
  board_.host().agree(way);
  const auto adding = reduction::of<float>(sum);
  native_call call;
  call.in = reinterpret_cast<const std::byte*>(data.data());
  call.out = reinterpret_cast<std::byte*>(data.data());
  call.count = data.size();
  call.element_size = sizeof(float);
  call.reduce = &adding;
  call.mark.kind = collective::allreduce;
  call.mark.count = data.size();
  double best = 1e9;
  for (int i = 0; i < probes; ++i) {
    const auto begin = clock::now();
    request r;
    (void)native(call, r);
    while (!test(r)) {
      if (clock::now() >= until) throw timeout_error("meeting", 0, {}, 0);
      if (const int gone = board_.find_gone(0); gone >= 0) refuse_gone(gone);
      sched_yield();
    }
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

void shm_transport::refuse_gone(int peer) {
  throw peer_failure({peer}, "rank " + std::to_string(peer) + " ended before all ranks had met");
}

// Every rank says its part of `mine`; what all of them say comes back. Collective; rounds are told apart by a bit.
std::uint32_t shm_transport::vote(std::uint32_t mine, std::uint32_t round, clock::time_point until) {
  board_.mine().vote.store(mine | round, std::memory_order_release);
  std::uint32_t all = ~0u;
  for (int p = 0; p < size(); ++p) {
    auto& theirs = board_.lane(p).vote;
    while ((theirs.load(std::memory_order_acquire) & round) == 0) {
      if (clock::now() >= until) throw timeout_error("meeting", 0, {p}, 0);
      if (board_.host().ended(board_.host_rank(p))) refuse_gone(p);
      sched_yield();
    }
    all &= theirs.load(std::memory_order_acquire);
  }
  return all;
}

void shm_transport::agree(cma_wish wish, clock::time_point until) {
  std::vector<float> data(probe_bytes / sizeof(float));
  board_.mine().probe = reinterpret_cast<std::uint64_t>(data.data());
  std::uint32_t mine = shm_board::can_be_asymmetric() ? for_asymmetry : 0u;
  vote(mine, first_round, until);

  bool allowed = wish != cma_wish::never;
  for (int p = 0; p < size() && allowed; ++p)
    allowed = p == rank() || can_read(board_.host().process(board_.host_rank(p)), board_.lane(p).probe);
  if (!allowed && wish == cma_wish::wherever_allowed) {
    log(log_level::warning,
        "--cma on: the system does not let this process read the others; data goes through shared memory");
  }
  mine |= first_round | (allowed ? for_pulling : 0u);
  const std::uint32_t able = vote(mine, second_round, until);
  board_.host().agree({(able & for_pulling) != 0, (able & for_asymmetry) != 0});

  if (board_.host().agreed().pulls && wish == cma_wish::where_faster && size() > 1) {
    const double laid_out = time_exchange(false, data, until);
    const double pulled = time_exchange(true, data, until);
    mine = (mine | second_round) & ~(pulled < laid_out ? 0u : for_pulling);
    const std::uint32_t all = vote(mine, third_round, until);
    board_.host().agree({(all & for_pulling) != 0, (all & for_asymmetry) != 0});
  }
  log(log_level::debug, std::string("shm: private memory ") +
                            (board_.host().agreed().pulls ? "is read by the system" : "goes through shared memory"));
}

}  // namespace muster::inline v0::detail
