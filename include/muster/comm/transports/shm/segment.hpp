// Memory that other processes of the host can map. The memory file has no name, so nothing remains when all processes
// have died.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <vector>

#include <muster/core/descriptor.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A mapping of a whole anonymous memory file, of at most `reserve` bytes. The file grows, and never shrinks or moves:
/// addresses beyond its present end are already reserved, in this process and in the peers.
class mapping {
 public:
  mapping() = default;
  /// Maps `file`. Throws error when the system refuses the address space.
  mapping(descriptor file, std::size_t reserve);
  /// Returns the same mapping again, for tests whose ranks are threads of one process. This object must outlive the
  /// alias.
  [[nodiscard]] mapping alias() const noexcept;

  [[nodiscard]] std::byte* at(std::uint64_t offset) const noexcept { return base_.get() + offset; }
  [[nodiscard]] std::size_t reserve() const noexcept { return reserve_; }
  [[nodiscard]] int file() const noexcept { return file_.get(); }

 private:
  struct unmapping {
    std::size_t bytes;  // 0 for an alias
    void operator()(std::byte* base) const noexcept;
  };

  descriptor file_;
  std::unique_ptr<std::byte, unmapping> base_;
  std::size_t reserve_ = 0;
};

/// This rank's memory file, and the allocator for its parts. Thread safe.
class segment final : public std::pmr::memory_resource {
 public:
  /// Creates the file. Throws error when the system has no memory files.
  explicit segment(std::size_t reserve);

  [[nodiscard]] const mapping& memory() const noexcept { return memory_; }
  /// Returns true if [data, data + bytes) is in this memory and not detached. Peers then find the data at
  /// `offset_of(address)`.
  [[nodiscard]] bool holds(const void* address, std::size_t bytes) const noexcept {
    const auto* const begin = static_cast<const std::byte*>(address);
    return begin >= memory_.at(0) && begin < memory_.at(memory_.reserve()) &&
           bytes <= static_cast<std::size_t>(memory_.at(memory_.reserve()) - begin) &&
           (!has_detached_.load(std::memory_order_relaxed) || !is_detached(begin, bytes));
  }
  [[nodiscard]] std::uint64_t offset_of(const void* address) const noexcept {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - memory_.at(0));
  }
  /// Replaces the pages of [data, data + bytes) in this process by private memory with the same content. Later writes
  /// of a peer change only the file, which this process does not read there until `attach_again`.
  void detach(void* address, std::size_t bytes) noexcept;
  /// Makes all detached memory shared again, with its present content. Called when none of the processes lives that had
  /// mapped the memory before. Detached memory that was deallocated is allocated again only afterwards.
  void attach_again() noexcept;

 private:
  struct range {
    const std::byte* begin;
    const std::byte* end;
  };
  [[nodiscard]] bool is_detached(const std::byte* address, std::size_t bytes) const noexcept;

  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  std::uint64_t grow(std::size_t bytes);
  void release(std::uint64_t offset, std::size_t size) noexcept;
  void discard_pages(const range& area) noexcept;

  mapping memory_;
  mutable std::mutex mutex_;
  // free ranges, offset to bytes, with neighbours merged; guarded by mutex_
  std::map<std::uint64_t, std::size_t> free_;
  std::size_t size_ = 0;  // size of the file in bytes; guarded by mutex_
  std::atomic<bool> has_detached_{false};
  std::vector<range> detached_;  // guarded by mutex_
  // deallocated ranges to which peers may still write; guarded by mutex_
  std::vector<range> retired_;
};

}}}  // namespace muster::v0::detail
