// Memory that other processes of the host can map: without a name, so that nothing is left when all have died.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <vector>

#include "../../../core/descriptor.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// An anonymous memory file mapped whole, at most `reserve` bytes. It grows, never shrinks and never moves: addresses
/// beyond its present end are reserved already, here and in the peers.
class mapping {
 public:
  mapping() = default;
  /// Throws error when the address space is refused.
  mapping(descriptor file, std::size_t reserve);
  /// The same addresses once more, for ranks that are threads of one process; this one must outlive it.
  [[nodiscard]] mapping alias() const noexcept;

  [[nodiscard]] std::byte* at(std::uint64_t offset) const noexcept { return base_.get() + offset; }
  [[nodiscard]] std::size_t reserve() const noexcept { return reserve_; }
  [[nodiscard]] int file() const noexcept { return file_.get(); }

 private:
  struct unmapping {
    std::size_t bytes;  // none of an alias
    void operator()(std::byte* base) const noexcept;
  };

  descriptor file_;
  std::unique_ptr<std::byte, unmapping> base_;
  std::size_t reserve_ = 0;
};

/// This rank's own memory file, and the allocator of its parts. Thread safe.
class segment final : public std::pmr::memory_resource {
 public:
  /// Throws error when the system has no memory files.
  explicit segment(std::size_t reserve);

  [[nodiscard]] const mapping& memory() const noexcept { return memory_; }
  /// Whether all of [data, data + bytes) was allocated here: what peers can then reach at `offset_of(data)`.
  [[nodiscard]] bool holds(const void* data, std::size_t bytes) const noexcept {
    const auto* const at = static_cast<const std::byte*>(data);
    return at >= memory_.at(0) && at < memory_.at(memory_.reserve()) &&
           bytes <= static_cast<std::size_t>(memory_.at(memory_.reserve()) - at) &&
           (!has_detached_.load(std::memory_order_relaxed) || !is_detached(at, bytes));
  }
  [[nodiscard]] std::uint64_t offset_of(const void* data) const noexcept {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - memory_.at(0));
  }
  /// Takes the pages of [data, data + bytes) out of the peers' reach for good: here they go on with their content as
  /// private memory, and what a peer still writes goes to where no process looks.
  void detach(void* data, std::size_t bytes) noexcept;
  /// Takes back what was detached, with its present content: no process lives any more that was given it before.
  void attach_again() noexcept;

 private:
  struct range {
    const std::byte* begin;
    const std::byte* end;
  };
  [[nodiscard]] bool is_detached(const std::byte* data, std::size_t bytes) const noexcept;

  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  std::uint64_t grow(std::size_t bytes);
  void release(std::uint64_t at, std::size_t size) noexcept;

  mapping memory_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::size_t> free_;  // offset to bytes, neighbours merged
  std::size_t size_ = 0;                       // of the file
  std::atomic<bool> has_detached_{false};
  std::vector<range> detached_;
};

}}}  // namespace muster::v0::detail
