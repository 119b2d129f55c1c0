// Steps from images of bytes to images of bytes, and the text form of the steps, by which a server prepares samples
// exactly as the training did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/data/image.hpp>
#include <muster/data/jpeg.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/source_statistics.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A function for map(): resizes uint8 images bilinearly and keeps their layout.
class resize_image {
 public:
  /// Resizes to this number of pixels.
  resize_image(std::uint32_t height, std::uint32_t width) : height_(height), width_(width) {}
  /// The functions of record_transform. `output` throws configuration_error if the records are not uint8 images.
  [[nodiscard]] record_schema output(const record_schema& input_schema);
  [[nodiscard]] std::uint64_t version() const noexcept;
  void operator()(std::span<const std::byte> input, std::span<std::byte> result) const;

 private:
  std::uint32_t height_, width_;
  detail::image_shape input_shape_;
};
static_assert(record_transform<resize_image>);

/// A function for map(): computes the luma (ITU-R BT.601) of images with three channels, as uint8[height x width].
class greyscale {
 public:
  /// The functions of record_transform. `output` throws configuration_error if the records do not have three channels.
  [[nodiscard]] record_schema output(const record_schema& input_schema);
  [[nodiscard]] std::uint64_t version() const noexcept { return 0x67726579; }
  void operator()(std::span<const std::byte> input, std::span<std::byte> result) const noexcept;

 private:
  detail::image_shape input_shape_;
};
static_assert(record_transform<greyscale>);

/// Steps of a pipeline as text, which is saved with a model. `loader | prepare{text}` adds a map() step for each:
///
///     jpeg:224x224,resize=256|normalise,mean=0.485/0.456/0.406,deviation=0.229/0.224/0.225,layout=hwc
///     resize:28x28|greyscale|normalise,mean=0.1307,deviation=0.3081
///     standardise:hwc,STATISTICS
///
/// Numbers are written so that reading them yields the same values: the same record becomes the same bits. Adding the
/// steps to a loader throws configuration_error for invalid text, and all errors of the steps.
struct prepare {
  std::string text;  ///< empty: no steps

  /// Creates an empty text, or takes a text, which is parsed when it is added to a loader.
  prepare() = default;
  explicit prepare(std::string steps) : text(std::move(steps)) {}
  /// Creates the text of a single step.
  explicit prepare(const jpeg_options& jpeg);
  explicit prepare(const image_options& normalised);
  explicit prepare(const source_statistics& standardised, image_layout output = image_layout::hwc);

  /// Returns the steps of `first` followed by the steps of `second`.
  [[nodiscard]] friend prepare operator|(const prepare& first, const prepare& second) {
    return prepare(first.text.empty() || second.text.empty() ? first.text + second.text
                                                             : first.text + "|" + second.text);
  }
};
[[nodiscard]] loader operator|(loader pipeline, const prepare& steps);

/// The steps of a text, for records outside a pipeline, such as the requests of a server. The results have the same
/// bits as in a pipeline. Used by one thread at a time.
class preparation {
 public:
  /// Throws the errors of adding the steps to a loader of such records.
  preparation(const prepare& steps, const record_schema& records);

  /// Returns the schema of the prepared records.
  [[nodiscard]] const record_schema& output() const noexcept { return output_; }
  /// Writes all bytes of `result`. Throws data_error for a bad record. The place in the error is a byte of the record.
  void operator()(std::span<const std::byte> input, std::span<std::byte> result);

 private:
  struct step {
    std::function<void(std::span<const std::byte>, std::span<std::byte>)> apply;
    buffer<std::byte> aligned_input;  // aligned
  };
  std::vector<step> steps_;
  record_schema output_;
};

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::greyscale;
using data::preparation;
using data::prepare;
using data::resize_image;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
