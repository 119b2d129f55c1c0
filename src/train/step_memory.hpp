// Values that steps leave to those behind them: what a step makes of them counts when it commits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include <muster/elastic/state.hpp>

namespace muster::inline v0::detail {

/// The values of the last step that was committed, and beside them those that the present one makes.
class step_memory {
 public:
  explicit step_memory(std::size_t size) : now_(size), next_(size) {}

  [[nodiscard]] std::span<float> now() noexcept { return now_.span(); }
  [[nodiscard]] std::span<float> next() noexcept { return next_.span(); }
  void adopt() noexcept { std::swap(now_, next_); }

  void describe(state_parts& parts, const std::string& name, state_kind kind) {
    parts.add(
        name, kind,
        [this] {
          const auto bytes = std::as_bytes(now_.span());
          return std::vector<std::byte>(bytes.begin(), bytes.end());
        },
        [this, name](std::span<const std::byte> bytes) {
          if (bytes.size() != now_.size() * sizeof(float)) {
            throw configuration_error(
                "the " + name + " cannot be taken over (there are " + std::to_string(bytes.size()) + " bytes where " +
                std::to_string(now_.size() * sizeof(float)) + " are needed); use the same model and compression");
          }
          if (!bytes.empty()) std::memcpy(now_.data(), bytes.data(), bytes.size());
        });
  }

 private:
  buffer<float> now_;
  buffer<float> next_;
};

/// Whether what a step has made counts. Sessions say so; without one it counts when a step with another number begins.
class step_progress {
 public:
  /// Before a step's first bucket: whether what the last one made is to be adopted now.
  [[nodiscard]] bool begin(std::uint64_t step) noexcept {
    const bool late = complete_ && step != step_;
    complete_ = false;
    step_ = step;
    return late;
  }
  void complete() noexcept { complete_ = true; }
  /// When the step commits: whether there is something to adopt.
  [[nodiscard]] bool commit() noexcept { return std::exchange(complete_, false); }
  void discard() noexcept { complete_ = false; }

 private:
  bool complete_ = false;
  std::uint64_t step_ = 0;
};

}  // namespace muster::inline v0::detail
