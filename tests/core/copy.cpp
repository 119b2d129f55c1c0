// Copies of any size, from anywhere to anywhere, and nothing beside them.
#include "core/copy.hpp"

#include <algorithm>
#include <vector>

#include <muster/core/random.hpp>

#include "catch.hpp"

namespace {

template <class Copy>
void check(std::size_t bytes, muster::random_stream& draw, const Copy& copy) {
  constexpr std::size_t margin = 300;
  std::vector<std::byte> from(bytes + margin), to(bytes + margin, std::byte{0x5a});
  for (auto& byte : from) byte = static_cast<std::byte>(draw());
  const auto source = static_cast<std::ptrdiff_t>(draw.below(margin / 2));
  const auto target = static_cast<std::ptrdiff_t>(1 + draw.below(margin / 2));
  copy(to.data() + target, from.data() + source, bytes);
  const auto end = target + static_cast<std::ptrdiff_t>(bytes);
  CAPTURE(bytes, source, target);
  CHECK(std::equal(to.begin() + target, to.begin() + end, from.begin() + source));
  const auto untouched = [](std::byte byte) { return byte == std::byte{0x5a}; };
  CHECK(std::all_of(to.begin(), to.begin() + target, untouched));
  CHECK(std::all_of(to.begin() + end, to.end(), untouched));
}

}  // namespace

TEST_CASE("a large copy is a copy, and writes nothing beside it") {
  muster::random_stream draw(31);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t sizes[] = {draw.below(300), 2000 + draw.below(300), 4000 + draw.below(5000), draw.below(200000)};
    const auto bytes = sizes[draw.below(4)];
    check(bytes, draw, muster::detail::copy_bytes);
    const std::size_t whole = draw.below(2) == 0 ? bytes : std::size_t{64} << 20;  // past the cache
    check(bytes, draw,
          [&](std::byte* to, const std::byte* from, std::size_t n) { muster::detail::copy_out(to, from, n, whole); });
  }
}

// Run by the sanitizers: memcpy takes no null, of however few bytes.
TEST_CASE("no bytes are copied from nowhere to nowhere") {
  muster::detail::copy_bytes(nullptr, nullptr, 0);
  muster::detail::copy_out(nullptr, nullptr, 0, std::size_t{64} << 20);
  SUCCEED("nothing was touched");
}
