// One group over the connections that a process's groups share.
#pragma once

#include "../../../core/descriptor.hpp"
#include "../../matching/group.hpp"

namespace muster::inline v0::detail {

/// Its peers are the ranks of the world. A thread that pauses waits for `wake_file` beside the connections.
class tcp_channel final : public matching_group {
 public:
  tcp_channel(std::uint64_t generation, std::vector<int> members, int rank, int world_size);

  void wake() noexcept override;
  [[nodiscard]] int wake_file() const noexcept { return wake_.get(); }
  void set_asleep(bool yes) noexcept;

 private:
  descriptor wake_;
  std::atomic<bool> asleep_{false};
};

}  // namespace muster::inline v0::detail
