#pragma once

#include <muster/comm/transports/shm/host.hpp>

#include <poll.h>
#include <sys/sysinfo.h>

#include <algorithm>

#include <muster/comm/transports/shm/cores.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {

MUSTER_INLINE shm_host::shm_host(int rank, std::shared_ptr<segment> own, std::vector<peer> peers,
                                 std::span<const std::uint32_t> cores)
    : rank_(rank),
      segment_(std::move(own)),
      peers_(std::move(peers)),
      oversubscribed_(peers_.size() > std::max<std::size_t>(cores.size(), 1)),
      no_shared_cache_(!share_a_cache(cores)) {
  for (int r = 0; r < size(); ++r)
    sees_death_ = sees_death_ && (r == rank || peers_[static_cast<std::size_t>(r)].process_handle);
}

MUSTER_INLINE bool shm_host::ended(int rank) const noexcept {
  pollfd watched{process_descriptor(rank), POLLIN, 0};  // poll ignores -1
  return ::poll(&watched, 1, 0) == 1 && (watched.revents & POLLIN) != 0;
}

MUSTER_INLINE void shm_host::retire(const retired& area) {
  const std::lock_guard lock(mutex_);
  retired_memory_.push_back(area);
}

MUSTER_INLINE void shm_host::release_retired(bool all) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(retired_memory_, [&](const retired& entry) {
    if (!all && entry.leavers->load(std::memory_order_acquire) != entry.users) return false;
    segment_->deallocate(entry.memory, entry.bytes);
    return true;
  });
}

MUSTER_INLINE std::size_t reserve_for(int rank_count) noexcept {
  struct sysinfo machine {};
  std::size_t memory = std::size_t{16} << 30;
  if (::sysinfo(&machine) == 0) memory = machine.totalram * machine.mem_unit;
  constexpr std::size_t addresses = std::size_t{32} << 40;  // a quarter of a process's address space
  constexpr std::size_t page = std::size_t{2} << 20;
  return std::min(memory * 2, addresses / static_cast<std::size_t>(rank_count)) / page * page;
}

}}}  // namespace muster::v0::detail
