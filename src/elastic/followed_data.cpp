#include <muster/elastic/followed_data.hpp>

#include <cstring>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/error.hpp>

namespace muster::inline v0 {

void followed_data::describe(state_parts& parts) {
  if (!data_->follows()) return;
  parts.add(
      "followed data", state_kind::replicated,
      [this] {
        std::vector<std::byte> bytes(sizeof next_);
        std::memcpy(bytes.data(), &next_, sizeof next_);
        return bytes;
      },
      [this](std::span<const std::byte> bytes) {
        if (bytes.size() != sizeof next_) {
          throw data_error({"followed data"}, "cannot be read (it has another size); use the muster it was written by");
        }
        std::memcpy(&next_, bytes.data(), sizeof next_);
        data_->grow_to(next_);
      });
  parts.exchange(
      [this](group& among) { agreed_ = data_->at_last_batch() ? allreduce(among, data_->newest(), muster::min) : 0; });
  parts.hook(
      [this] {
        if (agreed_ == 0) return;
        next_ = agreed_;
        data_->grow_to(next_);
      },
      [this] { agreed_ = 0; });
}

}  // namespace muster::inline v0
