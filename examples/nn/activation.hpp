// The data that layers pass to each other: activations and their gradients.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <muster/core/buffer.hpp>

#include "kernels.hpp"
#include "pass.hpp"

namespace nn {

template <class T>
class batch_norm;

/// The shape of an image in NHWC layout without the N: rows of pixels, whose channels are adjacent in memory.
struct extent {
  std::size_t height = 1, width = 1, channels = 1;

  [[nodiscard]] std::size_t size() const noexcept { return height * width * channels; }
  friend bool operator==(const extent&, const extent&) = default;
};

/// The output of a layer for a whole batch, and its gradient.
///
/// Batch normalisation and ReLU are not separate layers with memory of their own. A layer that reads the values copies
/// them into the first-level cache image by image, and applies normalisation and ReLU during this copy. Their backward
/// pass is applied to the gradient in the same way: the mask and the sums over the batch right after a reader wrote the
/// gradient, the slope of the normalisation just before the producing layer needs the gradient. An activation stores
/// the values before normalisation and ReLU, and the gradient after them, already masked.
///
/// Several layers may read an activation. The backward pass of the last reader runs first and sets the gradient. The
/// other readers add to the gradient, which is complete after the backward pass of the first reader.
///
/// Several threads may read and write different lanes of a batch at once.
template <class T>
class activation {
 public:
  activation(const extent& shape, const kernel_set<T>& kernels) : shape_(shape), kernels_(&kernels) {}
  activation(const activation&) = delete;

  [[nodiscard]] const extent& shape() const noexcept { return shape_; }

  // Functions that the network calls during construction.
  void normalise(batch_norm<T>& norm) noexcept { norm_ = &norm; }
  void rectify() noexcept { relu_ = true; }
  [[nodiscard]] bool normalised() const noexcept { return norm_ != nullptr; }
  /// Makes this activation a view of the values of `other`, with another function applied to the same numbers.
  void see(activation& other);
  /// Makes `part`, a term in this sum, use the sum's gradient as its own gradient. If `complete`, `part` uses this
  /// gradient throughout; this requires that `part` is not rectified. Otherwise `part` only starts with this gradient.
  void share_gradient(activation& part, bool complete);
  /// The position of a reader among the layers that write the gradient.
  struct turn {
    bool adds;       ///< True if other readers wrote the gradient before.
    bool completes;  ///< True if no other reader writes the gradient afterwards.
  };
  [[nodiscard]] std::size_t attach() noexcept { return readers_++; }
  [[nodiscard]] turn turn_of(std::size_t reader) const noexcept { return {reader + 1 != readers_, reader == 0}; }
  [[nodiscard]] bool rectified() const noexcept { return relu_; }
  /// Marks the activation as the network's input, for which no layer needs a gradient.
  void from_outside() noexcept { outside_ = true; }
  [[nodiscard]] bool wants_gradient() const noexcept { return !outside_; }
  void set_outside(const T* values) noexcept { given_ = values; }

  /// Reserves memory for `images` images.
  void reserve(std::size_t images);

  // Functions for the layer that produces the activation.
  [[nodiscard]] T* values(std::size_t image) noexcept { return values_->data() + image * shape_.size(); }
  /// Marks an image of lane `lane` as written.
  void written(std::size_t image, std::size_t lane);
  /// Marks the whole batch as written. Collective with pass::statistics.
  void all_written(const pass& now);
  [[nodiscard]] T* gradient(std::size_t image) noexcept { return gradients_->data() + image * shape_.size(); }
  /// Writes the gradient of values(image) to `to`, or adds it if `add`.
  void read_gradient(std::size_t image, const image_view<T>& to, bool add = false);

  /// Adds to sum[c] the sum of channel c over all pixels of an image with this activation's shape.
  void add_pixels(const image_view<T>& image, T* sum) const;

  // Functions for the layers that read the activation.
  void read(std::size_t image, const image_view<T>& to, bool add = false);
  /// Pools an image by maxima, and propagates the gradient back. See kernel_set::pool() and unpool().
  void pool(std::size_t image, const pool_window& window, const image_view<T>& to, T* taps);
  void unpool(std::size_t image, const T* slope, const extent& pooled, const pool_window& window, const T* taps,
              bool add);
  /// Marks the gradient of an image as written by all readers. `masked` states that the gradient is already zero
  /// wherever the values were rectified to zero.
  void gradient_written(std::size_t image, std::size_t lane, bool masked = false);
  /// Marks the gradients of the whole batch as written. Collective with pass::statistics.
  void all_gradients_written(const pass& now);

  [[nodiscard]] image_view<T> view(T* image) const noexcept {
    return {image, shape_.height, shape_.width, shape_.channels, shape_.width * shape_.channels};
  }
  /// Returns true if the gradient is shared with a sum, so that the layer that writes the gradient need not copy.
  [[nodiscard]] bool shares() const noexcept { return sum_ != nullptr; }

 private:
  [[nodiscard]] image_view<const T> stored(std::size_t image) const noexcept;
  [[nodiscard]] pointwise<T> function() const noexcept;

  extent shape_;
  const kernel_set<T>* kernels_;
  batch_norm<T>* norm_ = nullptr;
  bool relu_ = false;
  bool outside_ = false;
  std::size_t readers_ = 0;
  activation* source_ = nullptr;      // Activation that holds the values.
  std::vector<activation*> viewers_;  // Views that were created by see().
  activation* sum_ = nullptr;         // Activation that holds the gradient.
  std::vector<activation*> sharers_;  // Terms that share this sum's gradient.
  std::vector<activation*> terms_;    // Sharers whose gradient is complete together with this sum's gradient.
  const T* given_ = nullptr;
  std::shared_ptr<muster::buffer<T>> values_ = std::make_shared<muster::buffer<T>>();
  std::shared_ptr<muster::buffer<T>> gradients_ = std::make_shared<muster::buffer<T>>();
};

}  // namespace nn
