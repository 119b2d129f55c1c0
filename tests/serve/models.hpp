// Models for tests of serving. A test can block their predictions and read the batches.
#pragma once

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <muster/serve/predictor.hpp>

namespace served {

namespace serve = muster::serve;

/// A gate that records batches, and can block predictions.
struct prediction_gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_blocked = false;           // true: predictions wait
  std::size_t waiting = 0;           // number of waiting predictions
  std::vector<std::size_t> batches;  // number of rows in each started batch

  void block() {
    const std::lock_guard lock(mutex);
    is_blocked = true;
  }
  void release() {
    const std::lock_guard lock(mutex);
    is_blocked = false;
    changed.notify_all();
  }
  /// Waits until a prediction waits in enter().
  void await_blocked() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return waiting > 0; });
  }
  void enter(std::size_t rows) {
    std::unique_lock lock(mutex);
    batches.push_back(rows);
    ++waiting;
    changed.notify_all();
    changed.wait(lock, [&] { return !is_blocked; });
    --waiting;
  }
};

/// A model for rows x of 2 x 2 numbers. The output is y = {factor * (sum of x), first number}. Refuses a row that
/// begins with -1, and throws if a row begins with -2.
struct sums {
  float factor = 1;
  std::shared_ptr<prediction_gate> gate{};
  serve::model_info description{
      .platform = "test", .input = {.name = "x", .shape = {2, 2}}, .output = {.name = "y", .shape = {2}}};

  [[nodiscard]] const serve::model_info& info() const { return description; }
  void predict(serve::prediction_batch& batch) const {
    if (gate) gate->enter(batch.size());
    for (std::size_t k = 0; k < batch.size(); ++k) {
      float x[4], y[2];
      std::memcpy(x, batch.row(k).data(), sizeof x);
      if (x[0] == -1) batch.refuse(k, "begins with -1");
      if (x[0] == -2) throw std::runtime_error("a row begins with -2");
      y[0] = factor * (x[0] + x[1] + x[2] + x[3]);
      y[1] = x[0];
      std::memcpy(batch.output().data() + k * sizeof y, y, sizeof y);
    }
  }
};
static_assert(serve::predictor<sums>);

/// A model whose output is the number of bytes in the row. Refuses no row.
struct lengths {
  serve::model_info description{.platform = "test",
                                .input = {.name = "text", .is_bytes = true},
                                .output = {.name = "length", .type = muster::dtype::int32}};

  [[nodiscard]] const serve::model_info& info() const { return description; }
  void predict(serve::prediction_batch& batch) const {
    for (std::size_t k = 0; k < batch.size(); ++k) {
      const auto length = static_cast<std::int32_t>(batch.row(k).size());
      std::memcpy(batch.output().data() + k * sizeof length, &length, sizeof length);
    }
  }
};
static_assert(serve::predictor<lengths>);

/// Returns the bytes of numbers.
inline std::span<const std::byte> bytes_of(const std::vector<float>& numbers) {
  return std::as_bytes(std::span(numbers));
}

/// Returns the numbers that are stored in bytes.
inline std::vector<float> floats_of(std::span<const std::byte> bytes) {
  std::vector<float> numbers(bytes.size() / sizeof(float));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace served
