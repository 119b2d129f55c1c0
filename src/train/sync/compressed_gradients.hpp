// Gradients that are sent in another form, and what a step leaves to those behind it.
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

/// Of all that is random, the same at every rank.
inline constexpr std::uint64_t seed = 1;

class compressed_gradients : public host_gradients {
 public:
  explicit compressed_gradients(arena& of) : host_gradients(of) {}

  void begin(group* ranks, std::uint64_t step) final {
    host_gradients::begin(ranks, step);
    step_ = step;
  }
  std::size_t start(std::size_t bucket) final {
    if (bucket == 0) head_ = allreduce_async(ranks(), on_host().gradients_with_head().first(arena::head), sum);
    return send(bucket);
  }
  [[nodiscard]] bool test(std::size_t) final { return false; }  // decoding is left to the end of the pass
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
    for (auto& one : memories_) std::swap(one.now, one.next);
  }
  void describe(state_parts& parts) final {
    for (auto& one : memories_) {
      parts.add(
          one.name, one.kind,
          [&one] {
            const auto bytes = std::as_bytes(one.now.span());
            return std::vector<std::byte>(bytes.begin(), bytes.end());
          },
          [&one](std::span<const std::byte> bytes) {
            const std::size_t wanted = one.now.size() * sizeof(float);
            if (bytes.size() != wanted) {
              throw configuration_error("the " + one.name + " cannot be taken over (there are " +
                                        std::to_string(bytes.size()) + " bytes where " + std::to_string(wanted) +
                                        " are needed); use the same model and compression");
            }
            if (!bytes.empty()) std::memcpy(one.now.data(), bytes.data(), bytes.size());
          });
    }
  }

 protected:
  /// The values of the last step that was committed, and beside them those that the present one makes.
  struct memory {
    std::string name;
    state_kind kind;
    buffer<float> now;
    buffer<float> next;
  };
  /// Once, in `attach`: it stays at its place.
  memory& remember(std::string name, state_kind kind, std::size_t size) {
    memories_.push_back({std::move(name), kind, buffer<float>(size), buffer<float>(size)});
    return memories_.back();
  }
  memory& remember_residuals() {
    return remember("residuals of error feedback", state_kind::rank_local, on_host().gradients().size());
  }
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }

 private:
  /// Encodes a bucket and starts what sums it; decodes what was summed. Both return the bytes put into collectives.
  virtual std::size_t send(std::size_t bucket) = 0;
  virtual std::size_t receive(std::size_t bucket) = 0;

  std::deque<memory> memories_;
  work head_;
  std::uint64_t step_ = 0;
};

/// A tensor of these extents as PowerSGD sees it.
[[nodiscard]] low_rank_shape as_matrix(std::span<const std::size_t> extents, std::size_t rank);

/// Those that are summed by PowerSGD.
[[nodiscard]] std::unique_ptr<gradient_backend> powersgd_gradients(arena& of, std::size_t rank);

}}}  // namespace muster::v0::detail
