// JPEG files to images of one size, in muster::jpeg.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/core/random.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/data/record_transform.hpp>

namespace muster { inline namespace v0 {

/// The image that a JPEG becomes, and the part of the JPEG that it shows. The defaults are those of ImageNet.
struct jpeg_options {
  std::uint32_t height = 224;
  std::uint32_t width = 224;
  /// To evaluate: the middle is shown, as if the shorter side had so many pixels; 0: as large a part as there is.
  std::uint32_t resize = 256;
  /// To train: a window of this share of the area up to all of it, with sides of 3 to 4 up to 4 to 3 (Szegedy et al.
  /// 2014, https://arxiv.org/abs/1409.4842), and its mirror image in half of the cases.
  double least_area = 0.08;
  bool flip = true;
};

namespace detail {

/// A part of an image, in its pixels.
struct image_window {
  std::uint32_t x = 0, y = 0, width = 0, height = 0;
};

/// What is known of JPEG. Both throw data_error with a byte of the record as its place.
struct jpeg_functions {
  /// Width and height; x and y are 0.
  image_window (*size)(std::span<const std::byte> jpeg);
  /// Writes height x width pixels of three bytes; mirrored if `flip`.
  void (*decode)(std::span<const std::byte> jpeg, const image_window& shown, std::uint32_t height, std::uint32_t width,
                 bool flip, std::byte* to);
};
/// Sets what reads JPEG. Thread safe.
void set_jpeg_functions(const jpeg_functions* known) noexcept;
/// Makes JPEG known, and returns true; defined in muster::jpeg.
bool register_jpeg() noexcept;
#ifdef MUSTER_HAS_JPEG
[[maybe_unused]] static const bool jpeg_is_registered =
    register_jpeg();  // takes the object file out of the static archive
#endif

/// What the functions on JPEG share.
class jpeg_reader {
 public:
  /// Of records of bytes: uint8[height x width x 3]. Throws configuration_error for others, and where muster was built
  /// without JPEG.
  [[nodiscard]] record_schema output(const record_schema& in) const;

 protected:
  explicit jpeg_reader(const jpeg_options& options) : options_(options) {}
  jpeg_options options_;
};

}  // namespace detail

/// A function for map(): the middle of a JPEG. The JPEG is decoded at an eighth, a quarter or half of its size where
/// that has pixels enough, only where it is shown, and then resized bilinearly; baseline and progressive, grey and CMYK
/// too. A JPEG that is cut or damaged is a bad record.
class decode_jpeg : public detail::jpeg_reader {
 public:
  /// Of what `options` say for evaluation.
  explicit decode_jpeg(const jpeg_options& options = {}) : jpeg_reader(options) {}
  /// As record_transform has them.
  [[nodiscard]] std::uint64_t version() const noexcept;
  void operator()(std::span<const std::byte> from, std::span<std::byte> to) const;
};
static_assert(record_transform<decode_jpeg>);

/// A function for augment(): a random window of a JPEG, perhaps mirrored.
class random_jpeg_crop : public detail::jpeg_reader {
 public:
  /// Of what `options` say for training.
  explicit random_jpeg_crop(const jpeg_options& options = {}) : jpeg_reader(options) {}
  /// As record_augmentation has it.
  void operator()(std::span<const std::byte> from, std::span<std::byte> to, random_stream& random) const;
};
static_assert(record_augmentation<random_jpeg_crop>);

}}  // namespace muster::v0
