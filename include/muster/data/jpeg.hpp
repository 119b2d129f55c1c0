// Functions from JPEG files to images of a fixed size, in muster::jpeg.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/core/random.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/data/record_transform.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The size of the decoded image, and the part of the JPEG that it shows. The defaults are the usual values for
/// ImageNet.
struct jpeg_options {
  std::uint32_t height = 224;
  std::uint32_t width = 224;
  /// For evaluation: the image shows the middle of the JPEG, as if the shorter side had been resized to this number of
  /// pixels. 0: the largest part with the image's aspect ratio.
  std::uint32_t resize = 256;
  /// For training: the image shows a random window with at least this share of the JPEG's area and an aspect ratio from
  /// 3:4 to 4:3 (Szegedy et al. 2014, https://arxiv.org/abs/1409.4842). With `flip` it is mirrored with probability
  /// 1/2.
  double least_area = 0.08;
  bool flip = true;
};

namespace detail {

/// A rectangle in an image, in pixels.
struct image_window {
  std::uint32_t x = 0, y = 0, width = 0, height = 0;
};

/// The functions of a JPEG library. Both throw data_error. The place in the error is a byte of the record.
struct jpeg_functions {
  /// Returns width and height of the turned image. x and y are 0.
  image_window (*size)(std::span<const std::byte> jpeg);
  /// Writes height x width pixels of three bytes each, of a window in the turned image. The image is mirrored if `flip`
  /// is true.
  void (*decode)(std::span<const std::byte> jpeg, const image_window& window, std::uint32_t height, std::uint32_t width,
                 bool flip, std::byte* pixels);
};
/// Sets the functions for reading JPEG. Thread safe.
void set_jpeg_functions(const jpeg_functions* functions) noexcept;

/// The common base class of the functions on JPEG.
class jpeg_reader {
 public:
  /// Returns the schema uint8[height x width x 3] for records of bytes. Throws configuration_error for other records,
  /// for a width or height of 0, and in a program without muster::jpeg.
  [[nodiscard]] record_schema output(const record_schema& input_schema) const;

 protected:
  explicit jpeg_reader(const jpeg_options& options) : options_(options) {}
  jpeg_options options_;
};

}  // namespace detail

/// A function for map(): decodes the middle of a JPEG. The JPEG is decoded at an eighth, a quarter or half of its size
/// if that has enough pixels, and only within the visible part. The result is then resized bilinearly. Supports
/// baseline and progressive, grey and CMYK JPEGs. A JPEG that is truncated or damaged, or has more than 2^26 pixels or
/// 100 scans, is a bad record. The image is turned as its EXIF data say (tag 0x0112); a number outside of 1 to 8 turns
/// nothing. In a build with libpng a record may be a PNG of any type and depth. Its transparency is ignored.
class decode_jpeg : public detail::jpeg_reader {
 public:
  /// Uses the options for evaluation.
  explicit decode_jpeg(const jpeg_options& options = {}) : jpeg_reader(options) {}
  /// The functions of record_transform.
  [[nodiscard]] std::uint64_t version() const noexcept;
  void operator()(std::span<const std::byte> input, std::span<std::byte> result) const;
};
static_assert(record_transform<decode_jpeg>);

/// A function for augment(): decodes a random window of a JPEG, which is mirrored at random.
class random_jpeg_crop : public detail::jpeg_reader {
 public:
  /// Uses the options for training.
  explicit random_jpeg_crop(const jpeg_options& options = {}) : jpeg_reader(options) {}
  /// The function of record_augmentation.
  void operator()(std::span<const std::byte> input, std::span<std::byte> result, random_stream& random) const;
};
static_assert(record_augmentation<random_jpeg_crop>);

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::decode_jpeg;
using data::jpeg_options;
using data::random_jpeg_crop;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
