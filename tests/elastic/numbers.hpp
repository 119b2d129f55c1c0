// A source that consists of ids only, for loaders in tests.
#pragma once

#include <cstdint>

#include <muster/data/loader.hpp>

struct numbers {
  std::uint64_t count = 0;

  [[nodiscard]] std::uint64_t size() const noexcept { return count; }
  [[nodiscard]] std::uint64_t digest() const noexcept { return count; }
};
static_assert(muster::sample_source<numbers>);
