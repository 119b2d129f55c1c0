// The counters of a model for /metrics. Any thread counts without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace muster { inline namespace v0 { namespace serve {

/// A histogram with the buckets of Prometheus. BoundCount ascend.
template <std::size_t BoundCount>
class fixed_bucket_histogram {
 public:
  explicit constexpr fixed_bucket_histogram(const std::array<double, BoundCount>& bounds) : bounds_(bounds) {}
  void add(double value) noexcept {
    std::size_t k = 0;
    while (k < BoundCount && value > bounds_[k]) ++k;
    counts_[k].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }
  [[nodiscard]] const std::array<double, BoundCount>& bounds() const noexcept { return bounds_; }
  /// Returns the number of values that are greater than bound k - 1 and at most bound k.
  [[nodiscard]] std::uint64_t count(std::size_t k) const noexcept { return counts_[k].load(std::memory_order_relaxed); }
  [[nodiscard]] double sum() const noexcept { return sum_.load(std::memory_order_relaxed); }

 private:
  std::array<double, BoundCount> bounds_;
  std::array<std::atomic<std::uint64_t>, BoundCount + 1> counts_{};
  std::atomic<double> sum_{0};
};

/// The statistics for all versions of a model. The server has separate statistics for requests that name no served
/// model.
class model_statistics {
 public:
  static constexpr std::size_t first_status = 200, end_of_statuses = 600;

  /// Counts a completed request. `status` is the HTTP status of the reply.
  void add_request(int status, double seconds) noexcept {
    requests_[static_cast<std::size_t>(status) - first_status].fetch_add(1, std::memory_order_relaxed);
    request_seconds.add(seconds);
  }
  [[nodiscard]] std::uint64_t requests(std::size_t status) const noexcept {
    return requests_[status - first_status].load(std::memory_order_relaxed);
  }

  fixed_bucket_histogram<12> request_seconds{{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 10}};
  fixed_bucket_histogram<11> batch_rows{{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}};

 private:
  std::array<std::atomic<std::uint64_t>, end_of_statuses - first_status> requests_{};
};

}}}  // namespace muster::v0::serve
