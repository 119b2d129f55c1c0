// A server's values, changed by several threads: each has ranges of its own.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <muster/ps/server.hpp>

#include "showcase.hpp"
#include "tables.hpp"

namespace muster::inline v0::ps::detail {

/// See `range_storage`. What a range is told to `apply` waits for the thread that has the range, with a copy of what
/// was pushed; what reads, copies or replaces a range waits until that thread is through with it. So each range sees
/// the same calls in the same order as without threads, and no two threads ever touch one range. Handing over takes no
/// lock.
///
/// Used by one thread. What an update throws comes out of the next call, after which nothing is applied any more.
class update_threads final : public range_storage {
 public:
  /// At least one thread. Both others outlive it.
  update_threads(tables& values, showcase& shown, std::size_t threads, std::size_t ranges);
  ~update_threads() override;

  [[nodiscard]] std::string problem_with(range_id range, const message& asked) const override {
    return values_.problem_with(range, asked);
  }
  void apply(range_id range, const log_entry& entry) override;
  [[nodiscard]] std::span<const std::byte> read(range_id range, const message& pull) override;
  void save(range_id range, std::string& to) const override;
  [[nodiscard]] bool load(range_id range, std::span<const std::byte> saved) override;
  void reset(range_id range) override;

  /// As the showcase's, behind what was to be applied before; at once where it takes something back.
  void show(range_id range, const shown_range& what);
  void show_slowest(std::uint64_t clock);
  /// Throws what an update has thrown.
  void check() const;

 private:
  struct task {
    enum class kind : std::uint8_t { apply, show, slowest, stop };
    kind what = kind::stop;
    range_id range = 0;
    log_entry entry;                 // of `apply`; its payload is the one below
    std::vector<std::byte> payload;  // kept from task to task
    shown_range shown;
    std::uint64_t clock = 0;
  };
  // A ring of tasks with one writer and one reader. So many that a burst of frames goes in, and so few that what was
  // pushed is still in a cache when it is applied.
  struct lane {
    static constexpr std::uint64_t slots = 32;
    std::array<task, slots> ring;
    alignas(64) std::atomic<std::uint64_t> put{0};
    alignas(64) std::atomic<std::uint64_t> done{0};
    std::uint64_t slowest = 0;  // that it has come to; under the mutex below
  };
  struct kept_range {
    std::size_t lane = nowhere;
    std::uint64_t until = 0;    // it is through with the range when it has done so many
    std::uint64_t version = 0;  // and whether it is served: as they are shown, or will be
    bool serves = false;
  };
  static constexpr std::size_t nowhere = ~std::size_t{0};

  [[nodiscard]] task& next(lane& to) const;
  void hand(lane& to);
  [[nodiscard]] lane& lane_of(range_id range);
  void stop();
  void settle(range_id range) const;
  void settle(const lane& one, std::uint64_t until) const;
  void run(lane& own);
  void carry_out(lane& own, task& one);

  tables& values_;
  showcase& shown_;
  std::vector<std::unique_ptr<lane>> lanes_;
  std::size_t next_lane_ = 0;
  std::vector<kept_range> ranges_;
  std::uint64_t slowest_ = 0;  // that was said
  std::mutex slowest_mutex_;   // taken once a clock, not once a push
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;  // before `failed_`
  std::vector<std::jthread> threads_;
};

}  // namespace muster::inline v0::ps::detail
