// The division of a batch into parts for the threads of a rank.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <muster/data/batch_shard.hpp>

#include "../tasks.hpp"

namespace nn {

/// The lanes of a batch: parts of neighbouring images. The division depends only on the size of the batch. Each lane
/// has its own sums, which are added in the order of the lanes. Therefore results are bitwise equal for any number
/// of threads. Scratch memory belongs to a thread, so that it stays in the thread's cache.
class lanes {
 public:
  static constexpr std::size_t most = 8;

  explicit lanes(int threads) : tasks_(threads) {}

  [[nodiscard]] std::size_t threads() const noexcept { return tasks_.threads(); }
  /// Returns the index, from 0, of the thread that runs the calling body of run().
  [[nodiscard]] std::size_t thread() const noexcept { return tasks_.worker(); }

  /// Returns the number of lanes for a layer with `pixels` pixels in each image. A lane has at least `least` pixels.
  [[nodiscard]] static std::size_t count(std::size_t images, std::size_t pixels, std::size_t least = 256) noexcept {
    return std::clamp<std::size_t>(images * pixels / least, 1, std::clamp<std::size_t>(images, 1, most));
  }

  /// Calls body(lane, first, last) for `count` lanes of a batch, with each lane's range of images.
  template <class Body>
  void run(std::size_t count, std::size_t images, const Body& body) const {
    tasks_.run(count, [&](std::size_t lane) {
      const auto part = muster::part_of(images, {static_cast<int>(lane), static_cast<int>(count)});
      body(lane, part.first, part.last);
    });
  }

  /// Calls both functions, at the same time if there are threads.
  template <class First, class Second>
  void run_both(const First& first, const Second& second) const {
    tasks_.run(2, [&](std::size_t task) { task == 0 ? first() : second(); });
  }

 private:
  examples::rank_tasks tasks_;
};

/// The sums that lanes add to the gradient of a parameter.
template <class T>
class lane_sums {
 public:
  /// Returns the memory in which a lane accumulates its part of `sum`: lane 0 in place, other lanes in zeros of their
  /// own.
  [[nodiscard]] T* begin(std::size_t lane, std::span<T> sum) {
    if (lane == 0) return sum.data();
    sums_[lane].assign(sum.size(), T{0});
    return sums_[lane].data();
  }
  /// Adds the parts of all lanes to `sum`. Called when the `count` lanes are done.
  void finish(std::size_t count, std::span<T> sum) const {
    for (std::size_t lane = 1; lane < count; ++lane) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += sums_[lane][i];
    }
  }

 private:
  std::array<std::vector<T>, lanes::most> sums_;
};

}  // namespace nn
