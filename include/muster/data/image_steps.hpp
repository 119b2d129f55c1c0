// Images of bytes to images of bytes, and the text by which what serves a model prepares samples as its training did.
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
#include <muster/data/statistics.hpp>

namespace muster { inline namespace v0 {

/// A function for map(): images of uint8 of another size, bilinearly, in the layout that they have.
class resize_image {
 public:
  /// To so many pixels.
  resize_image(std::uint32_t height, std::uint32_t width) : height_(height), width_(width) {}
  /// As record_transform has them. `output` throws configuration_error for what is no image of uint8.
  [[nodiscard]] record_schema output(const record_schema& in);
  [[nodiscard]] std::uint64_t version() const noexcept;
  void operator()(std::span<const std::byte> from, std::span<std::byte> to) const;

 private:
  std::uint32_t height_, width_;
  detail::image_shape from_;
};
static_assert(record_transform<resize_image>);

/// A function for map(): the luma (ITU-R BT.601) of images of three channels, as uint8[height x width].
class greyscale {
 public:
  /// As record_transform has them. `output` throws configuration_error for what has no three channels.
  [[nodiscard]] record_schema output(const record_schema& in);
  [[nodiscard]] std::uint64_t version() const noexcept { return 0x67726579; }
  void operator()(std::span<const std::byte> from, std::span<std::byte> to) const noexcept;

 private:
  detail::image_shape from_;
};
static_assert(record_transform<greyscale>);

/// Steps of a pipeline as text, to be saved with a model: `loader | prepare{text}` adds map() of each.
///
///     jpeg:224x224,resize=256|normalise,mean=0.485/0.456/0.406,deviation=0.229/0.224/0.225,layout=hwc
///     resize:28x28|greyscale|normalise,mean=0.1307,deviation=0.3081
///     standardise:STATISTICS
///
/// Numbers are written so that they are read as they were: the same record becomes the same bits. Adding it throws
/// configuration_error for text that is none, and what the steps throw.
struct prepare {
  std::string text;  ///< empty: nothing is done

  /// Of nothing, or of a text, which is read when it is added to a loader.
  prepare() = default;
  explicit prepare(std::string steps) : text(std::move(steps)) {}
  /// The text of each step.
  explicit prepare(const jpeg_options& jpeg);
  explicit prepare(const image_options& normalised);
  explicit prepare(const source_statistics& standardised, image_layout output = image_layout::hwc);

  /// These steps and others behind them.
  [[nodiscard]] friend prepare operator|(const prepare& first, const prepare& then) {
    return prepare(first.text.empty() || then.text.empty() ? first.text + then.text : first.text + "|" + then.text);
  }
};
[[nodiscard]] loader operator|(loader from, const prepare& steps);

/// The steps of a text for records outside of a pipeline, such as a server gets: they become the same bits. Used by one
/// thread at a time.
class preparation {
 public:
  /// Throws what adding the steps to a loader of such records throws.
  preparation(const prepare& steps, const record_schema& records);

  /// Of what it makes.
  [[nodiscard]] const record_schema& output() const noexcept { return output_; }
  /// Writes all of `to`. Throws data_error for a bad record, with a byte of it as its place.
  void operator()(std::span<const std::byte> from, std::span<std::byte> to);

 private:
  struct step {
    std::function<void(std::span<const std::byte>, std::span<std::byte>)> apply;
    buffer<std::byte> from;  // aligned
  };
  std::vector<step> steps_;
  record_schema output_;
};

}}  // namespace muster::v0
