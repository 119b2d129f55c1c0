// Where gradients lie, and how ranks sum them: the seam between gradient_sync and the memory of the host or of a
// device.
#pragma once

#include <array>
#include <cstddef>

#include <muster/comm/group.hpp>
#include <muster/train/arena_in.hpp>

namespace muster::inline v0 {

/// The gradients of an arena, for one gradient_sync. In each step it calls `begin`; `start` for every bucket in their
/// order; `wait` likewise, and then the arithmetic; `finish`. Or `abandon` at any time.
class gradient_backend {
 public:
  gradient_backend() = default;
  gradient_backend(const gradient_backend&) = delete;
  gradient_backend& operator=(const gradient_backend&) = delete;
  virtual ~gradient_backend() = default;

  /// That of the gradients.
  [[nodiscard]] virtual arena_base& of() noexcept = 0;
  /// A step among these ranks; null where the program has named none. Throws configuration_error when it needs them.
  virtual void begin(group* ranks) = 0;
  /// Starts summing a bucket over the ranks, with the two numbers in front of the first one; returns the bytes of it
  /// that this rank put into collectives. Does not wait.
  virtual std::size_t start(const block& part) = 0;
  /// Whether a bucket that was started is summed, without waiting; also false where looking is no use.
  [[nodiscard]] virtual bool test(std::size_t bucket) = 0;
  virtual void wait(std::size_t bucket) = 0;
  /// What the model does next sees the gradients as they are now.
  virtual void finish() = 0;
  /// The step has failed or was left: returns when nothing touches the gradients any more.
  virtual void abandon() noexcept = 0;

  /// Two numbers that are summed with the first bucket.
  virtual void put_head(const std::array<float, 2>& numbers) = 0;
  [[nodiscard]] virtual std::array<float, 2> head() = 0;
  /// A part of the gradients: zeros, each times `by`, the sum of the squares.
  virtual void clear(const block& part) = 0;
  virtual void scale(const block& part, float by) = 0;
  [[nodiscard]] virtual double sum_of_squares(const block& part) = 0;
};

}  // namespace muster::inline v0
