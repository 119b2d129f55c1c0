#include "message.hpp"

#include <cmath>

namespace muster::inline v0::ps {

std::optional<frame_head> decode_head(std::span<const std::byte> frame) noexcept {
  frame_head read;
  const auto magic = read.magic;
  if (frame.size() < frame_head_bytes) return std::nullopt;
  std::memcpy(&read, frame.data(), frame_head_bytes);
  if (read.magic != magic || read.from.at >= most_nodes) return std::nullopt;
  return read;
}

std::optional<log_entry> decode_entry(std::span<const std::byte> body) noexcept {
  log_entry read;
  if (body.size() < log_entry_head_bytes) return std::nullopt;
  std::memcpy(static_cast<void*>(&read), body.data(), log_entry_head_bytes);
  read.push.payload = body.subspan(log_entry_head_bytes);
  const bool folds = read.what == log_entry::kind::fold;
  if (read.what > log_entry::kind::late || read.push.zero != 0 || !std::isfinite(read.weight) ||
      !std::isfinite(read.push.scale) || (folds ? !read.push.payload.empty() : read.from.at >= most_nodes))
    return std::nullopt;
  return read;
}

}  // namespace muster::inline v0::ps
