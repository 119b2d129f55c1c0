// Functions from images of bytes to tensors of floats: crop, flip, normalise and cutout in a single pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <muster/core/random.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/data/record_transform.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The memory layout of an image: the order of its dimensions.
enum class image_layout : std::uint8_t {
  hwc,  ///< height, width, channel: the values of a pixel are adjacent ("NHWC" of a batch)
  chw   ///< channel, height, width: planes, as in CIFAR's files ("NCHW" of a batch)
};

/// Mean and standard deviation per channel of CIFAR-10's training images, for values in [0, 1].
inline constexpr std::array<float, 3> cifar10_mean = {0.4914f, 0.4822f, 0.4465f};
inline constexpr std::array<float, 3> cifar10_deviation = {0.2470f, 0.2435f, 0.2616f};

/// The conversion from bytes to floats: (byte / 255 - mean) / deviation, with a separate mean and deviation for each
/// channel. Grey images use the first mean and deviation. The result has the same bits on every machine.
struct image_options {
  std::array<float, 3> mean = {0, 0, 0};
  std::array<float, 3> deviation = {1, 1, 1};
  image_layout output = image_layout::hwc;
};

/// The random changes of an augmentation.
struct augment_options {
  /// Width in pixels of the zero border that is added to each side before a window of the original size is cut out at a
  /// uniformly random position. 0: no crop.
  unsigned pad = 0;
  /// Set if left and right are swapped with probability 1/2.
  bool flip = false;
  /// Side length in pixels of a square that is set to 0 after normalising. Its centre is anywhere in the image, and the
  /// part outside the image is ignored (DeVries and Taylor 2017, https://arxiv.org/abs/1708.04552). 0: no cutout.
  unsigned cutout = 0;
};

namespace detail {

/// The dimensions of an image, as derived from a schema.
struct image_shape {
  std::size_t channels = 0, height = 0, width = 0;
  image_layout layout = image_layout::chw;
};

/// Returns the image that a record with this schema is, or nothing if the functions below do not support the record.
[[nodiscard]] std::optional<image_shape> shape_of_image(const record_schema& schema);

/// The random choices for one sample.
struct image_choice {
  /// Position of the window's first row and column in the image; negative positions are in the border.
  int down = 0, right = 0;
  bool flip = false;
  /// The cutout's rows and columns, without the row `cutout_bottom` and the column `cutout_right`. Empty if two bounds
  /// are equal.
  int cutout_top = 0, cutout_bottom = 0, cutout_left = 0, cutout_right = 0;
};

/// The conversion that is applied to every image. `scale` and `shift` have one value for each channel.
struct image_conversion {
  image_shape shape = {};
  image_layout output = image_layout::hwc;
  std::array<float, 3> scale{}, shift{};
};

/// Converts one image: reads bytes of the shape and writes the same number of floats. If `portable` is true, it uses no
/// wide vector instructions.
void convert_image(const image_conversion& conversion, const image_choice& choice, const std::byte* input,
                   float* output, bool portable = false) noexcept;

/// The common base class of the functions on images.
class image_converter {
 public:
  /// Returns the schema of the results. Throws configuration_error for records that are not a single uint8 image with 1
  /// or 3 channels.
  [[nodiscard]] record_schema output(const record_schema& input_schema);

 protected:
  constexpr explicit image_converter(const image_options& options) noexcept : conversion_{.output = options.output} {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      conversion_.scale[channel] = 1 / (255 * options.deviation[channel]);
      conversion_.shift[channel] = -options.mean[channel] / options.deviation[channel];
    }
  }

  image_conversion conversion_;
};

}  // namespace detail

/// A function for map(): records of a single uint8 image, {height, width}, {channels, height, width} or {height, width,
/// channels}, become normalised float32. For evaluation, not for training.
class normalise : public detail::image_converter {
 public:
  /// Takes mean and deviation of channel values in [0, 1].
  constexpr explicit normalise(const image_options& options = {}) noexcept : image_converter(options) {}
  /// The functions of record_transform: a digest of the options, and the conversion of a record.
  [[nodiscard]] std::uint64_t version() const noexcept;
  void operator()(std::span<const std::byte> input, std::span<std::byte> result) const noexcept;
};
static_assert(record_transform<normalise>);

/// A function for augment(): normalises like `normalise`, with a random crop, flip and cutout.
class image_augmentation : public detail::image_converter {
 public:
  /// Takes the random changes, and the options of the normalisation that follows.
  constexpr explicit image_augmentation(const augment_options& chance, const image_options& options = {}) noexcept
      : image_converter(options), chance_(chance) {}
  /// The function of record_augmentation.
  void operator()(std::span<const std::byte> input, std::span<std::byte> result, random_stream& random) const noexcept;

 private:
  augment_options chance_;
};
static_assert(record_augmentation<image_augmentation>);

/// The usual augmentation for CIFAR (He et al. 2015, https://arxiv.org/abs/1512.03385): a random crop of the image
/// padded by four pixels, a flip, and normalisation with CIFAR-10's mean and deviation.
inline constexpr image_augmentation crop_flip({.pad = 4, .flip = true},
                                              {.mean = cifar10_mean, .deviation = cifar10_deviation});

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::augment_options;
using data::cifar10_deviation;
using data::cifar10_mean;
using data::crop_flip;
using data::image_augmentation;
using data::image_layout;
using data::image_options;
using data::normalise;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
