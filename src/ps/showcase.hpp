// Values that workers on a server's host read where they lie, without a message.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <muster/comm/any_transport.hpp>
#include <muster/core/buffer.hpp>
#include <muster/ps/consistency.hpp>
#include <muster/ps/server.hpp>

#include "../core/copy.hpp"

namespace muster::inline v0::ps::detail {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Reads what another thread or process may be writing: the sequence lock tells whether it was whole.
#if defined(__SANITIZE_THREAD__)
[[gnu::no_sanitize("thread")]] inline void copy_unlocked(float* to, const std::byte* from, std::size_t bytes) noexcept {
  const auto* const values = reinterpret_cast<const volatile float*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) to[i] = values[i];
}
#else
inline void copy_unlocked(float* to, const std::byte* from, std::size_t bytes) noexcept {
  muster::detail::copy_bytes(reinterpret_cast<std::byte*>(to), from, bytes);
}
#endif

/// One range, in memory that the server writes and all of its host read: a sequence lock (Lameter 2005), whose `turn`
/// is odd while anything of it, or the values, is being changed.
struct alignas(64) shown_entry {
  std::atomic<std::uint64_t> turn{0};
  std::atomic<std::uint64_t> serves{0};
  std::atomic<std::uint64_t> place{0};  // of the values: the transport's name for it and 1; 0: nowhere
  std::atomic<std::uint64_t> version{0};
  std::atomic<std::uint64_t> folded{0};
  std::atomic<std::uint64_t> expected{0};  // the version that what was acknowledged has led to, or will
};
struct alignas(64) shown_head {
  std::atomic<std::uint64_t> slowest{0};
};

/// A server's side. Without a transport whose ranks read each other's memory it is empty, and all its calls do nothing.
class showcase {
 public:
  showcase() = default;
  showcase(any_transport& over, std::size_t ranges) : over_(&over) {
    if (over.memory() == nullptr) return;
    memory_ = buffer<std::byte>(bytes_for(ranges), over.memory());
    const auto name = over.name_of(memory_.data(), memory_.size());
    if (!name) {
      memory_ = {};
      return;
    }
    name_ = *name + 1;
    head_ = ::new (memory_.data()) shown_head;
    entries_ = reinterpret_cast<shown_entry*>(memory_.data() + sizeof(shown_head));
    std::uninitialized_value_construct_n(entries_, ranges);
    count_ = ranges;
  }
  showcase(const showcase&) = delete;
  showcase& operator=(const showcase&) = delete;
  ~showcase() {
    for (range_id id = 0; id < count_; ++id) begin(id);
    // A worker that was given up may look here as long as it lives: the memory is then left to it.
    if (!alone_ && count_ > 0) leave(std::move(memory_));
  }
  /// No worker looks here any more.
  void end_alone() noexcept { alone_ = true; }

  [[nodiscard]] static std::size_t bytes_for(std::size_t ranges) noexcept {
    return sizeof(shown_head) + ranges * sizeof(shown_entry);
  }
  /// What workers find it by: the transport's name and 1; 0 where there is nothing.
  [[nodiscard]] std::uint64_t name() const noexcept { return name_; }
  /// Where values are to lie, to be read; null where nobody reads them.
  [[nodiscard]] std::pmr::memory_resource* memory() const { return count_ > 0 ? over_->memory() : nullptr; }

