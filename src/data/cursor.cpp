#include <muster/data/cursor.hpp>

#include <cstdio>

namespace muster::inline v0 {

std::string detail::difference(const cursor& there, const cursor& here) {
  std::string text;
  const auto compare = [&](const char* what, const std::string& one, const std::string& other) {
    if (one == other) return;
    text.append(text.empty() ? "" : ", ").append("the ").append(what);
    text.append(" is ").append(one).append(" there and ").append(other).append(" here");
  };
  const auto hex = [](std::uint64_t digest) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(digest));
    return std::string(digits);
  };
  const auto name = [](sample_order order) { return order == sample_order::shuffled ? "shuffled" : "sequential"; };
  compare("version", std::to_string(there.version), std::to_string(here.version));
  compare("number of samples", std::to_string(there.size), std::to_string(here.size));
  compare("dataset's digest", hex(there.dataset), hex(here.dataset));
  compare("order", name(there.order), name(here.order));
  compare("seed", std::to_string(there.seed), std::to_string(here.seed));
  compare("global batch", std::to_string(there.batch), std::to_string(here.batch));
  return text;
}

}  // namespace muster::inline v0
