// What the ranks of a host find out together before they begin.
#include <sched.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "transport.hpp"

namespace muster::inline v0::detail {
namespace {

// Of lane_head::vote.
constexpr std::uint32_t present = 1;
constexpr std::uint32_t voted = 2;
constexpr std::uint32_t for_pulling = 4;
constexpr std::uint32_t for_asymmetry = 8;

constexpr std::size_t probe_bytes = std::size_t{128} << 10;
constexpr int probes = 5;

template <class Work>
double fastest(Work work) {
  double best = 1e9;
  for (int i = 0; i < probes; ++i) {
    const auto begin = clock::now();
    work();
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

bool read_others(pid_t process, std::uint64_t address, std::byte* to) {
  const iovec here{to, probe_bytes};
  const iovec there{reinterpret_cast<void*>(address), probe_bytes};
  return ::process_vm_readv(process, &here, 1, &there, 1, 0) == static_cast<ssize_t>(probe_bytes);
}

}  // namespace

void shm_transport::agree(cma_wish wish, clock::time_point until) {
  const auto wait_for = [&](int peer, std::uint32_t what) {
    while ((board_.lane(peer).vote.load(std::memory_order_acquire) & what) == 0) {
      if (clock::now() >= until) throw timeout_error("meeting", 0, {peer}, 0);
      if (board_.host().ended(board_.host_rank(peer)))
        throw peer_failure({peer}, "rank " + std::to_string(peer) + " ended before all ranks had met");
      sched_yield();
    }
  };
  auto& mine = board_.mine();
  std::vector<std::byte> data(probe_bytes, std::byte{1});
  mine.probe = reinterpret_cast<std::uint64_t>(data.data());
  mine.vote.store(present, std::memory_order_release);

  const int next = (rank() + 1) % size();
  wait_for(next, present);
  const pid_t process = board_.host().process(board_.host_rank(next));
  const std::uint64_t address = board_.lane(next).probe;
  std::vector<std::byte> copy(probe_bytes);
  bool pulls = next != rank() && wish != cma_wish::never && read_others(process, address, copy.data());
  if (wish == cma_wish::wherever_allowed && !pulls && next != rank())
    log(log_level::warning, "--cma on: the system does not let this process read others; data goes through shared memory");
  if (pulls && wish == cma_wish::where_faster) {
    // What it would replace: the owner lays out a copy, and that is read.
    const double laid_out = fastest([&] { std::memcpy(board_.staging(rank()), data.data(), probe_bytes); }) +
                            fastest([&] { std::memcpy(copy.data(), board_.staging(rank()), probe_bytes); });
    pulls = fastest([&] { (void)read_others(process, address, copy.data()); }) < laid_out;
  }
  const bool asymmetric = shm_board::can_be_asymmetric();
  mine.vote.store(present | voted | (pulls ? for_pulling : 0u) | (asymmetric ? for_asymmetry : 0u),
                  std::memory_order_release);
  std::uint32_t all = ~0u;
  for (int p = 0; p < size(); ++p) {
    wait_for(p, voted);
    all &= board_.lane(p).vote.load(std::memory_order_acquire);
  }
  board_.host().agree({(all & for_pulling) != 0, (all & for_asymmetry) != 0});
  log(log_level::debug, std::string("shm: private memory ") +
                            (board_.host().agreed().pulls ? "is read by the system" : "goes through shared memory"));
}

}  // namespace muster::inline v0::detail
