// The base of gradients that are sent in a compressed form, with the state that a step leaves to the next step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/codec/powersgd.hpp>
#include <muster/train/sync/host_gradients.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Seed for random numbers, the same at every rank.
inline constexpr std::uint64_t seed = 1;

class compressed_gradients : public host_gradients {
 public:
  explicit compressed_gradients(arena& values) : host_gradients(values) {}

  void begin(group* ranks, std::uint64_t step) final {
    host_gradients::begin(ranks, step);
    step_ = step;
  }
  std::size_t start(std::size_t bucket) final {
    if (bucket == 0) head_ = allreduce_async(ranks(), on_host().gradients_with_head().first(arena::head), sum);
    return send(bucket);
  }
  [[nodiscard]] bool test(std::size_t) final { return false; }  // decoding happens at the end of the pass
  std::size_t wait(std::size_t bucket) final {
    head_.wait();
    under_way()[bucket].wait();
    return receive(bucket);
  }
  void abandon() noexcept final {
    head_ = work();
    host_gradients::abandon();
  }
  void commit() noexcept final {
    for (auto& array : memories_) std::swap(array.current, array.next);
  }
  void describe(state_parts& parts) final {
    for (auto& array : memories_) {
      parts.add(
          array.name, array.kind,
          [&array] {
            const auto bytes = std::as_bytes(array.current.span());
            return std::vector<std::byte>(bytes.begin(), bytes.end());
          },
          [&array](std::span<const std::byte> bytes) {
            const std::size_t size = array.current.size() * sizeof(float);
            if (bytes.size() != size) {
              throw configuration_error("the " + array.name + " cannot be restored (the state has " +
                                        std::to_string(bytes.size()) + " bytes instead of " + std::to_string(size) +
                                        "); use the same model and compression");
            }
            if (!bytes.empty()) std::memcpy(array.current.data(), bytes.data(), bytes.size());
          });
    }
  }

 protected:
  /// An array with the values of the last committed step, and the values of the current step.
  struct memory {
    std::string name;
    state_kind kind;
    buffer<float> current;
    buffer<float> next;
  };
  /// Adds an array that belongs to the state. Called in `attach`; the array does not move afterwards.
  memory& remember(std::string name, state_kind kind, std::size_t size) {
    memories_.push_back({std::move(name), kind, buffer<float>(size), buffer<float>(size)});
    return memories_.back();
  }
  memory& remember_residuals() {
    return remember("residuals of error feedback", state_kind::rank_local, on_host().gradients().size());
  }
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }

 private:
  /// `send` encodes a bucket and starts its reduction; `receive` decodes the result. Both return the bytes put into
  /// collectives.
  virtual std::size_t send(std::size_t bucket) = 0;
  virtual std::size_t receive(std::size_t bucket) = 0;

  std::deque<memory> memories_;
  work head_;
  std::uint64_t step_ = 0;
};

/// Returns the shape as which PowerSGD treats a tensor with these extents.
[[nodiscard]] low_rank_shape as_matrix(std::span<const std::size_t> extents, std::size_t rank);

/// Returns gradients that are summed by PowerSGD.
[[nodiscard]] std::unique_ptr<gradient_backend> powersgd_gradients(arena& values, std::size_t rank);

}}}  // namespace muster::v0::detail
