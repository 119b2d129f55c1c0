// Comparison of the modules of ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/group.hpp>
#include <muster/core/error.hpp>
#include <muster/torch/detail/module_tensors.hpp>

namespace muster { inline namespace v0 { namespace torch { namespace detail {

/// Returns a line for each tensor: "parameter 'fc.weight' float32[10x64]".
[[nodiscard]] inline std::vector<std::string> lines_of(const module_tensors& tensors) {
  std::vector<std::string> lines;
  const auto add = [&](const char* kind, const std::vector<named_tensor>& entries) {
    for (const auto& entry : entries) lines.push_back(kind + (" '" + entry.name + "' ") + shape_text(entry.tensor));
  };
  add("parameter", tensors.trained);
  add("frozen parameter", tensors.frozen);
  add("buffer", tensors.buffers);
  return lines;
}

/// Returns the text of rank `root` at every rank; collective.
[[nodiscard]] inline std::string broadcast_text(group& ranks, std::string text, int root) {
  std::uint64_t size = text.size();
  broadcast(ranks, size, root);
  text.resize(size);
  if (size > 0) broadcast(ranks, text, root);
  return text;
}

/// Compares the tensors of all ranks with the tensors of rank 0; collective. Throws mismatch_error at every rank, with
/// the first tensor that differs at any rank.
inline void require_equal_modules(group& ranks, const module_tensors& tensors) {
  constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
  const auto mine = lines_of(tensors);
  std::string joined;
  for (const auto& line : mine) joined += line + '\n';
  std::vector<std::string> theirs;
  std::istringstream all(broadcast_text(ranks, joined, 0));
  for (std::string line; std::getline(all, line);) theirs.push_back(line);
  const auto differs = std::ranges::mismatch(mine, theirs);
  const bool equal = differs.in1 == mine.end() && differs.in2 == theirs.end();
  const auto at = equal ? none : static_cast<std::uint64_t>(differs.in1 - mine.begin());
  const std::uint64_t first = allreduce(ranks, at, min);
  if (first == none) return;
  const std::uint64_t my_rank = at == first ? static_cast<std::uint64_t>(ranks.rank()) : none;
  const auto other = static_cast<int>(allreduce(ranks, my_rank, min));
  const auto line_at = [&](const std::vector<std::string>& lines) {
    return first < lines.size() ? lines[static_cast<std::size_t>(first)] : std::string("no further tensor");
  };
  const std::string line = broadcast_text(ranks, line_at(mine), other);
  barrier(ranks);  // a rank could otherwise detect the end of another rank before it has the text
  throw mismatch_error("the modules of ranks 0 and " + std::to_string(other) + " differ (rank 0 has " +
                       line_at(theirs) + ", rank " + std::to_string(other) + " has " + line +
                       "); make the same module at every rank");
}

}}}}  // namespace muster::v0::torch::detail
