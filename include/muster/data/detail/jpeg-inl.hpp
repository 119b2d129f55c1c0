#pragma once

#include <muster/data/jpeg.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/plugin.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constinit std::atomic<const detail::jpeg_functions*> functions{nullptr};

inline std::uint32_t rounded(double pixels, std::uint32_t most) {
  return static_cast<std::uint32_t>(std::clamp(std::round(pixels), 1.0, static_cast<double>(most)));
}

// Returns a window in the middle with the output's aspect ratio: the part that the output shows if the shorter side is
// resized to options.resize pixels, or the largest such window if the part would be larger or options.resize is 0.
inline detail::image_window middle_of(const detail::image_window& all, const jpeg_options& options) {
  double shrunk = std::min(static_cast<double>(all.width) / options.width,
                           static_cast<double>(all.height) / options.height);  // input pixels for each output pixel
  if (options.resize != 0)
    shrunk = std::min(shrunk, static_cast<double>(std::min(all.width, all.height)) / options.resize);
  const std::uint32_t width = rounded(shrunk * options.width, all.width);
  const std::uint32_t height = rounded(shrunk * options.height, all.height);
  return {(all.width - width) / 2, (all.height - height) / 2, width, height};
}

inline detail::image_window random_window(const detail::image_window& all, const jpeg_options& options,
                                          random_stream& random) {
  const double pixels = static_cast<double>(all.width) * all.height;
  constexpr int tries = 10;
  for (int k = 0; k < tries; ++k) {
    const double area = pixels * (options.least_area + (1 - options.least_area) * random.uniform());
    const double form = std::exp(std::log(4.0 / 3) * (2 * random.uniform() - 1));
    const double width = std::round(std::sqrt(area * form)), height = std::round(std::sqrt(area / form));
    if (width < 1 || height < 1 || width > all.width || height > all.height) continue;
    const auto w = static_cast<std::uint32_t>(width), h = static_cast<std::uint32_t>(height);
    return {static_cast<std::uint32_t>(random.below(all.width - w + 1)),
            static_cast<std::uint32_t>(random.below(all.height - h + 1)), w, h};
  }
  return middle_of(all, {.height = options.height, .width = options.width, .resize = 0});
}

}  // namespace detail

MUSTER_INLINE void detail::set_jpeg_functions(const jpeg_functions* new_functions) noexcept {
  detail::functions = new_functions;
}

MUSTER_INLINE record_schema detail::jpeg_reader::output(const record_schema& input_schema) const {
  if (input_schema.form != record_form::bytes) {
    throw configuration_error("records of " + to_string(input_schema) +
                              " are not JPEG files (they are not bytes); use normalise for decoded images");
  }
  if (detail::functions.load() == nullptr) {
    throw configuration_error("JPEG cannot be read (" + muster::detail::linked_without("jpeg") +
                              "); link muster::jpeg");
  }
  if (options_.height == 0 || options_.width == 0)
    throw configuration_error("cannot decode a JPEG to an image without pixels (its height or width is 0); set both");
  return {record_form::fixed,
          {{"image", dtype::uint8, {options_.height, options_.width, 3}}},
          0,
          input_schema.labels,
          input_schema.classes};
}

MUSTER_INLINE std::uint64_t decode_jpeg::version() const noexcept {
  constexpr std::uint64_t turned = 1;  // images of before were not turned by their EXIF data
  return digest()
      .add(turned)
      .add(std::uint64_t{options_.height})
      .add(std::uint64_t{options_.width})
      .add(std::uint64_t{options_.resize})
      .value();
}

MUSTER_INLINE void decode_jpeg::operator()(std::span<const std::byte> input, std::span<std::byte> result) const {
  const auto& jpeg = *detail::functions.load();
  jpeg.decode(input, detail::middle_of(jpeg.size(input), options_), options_.height, options_.width, false,
              result.data());
}

MUSTER_INLINE void random_jpeg_crop::operator()(std::span<const std::byte> input, std::span<std::byte> result,
                                                random_stream& random) const {
  const auto& jpeg = *detail::functions.load();
  const auto window = detail::random_window(jpeg.size(input), options_, random);
  const bool flip = options_.flip && random.uniform() < 0.5;
  jpeg.decode(input, window, options_.height, options_.width, flip, result.data());
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
