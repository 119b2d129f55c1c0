// What layers hand to each other.
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

/// Of one image: rows of pixels, whose channels lie one behind another (NHWC without the N).
struct extent {
  std::size_t height = 1, width = 1, channels = 1;

  [[nodiscard]] std::size_t size() const noexcept { return height * width * channels; }
  friend bool operator==(const extent&, const extent&) = default;
};

/// The output of a layer for a whole batch, and its gradient.
///
/// Batch normalisation and ReLU are no layers with memory of their own: they are done to the values whenever a layer
/// reads them, image by image, when a reader has to copy them into the first cache anyway. In the same way their part
/// of the backward pass is done to the gradient right after a reader wrote it (mask, sums over the batch) and just
/// before the layer behind needs it (the slope of the normalisation). What is stored are the values before both, and
/// the gradient behind both but masked.
///
/// Several layers may read it: the last reader's backward pass comes first and sets the gradient, the others add to
/// it, and with the first one's it is complete.
///
/// Lanes of a batch may be read and written by several threads at once.
template <class T>
class activation {
 public:
  activation(const extent& shape, const kernel_set<T>& kernels) : shape_(shape), kernels_(&kernels) {}
  activation(const activation&) = delete;

  [[nodiscard]] const extent& shape() const noexcept { return shape_; }

  // How the network is put together.
  void normalise(batch_norm<T>& norm) noexcept { norm_ = &norm; }
  void rectify() noexcept { relu_ = true; }
  [[nodiscard]] bool normalised() const noexcept { return norm_ != nullptr; }
  /// Its values are those of `other`: another function of the same numbers.
  void see(activation& other);
  /// `part` is a term of this sum and has the sum's gradient as its own: to begin with, or for good if `complete`, when
  /// it must not be rectified.
  void share_gradient(activation& part, bool complete);
  /// A reader's turn at the gradient.
  struct turn {
    bool adds;       ///< others have written before
    bool completes;  ///< no other reader writes after
  };
  [[nodiscard]] std::size_t attach() noexcept { return readers_++; }
  [[nodiscard]] turn turn_of(std::size_t reader) const noexcept { return {reader + 1 != readers_, reader == 0}; }
  [[nodiscard]] bool rectified() const noexcept { return relu_; }
  /// No layer needs the gradient of what comes from outside.
  void from_outside() noexcept { outside_ = true; }
  [[nodiscard]] bool wants_gradient() const noexcept { return !outside_; }
  void set_outside(const T* values) noexcept { given_ = values; }

  /// Memory for so many images.
  void reserve(std::size_t images);

  // The layer that makes it.
  [[nodiscard]] T* values(std::size_t image) noexcept { return values_->data() + image * shape_.size(); }
  /// An image of lane `lane` is there.
  void written(std::size_t image, std::size_t lane);
  /// The whole batch is there. Collective with pass::statistics.
  void all_written(const pass& now);
  [[nodiscard]] T* gradient(std::size_t image) noexcept { return gradients_->data() + image * shape_.size(); }
  /// The gradient of values(image), to `to` or added to it.
  void read_gradient(std::size_t image, const image_view<T>& to, bool add = false);

  /// Adds to sum[c] what the numbers of an image like this one's add up to.
  void add_pixels(const image_view<T>& image, T* sum) const;

  // The layers that read it.
  void read(std::size_t image, const image_view<T>& to, bool add = false);
  /// The largest numbers of it, and their gradient back: see kernel_set::pool() and unpool().
  void pool(std::size_t image, const pool_window& window, const image_view<T>& to, T* taps);
  void unpool(std::size_t image, const T* slope, const extent& pooled, const pool_window& window, const T* taps,
              bool add);
  /// Has been written by all readers; `masked`, if it is zero already where the values were rectified to zero.
  void gradient_written(std::size_t image, std::size_t lane, bool masked = false);
  /// The whole batch has. Collective with pass::statistics.
  void all_gradients_written(const pass& now);

  [[nodiscard]] image_view<T> view(T* image) const noexcept {
    return {image, shape_.height, shape_.width, shape_.channels, shape_.width * shape_.channels};
  }
  /// Whether its gradient is a sum's, which the layer that writes it need not copy.
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
  activation* source_ = nullptr;      // has the values
  std::vector<activation*> viewers_;  // those that see() this one
  activation* sum_ = nullptr;         // has the gradient
  std::vector<activation*> sharers_;  // those whose sum this is and that share its gradient
  std::vector<activation*> terms_;    // of these, the ones that are complete with it
  const T* given_ = nullptr;
  std::shared_ptr<muster::buffer<T>> values_ = std::make_shared<muster::buffer<T>>();
  std::shared_ptr<muster::buffer<T>> gradients_ = std::make_shared<muster::buffer<T>>();
};

}  // namespace nn
