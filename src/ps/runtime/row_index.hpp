// Where the row of a key is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::inline v0::ps::detail {

/// Rows of floats under 64-bit keys, in the order in which they came: open addressing, and one array of all rows, so
/// that a row is one or two cache lines from its key.
class row_index {
 public:
  static constexpr std::uint32_t none = 0xffffffff;

  [[nodiscard]] std::uint32_t find(std::uint64_t key) const noexcept;
  /// The row of that key, a new one at the end if there is none.
  std::uint32_t find_or_add(std::uint64_t key);
  [[nodiscard]] const std::vector<std::uint64_t>& keys() const noexcept { return keys_; }

 private:
  [[nodiscard]] std::size_t slot_of(std::uint64_t key) const noexcept;
  void grow();

  std::vector<std::uint64_t> keys_;   // by row
  std::vector<std::uint32_t> slots_;  // rows; none where free; a power of two of them
};

}  // namespace muster::inline v0::ps::detail
