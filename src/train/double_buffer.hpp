// Values that steps leave to those behind them: what a step makes of them counts when it commits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/comm/work.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include <muster/elastic/state.hpp>
#include <muster/train/sync/compress.hpp>

namespace muster::inline v0::detail {

/// The values of the last step that was committed, and beside them those that the present one makes.
class double_buffer {
 public:
  explicit double_buffer(std::size_t size) : now_(size), next_(size) {}

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

/// A reducer with memory that a step leaves to the next one. A step's count when it commits: sessions say so; without
/// one it counts when a step with another number begins.
class remembering_reducer : public bucket_reducer {
 public:
  void begin(group& ranks, std::size_t bucket, std::uint64_t step) final {
    if (bucket == 0) {
      if (complete_ && step != step_) adopt();
      complete_ = false;
      step_ = step;
      bytes_sent_ = 0;
    }
    under_way_[bucket] = send(ranks, bucket);
  }
  void finish(group& ranks, std::size_t bucket) final {
    under_way_[bucket].wait();
    under_way_[bucket] = work();
    receive(ranks, bucket);
    complete_ = bucket + 1 == under_way_.size();
  }
  void abandon() noexcept final {
    for (auto& one : under_way_) one = work();
  }
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept final { return bytes_sent_; }
  void describe(state_parts& parts) final {
    if (memories_.empty()) return;
    for (const auto& one : memories_) one.values->describe(parts, one.name, one.kind);
    parts.hook(
        [this] {
          if (std::exchange(complete_, false)) adopt();
        },
        [this] { complete_ = false; });
  }

 protected:
  explicit remembering_reducer(const compress_options& options) : options_(options) {}

  /// Once, in `attach`: how many buckets there are, and what is remembered.
  void set_buckets(std::size_t count) { under_way_.resize(count); }
  void remember(double_buffer& values, std::string name, state_kind kind) {
    memories_.push_back({&values, std::move(name), kind});
  }
  [[nodiscard]] const compress_options& options() const noexcept { return options_; }
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  void count_sent(std::size_t bytes) noexcept { bytes_sent_ += bytes; }

 private:
  /// Encodes a bucket and starts what sums it.
  [[nodiscard]] virtual work send(group& ranks, std::size_t bucket) = 0;
  /// Decodes what was summed.
  virtual void receive(group& ranks, std::size_t bucket) = 0;
  void adopt() noexcept {
    for (const auto& one : memories_) one.values->adopt();
  }

  struct memory {
    double_buffer* values;
    std::string name;
    state_kind kind;
  };
  compress_options options_;
  std::vector<memory> memories_;
  std::vector<work> under_way_;  // by bucket
  bool complete_ = false;        // all of the present step's memories are made
  std::uint64_t step_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace muster::inline v0::detail
