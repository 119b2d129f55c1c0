#include <muster/data/minibatch.hpp>

#include <muster/data/batch_shard.hpp>

namespace muster::inline v0 {

std::vector<minibatch> minibatch::split(int count) const {
  if (count < 1) {
    throw configuration_error("a batch cannot be split into " + std::to_string(count) +
                              " (it needs one part); give 1 or more");
  }
  std::vector<minibatch> parts(static_cast<std::size_t>(count), *this);
  const std::size_t n = samples.size();
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const auto mine = part_of(n, {static_cast<int>(k), count});
    const auto first = static_cast<std::size_t>(mine.first);
    const auto size = static_cast<std::size_t>(mine.last - mine.first);
    const auto part_of = [&](auto all) {
      const std::size_t each = n == 0 ? 0 : all.size() / n;
      return all.subspan(first * each, size * each);
    };
    parts[k].samples = samples.subspan(first, size);
    parts[k].labels = part_of(labels);
    if (offsets.empty())
      parts[k].bytes = part_of(bytes);
    else
      parts[k].offsets = offsets.subspan(first, size + 1);  // into the bytes of all
    if (k > 0) parts[k].left_out = 0;
  }
  return parts;
}

}  // namespace muster::inline v0
