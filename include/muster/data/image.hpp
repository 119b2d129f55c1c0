// Images of bytes to tensors of floats: crop, flip, normalise and cutout in one go.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <muster/core/random.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/data/record_transform.hpp>

namespace muster { inline namespace v0 {

/// Which index of an image runs fastest in memory.
enum class image_layout : std::uint8_t {
  hwc,  ///< height, width, channel: the values of a pixel lie together ("NHWC" of a batch)
  chw   ///< channel, height, width: planes, as CIFAR's files have them ("NCHW" of a batch)
};

/// Mean and standard deviation of each channel of CIFAR-10's training images, of values in [0, 1].
inline constexpr std::array<float, 3> cifar10_mean = {0.4914f, 0.4822f, 0.4465f};
inline constexpr std::array<float, 3> cifar10_deviation = {0.2470f, 0.2435f, 0.2616f};

/// How bytes become floats: (byte / 255 - mean) / deviation, each channel with its own, of which grey images use the
/// first. The result is the same bits on every machine.
struct image_options {
  std::array<float, 3> mean = {0, 0, 0};
  std::array<float, 3> deviation = {1, 1, 1};
  image_layout output = image_layout::hwc;
};

/// What is left to chance.
struct augment_options {
  /// Zero pixels put around the image before a window of its size is cut out of it anywhere, every place equally
  /// likely; 0: no crop.
  unsigned pad = 0;
  /// Left and right are swapped in half of the cases.
  bool flip = false;
  /// Side of a square that is set to 0 after normalising, its centre anywhere in the image, what is outside cut off
  /// (DeVries and Taylor 2017, https://arxiv.org/abs/1708.04552); 0: none.
  unsigned cutout = 0;
};

namespace detail {

/// An image as its schema tells it.
struct image_shape {
  std::size_t channels = 0, height = 0, width = 0;
  image_layout layout = image_layout::chw;
};

/// The image that a record of this schema is; nothing where it is none that the functions below take.
[[nodiscard]] std::optional<image_shape> shape_of_image(const record_schema& schema);

/// What the random numbers of a sample say.
struct image_choice {
  int down = 0, right = 0;  ///< of the window: rows and columns of the image that it begins behind, less than 0 before
  bool flip = false;
  int top = 0, bottom = 0, left = 0, end = 0;  ///< of the cutout; empty if they are equal
};

/// What becomes of every image: `scale` and `shift` are those of each channel.
struct image_conversion {
  image_shape shape = {};
  image_layout output = image_layout::hwc;
  std::array<float, 3> scale{}, shift{};
};

/// The whole kernel: reads bytes of the shape, writes as many floats; `plainly`: without the processor's wider
/// instructions.
void convert_image(const image_conversion& how, const image_choice& choice, const std::byte* from, float* to,
                   bool plainly = false) noexcept;

/// What the functions on images share.
class image_converter {
 public:
  /// Throws configuration_error for records that are not one image of uint8 with 1 or 3 channels.
  [[nodiscard]] record_schema output(const record_schema& in);

 protected:
  constexpr explicit image_converter(const image_options& options) noexcept : how_{.output = options.output} {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      how_.scale[channel] = 1 / (255 * options.deviation[channel]);
      how_.shift[channel] = -options.mean[channel] / options.deviation[channel];
    }
  }

  image_conversion how_;
};

}  // namespace detail

/// A function for map(): records of one uint8 image, {height, width}, {channels, height, width} or
/// {height, width, channels}, become normalised float32. For data that is evaluated and not trained on.
class normalise : public detail::image_converter {
 public:
  /// Mean and deviation are of channel values in [0, 1].
  constexpr explicit normalise(const image_options& options = {}) noexcept : image_converter(options) {}
  /// As record_transform has them: a digest of the options, and the conversion of one record.
  [[nodiscard]] std::uint64_t version() const noexcept;
  void operator()(std::span<const std::byte> from, std::span<std::byte> to) const noexcept;
};
static_assert(record_transform<normalise>);

/// A function for augment(): the same with a random crop, flip and cutout.
class image_augmentation : public detail::image_converter {
 public:
  /// What is random about it, and the normalisation after that.
  constexpr explicit image_augmentation(const augment_options& chance, const image_options& options = {}) noexcept
      : image_converter(options), chance_(chance) {}
  /// As record_augmentation has it.
  void operator()(std::span<const std::byte> from, std::span<std::byte> to, random_stream& random) const noexcept;

 private:
  augment_options chance_;
};
static_assert(record_augmentation<image_augmentation>);

/// The usual for CIFAR (He et al. 2015, https://arxiv.org/abs/1512.03385): a crop of the image padded by four, a flip,
/// and CIFAR-10's mean and deviation.
inline constexpr image_augmentation crop_flip({.pad = 4, .flip = true},
                                              {.mean = cifar10_mean, .deviation = cifar10_deviation});

}}  // namespace muster::v0
