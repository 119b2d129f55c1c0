// Copies with any size between any addresses, which write nothing else.
#include <muster/core/copy.hpp>

#include <algorithm>
#include <vector>

#include <muster/core/random.hpp>

#include "catch.hpp"

namespace {

template <class Copy>
void check(std::size_t bytes, muster::random_stream& draw, const Copy& copy) {
  constexpr std::size_t margin = 300;
  std::vector<std::byte> input(bytes + margin), output(bytes + margin, std::byte{0x5a});
  for (auto& byte : input) byte = static_cast<std::byte>(draw());
  const auto source = static_cast<std::ptrdiff_t>(draw.below(margin / 2));
  const auto target = static_cast<std::ptrdiff_t>(1 + draw.below(margin / 2));
  copy(output.data() + target, input.data() + source, bytes);
  const auto end = target + static_cast<std::ptrdiff_t>(bytes);
  CAPTURE(bytes, source, target);
  CHECK(std::equal(output.begin() + target, output.begin() + end, input.begin() + source));
  const auto untouched = [](std::byte byte) { return byte == std::byte{0x5a}; };
  CHECK(std::all_of(output.begin(), output.begin() + target, untouched));
  CHECK(std::all_of(output.begin() + end, output.end(), untouched));
}

}  // namespace

TEST_CASE("a large copy is a copy, and writes nothing beside it") {
  muster::random_stream draw(31);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t sizes[] = {draw.below(300), 2000 + draw.below(300), 4000 + draw.below(5000), draw.below(200000)};
    const auto bytes = sizes[draw.below(4)];
    check(bytes, draw, muster::detail::copy_bytes);
    const std::size_t total = draw.below(2) == 0 ? bytes : std::size_t{64} << 20;  // larger than the cache
    check(bytes, draw, [&](std::byte* destination, const std::byte* source, std::size_t n) {
      muster::detail::copy_out(destination, source, n, total);
    });
  }
}

// The sanitizers check that memcpy gets no null pointer, even for a size of 0.
TEST_CASE("no bytes are copied from nowhere to nowhere") {
  muster::detail::copy_bytes(nullptr, nullptr, 0);
  muster::detail::copy_out(nullptr, nullptr, 0, std::size_t{64} << 20);
  SUCCEED("nothing was touched");
}