  /// Something about that range is about to change, until it is `show`n.
  void begin(range_id id) noexcept {
    if (count_ == 0) return;
    auto& turn = entries_[id].turn;
    const auto now = turn.load(std::memory_order_relaxed);
    if (now % 2 == 1) return;
    turn.store(now + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // before anything that is written from now on
  }
  /// Its values lie there from now on.
  void place(range_id id, std::span<const float> values) noexcept {
    if (count_ == 0) return;
    const bool changing = entries_[id].turn.load(std::memory_order_relaxed) % 2 == 1;
    begin(id);
    const auto name = values.empty() ? std::nullopt : over_->name_of(values.data(), values.size_bytes());
    entries_[id].place.store(name ? *name + 1 : 0, std::memory_order_relaxed);
    if (!changing) end(id);
  }
  /// What leads to that version may be acknowledged from now on, and is not there before it is `show`n.
  void expect(range_id id, std::uint64_t version) noexcept {
    if (count_ > 0) entries_[id].expected.store(version, std::memory_order_release);
  }
  void show(range_id id, const shown_range& what) noexcept {
    if (count_ == 0) return;
    begin(id);
    auto& one = entries_[id];
    one.serves.store(what.serves ? 1 : 0, std::memory_order_relaxed);
    one.version.store(what.version, std::memory_order_relaxed);
    one.folded.store(what.folded, std::memory_order_relaxed);
    end(id);
  }
  void show_slowest(std::uint64_t clock) noexcept {
    if (count_ > 0) head_->slowest.store(clock, std::memory_order_release);
  }

 private:
  // Kept until the process ends.
  static void leave(buffer<std::byte> memory) {
    static std::mutex mutex;
    static auto& left = *new std::vector<buffer<std::byte>>();  // never destroyed: what it is of may be gone by then
    const std::lock_guard lock(mutex);
    left.push_back(std::move(memory));
  }
  void end(range_id id) noexcept {
    auto& turn = entries_[id].turn;
    turn.store(turn.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  any_transport* over_ = nullptr;
  buffer<std::byte> memory_;
  shown_head* head_ = nullptr;
  shown_entry* entries_ = nullptr;
  std::size_t count_ = 0;
  std::uint64_t name_ = 0;
  bool alone_ = false;
};

/// A worker's view of one server's.
class shown_values {
 public:
  shown_values() = default;
  shown_values(any_transport& over, int server, std::uint64_t name, std::size_t ranges)
      : over_(&over), server_(server) {
    const std::byte* const at = name == 0 ? nullptr : over.look(server, name - 1, showcase::bytes_for(ranges));
    if (at == nullptr) return;
    head_ = reinterpret_cast<const shown_head*>(at);
    entries_ = reinterpret_cast<const shown_entry*>(at + sizeof(shown_head));
  }

  /// Reads `to.size()` values from the `offset`-th of a range on, as a pull of that clock would be answered now, and
  /// its version; false where it would not be, or where they change all the time.
  [[nodiscard]] bool read(range_id id, std::size_t offset, std::span<float> to, const consistency& how,
                          std::uint64_t clock, std::uint64_t& version) const noexcept {
    if (entries_ == nullptr) return false;
    const auto& one = entries_[id];
    // Read first: what it promises is in the values since.
    const auto slowest = head_->slowest.load(std::memory_order_acquire);
    const auto expected = one.expected.load(std::memory_order_acquire);
    for (int tries = 0; tries < most_tries; ++tries) {
      const auto turn = one.turn.load(std::memory_order_acquire);
      if (turn % 2 == 1 || one.version.load(std::memory_order_relaxed) < expected) continue;
      const auto place = one.place.load(std::memory_order_relaxed);
      const auto folded = one.folded.load(std::memory_order_relaxed);
      const auto seen = one.version.load(std::memory_order_relaxed);
      if (one.serves.load(std::memory_order_relaxed) == 0 || place == 0 || !how.answers(clock, slowest, folded))
        return false;
      const std::byte* const values = over_->look(server_, place - 1 + offset * sizeof(float), to.size_bytes());
      if (values == nullptr) return false;
      copy_unlocked(to.data(), values, to.size_bytes());
      std::atomic_thread_fence(std::memory_order_acquire);  // behind all of the values
      if (one.turn.load(std::memory_order_relaxed) != turn) continue;
      version = seen;
      return true;
    }
    return false;
  }

 private:
  static constexpr int most_tries = 64;

  const any_transport* over_ = nullptr;
  int server_ = 0;
  const shown_head* head_ = nullptr;
  const shown_entry* entries_ = nullptr;
};

}  // namespace muster::inline v0::ps::detail
