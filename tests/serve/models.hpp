// A model for tests of serving, which a test can stop and look into.
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

/// What a test knows of its model, and has of it.
struct control {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_held = false;              // predictions wait
  std::size_t held = 0;              // so many do
  std::vector<std::size_t> batches;  // rows of each that began

  void hold() {
    const std::lock_guard lock(mutex);
    is_held = true;
  }
  void release() {
    const std::lock_guard lock(mutex);
    is_held = false;
    changed.notify_all();
  }
  /// Until a prediction is held.
  void await_held() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return held > 0; });
  }
  void enter(std::size_t rows) {
    std::unique_lock lock(mutex);
    batches.push_back(rows);
    ++held;
    changed.notify_all();
    changed.wait(lock, [&] { return !is_held; });
    --held;
  }
};

/// Of a row x of 2 x 2 numbers y = {factor * (their sum), the first}. It refuses a row that begins with -1, and throws
/// at one that begins with -2.
struct sums {
  float factor = 1;
  std::shared_ptr<control> by{};
  serve::model_info what{
      .platform = "test", .input = {.name = "x", .shape = {2, 2}}, .output = {.name = "y", .shape = {2}}};

  [[nodiscard]] const serve::model_info& info() const { return what; }
  void predict(serve::prediction_batch& batch) const {
    if (by) by->enter(batch.size());
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

/// How many bytes a row has; refuses none.
struct lengths {
  serve::model_info what{.platform = "test",
                         .input = {.name = "text", .is_bytes = true},
                         .output = {.name = "length", .type = muster::dtype::int32}};

  [[nodiscard]] const serve::model_info& info() const { return what; }
  void predict(serve::prediction_batch& batch) const {
    for (std::size_t k = 0; k < batch.size(); ++k) {
      const auto length = static_cast<std::int32_t>(batch.row(k).size());
      std::memcpy(batch.output().data() + k * sizeof length, &length, sizeof length);
    }
  }
};
static_assert(serve::predictor<lengths>);

/// The bytes of numbers.
inline std::span<const std::byte> bytes_of(const std::vector<float>& numbers) {
  return std::as_bytes(std::span(numbers));
}

/// The numbers in bytes.
inline std::vector<float> floats_of(std::span<const std::byte> bytes) {
  std::vector<float> numbers(bytes.size() / sizeof(float));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace served
