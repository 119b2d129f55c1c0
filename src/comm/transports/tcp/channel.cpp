#include "channel.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <system_error>

namespace muster::inline v0::detail {

tcp_channel::tcp_channel(std::uint64_t generation, std::vector<int> members, int rank, int world_size)
    : matching_group(generation, std::move(members), rank, world_size),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!wake_) throw std::system_error(errno, std::generic_category(), "no eventfd for a group");
}

void tcp_channel::wake() noexcept {
  if (!asleep_.load()) return;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void tcp_channel::set_asleep(bool yes) noexcept {
  asleep_.store(yes);
  if (yes) return;
  std::uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);
}

}  // namespace muster::inline v0::detail
