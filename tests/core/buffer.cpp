// Memory with a single owner.
#include <muster/core/buffer.hpp>

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <utility>

#include "catch.hpp"

namespace {

template <class T>
bool is_zero(const muster::buffer<T>& all) {
  return std::ranges::all_of(all, [](const T& element) { return element == T{}; });
}

struct not_zero {
  int value = 7;
  bool operator==(const not_zero&) const = default;
};

constexpr std::size_t mapped = muster::detail::least_mapped;

}  // namespace

TEST_CASE("a buffer of any size is zeros, aligned, and its owner's to write") {
  for (const std::size_t size : {std::size_t{1}, std::size_t{63}, std::size_t{100000}, mapped / 8 - 1, mapped / 8,
                                 mapped / 8 + 1, mapped / 8 + 300001}) {
    CAPTURE(size);
    for (int again = 0; again < 3; ++again) {  // also in memory that another buffer used before
      muster::buffer<double> values(size);
      REQUIRE(values.size() == size);
      CHECK(reinterpret_cast<std::uintptr_t>(values.data()) % muster::buffer_alignment == 0);
      CHECK(is_zero(values));
      std::ranges::fill(values, 1.5);
      const double* const place = values.data();
      muster::buffer<double> moved = std::move(values);
      CHECK(moved.data() == place);
      CHECK(moved[size - 1] == 1.5);
      moved = muster::buffer<double>(size);
      CHECK(is_zero(moved));
    }
  }
  CHECK(muster::buffer<int>(0).data() == nullptr);
}

TEST_CASE("a buffer of what does not begin as zeros begins as that does") {
  const muster::buffer<not_zero> values(mapped / sizeof(not_zero) + 1);
  CHECK(std::ranges::all_of(values, [](const not_zero& value) { return value.value == 7; }));
}

TEST_CASE("a buffer of a resource is given back to it, however large") {
  struct counting final : std::pmr::memory_resource {
    std::size_t held = 0;
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
      held += bytes;
      return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
      held -= bytes;
      std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  } source;
  {
    const muster::buffer<std::byte> small(1000, &source), large(mapped + 1, &source);
    CHECK(source.held == 1000 + mapped + 1);
    CHECK(is_zero(large));
  }
  CHECK(source.held == 0);
}

TEST_CASE("a buffer that no memory is there for is a bad_alloc") {
  CHECK_THROWS_AS(muster::buffer<double>(std::size_t(-1) / 4), std::bad_alloc);
  CHECK_THROWS_AS(muster::buffer<std::byte>(std::size_t(-1) - 100), std::bad_alloc);
  CHECK_THROWS_AS(muster::buffer<std::byte>(std::size_t(1) << 50), std::bad_alloc);
}
