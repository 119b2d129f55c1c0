// A batch in parts that the threads of a rank work on.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <muster/data/batch_shard.hpp>

#include "../tasks.hpp"

namespace nn {

/// A batch is cut into lanes of neighbouring images by its own size alone. A lane has sums of its own, which are added
/// up in the order of the lanes, so that there are the same bits whatever threads take them. What a lane only works
/// with belongs to a thread: it still is in that one's cache.
class lanes {
 public:
  static constexpr std::size_t most = 8;

  explicit lanes(int threads) : tasks_(threads) {}

  [[nodiscard]] std::size_t threads() const noexcept { return tasks_.threads(); }
  /// In a body of run(): the thread that it is on, from 0.
  [[nodiscard]] std::size_t thread() const noexcept { return tasks_.worker(); }

  /// For a layer that has `pixels` of each image, so that fewer than `least` of them are no lane.
  [[nodiscard]] static std::size_t count(std::size_t images, std::size_t pixels, std::size_t least = 256) noexcept {
    return std::clamp<std::size_t>(images * pixels / least, 1, std::clamp<std::size_t>(images, 1, most));
  }

  /// Calls body(lane, first, last) for `count` lanes of a batch, with the images of each.
  template <class Body>
  void run(std::size_t count, std::size_t images, const Body& body) const {
    tasks_.run(count, [&](std::size_t lane) {
      const auto part = muster::part_of(images, {static_cast<int>(lane), static_cast<int>(count)});
      body(lane, part.first, part.last);
    });
  }

  /// Calls both, at the same time if there are threads.
  template <class First, class Second>
  void run_both(const First& first, const Second& second) const {
    tasks_.run(2, [&](std::size_t task) { task == 0 ? first() : second(); });
  }

 private:
  examples::rank_tasks tasks_;
};

/// What lanes add to the gradient of a parameter.
template <class T>
class lane_sums {
 public:
  /// Where a lane adds up its part of `sum`: the first one in place, the others in zeros of their own.
  [[nodiscard]] T* begin(std::size_t lane, std::span<T> sum) {
    if (lane == 0) return sum.data();
    sums_[lane].assign(sum.size(), T{0});
    return sums_[lane].data();
  }
  /// After all of `count` lanes.
  void finish(std::size_t count, std::span<T> sum) const {
    for (std::size_t lane = 1; lane < count; ++lane) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += sums_[lane][i];
    }
  }

 private:
  std::array<std::vector<T>, lanes::most> sums_;
};

}  // namespace nn
