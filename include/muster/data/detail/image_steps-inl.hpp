#pragma once

#include <muster/data/image_steps.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/spec.hpp>
#include <muster/core/text.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/resample.hpp>
#include <muster/data/standardise.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline detail::image_shape image_in(const record_schema& input_schema, const char* step) {
  const auto shape = detail::shape_of_image(input_schema);
  if (shape) return *shape;
  throw configuration_error("records of " + to_string(input_schema) + " cannot be the input of " + step +
                            " (they are not one image of uint8 with 1 or 3 channels); decode or convert them first");
}

template <std::size_t Channels>
void resize(const std::uint8_t* input, std::size_t row_bytes, std::size_t row_count, const detail::resampled_axis& down,
            const detail::resampled_axis& across, std::uint8_t* output) {
  detail::resampler<Channels> resized(down, across, false, output);
  for (std::size_t row = resized.first_input_row(); row < row_count && !resized.done(); ++row)
    resized.take(row, input + row * row_bytes, 0);
}

inline std::string shortest(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

inline std::string three(const std::array<float, 3>& numbers) {
  return shortest(numbers[0]) + "/" + shortest(numbers[1]) + "/" + shortest(numbers[2]);
}

inline std::string layout_text(image_layout layout) { return layout == image_layout::hwc ? "hwc" : "chw"; }

inline image_layout layout_of(spec_reader& reader) {
  return reader.choice_of("layout", image_layout::hwc, {{"hwc", image_layout::hwc}, {"chw", image_layout::chw}});
}

// Reads one number for all channels, or three numbers.
inline std::array<float, 3> three_of(spec_reader& reader, const std::string& key, float fallback) {
  std::array<float, 3> numbers = {fallback, fallback, fallback};
  const auto text = reader.take(key);
  if (!text) return numbers;
  const auto parts = muster::detail::split(*text, '/');
  if (parts.size() != 1 && parts.size() != 3)
    reader.refuse(key + " is not one number or three", "write for example " + key + "=0.485/0.456/0.406");
  for (std::size_t c = 0; c < 3; ++c) {
    const auto number = parse_number<float>(parts[parts.size() == 1 ? 0 : c]);
    if (!number) reader.refuse(key + " '" + *text + "' is not a number", "write for example " + key + "=0.1307");
    numbers[c] = *number;
  }
  return numbers;
}

inline std::pair<std::uint32_t, std::uint32_t> sides_of(spec_reader& reader) {
  constexpr std::uint64_t most = 1 << 16;
  const std::string text = reader.value("size");
  const auto parts = muster::detail::split(text, 'x');
  if (parts.size() != 2)
    reader.refuse("size '" + text + "' is not two numbers with x between them", "write for example 224x224");
  const auto side = [&](std::size_t k) {
    return static_cast<std::uint32_t>(reader.read_whole("side", parts[k], 1, most));
  };
  return {side(0), side(1)};
}

// Calls use(function) with the function for map() that the text of a step describes.
template <class Use>
void read_step(std::string_view step, const Use& use) {
  constexpr std::string_view by_statistics = "standardise:";
  if (step.starts_with(by_statistics)) {
    auto words = step.substr(by_statistics.size());
    const auto layout = words.starts_with("chw,") ? image_layout::chw : image_layout::hwc;
    words.remove_prefix(std::min<std::size_t>(4, words.size()));
    return use(standardise(detail::statistics_from_text(words, "preparation"), layout));
  }
  spec_reader reader("preparation", step);
  const std::string name =
      reader.name({"jpeg", "resize", "greyscale", "normalise"}, "normalise,mean=0.5,deviation=0.25");
  if (name == "jpeg") {
    const auto [height, width] = sides_of(reader);
    const jpeg_options options{.height = height,
                               .width = width,
                               .resize = static_cast<std::uint32_t>(
                                   std::min<std::uint64_t>(reader.whole_of("resize", 0), std::uint64_t{1} << 16))};
    reader.finish("jpeg:224x224,resize=256");
    return use(decode_jpeg(options));
  }
  if (name == "resize") {
    const auto [height, width] = sides_of(reader);
    reader.finish("resize:28x28");
    return use(resize_image(height, width));
  }
  if (name == "greyscale") {
    reader.finish("greyscale");
    return use(greyscale());
  }
  const image_options options{
      .mean = three_of(reader, "mean", 0), .deviation = three_of(reader, "deviation", 1), .output = layout_of(reader)};
  reader.finish("normalise,mean=0.5,deviation=0.25");
  return use(normalise(options));
}

}  // namespace detail

MUSTER_INLINE record_schema resize_image::output(const record_schema& input_schema) {
  input_shape_ = detail::image_in(input_schema, "resize");
  if (height_ == 0 || width_ == 0 || input_shape_.height == 0 || input_shape_.width == 0)
    throw configuration_error("an image cannot be resized (it has no pixel, or would have no pixel); set both sides");
  record_schema schema = input_schema;
  auto& shape = schema.fields[0].shape;
  const std::size_t row_count = shape.size() == 3 && input_shape_.layout == image_layout::chw ? 1 : 0;
  shape[row_count] = height_;
  shape[row_count + 1] = width_;
  return schema;
}

MUSTER_INLINE std::uint64_t resize_image::version() const noexcept {
  return digest().add(std::uint64_t{height_}).add(std::uint64_t{width_}).value();
}

MUSTER_INLINE void resize_image::operator()(std::span<const std::byte> input, std::span<std::byte> result) const {
  const auto rows = static_cast<std::uint32_t>(input_shape_.height),
             columns = static_cast<std::uint32_t>(input_shape_.width);
  const detail::resampled_axis down(0, rows, rows, height_), across(0, columns, columns, width_);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(input.data());
  auto* const result_bytes = reinterpret_cast<std::uint8_t*>(result.data());
  if (input_shape_.channels == 3 && input_shape_.layout == image_layout::hwc)
    return detail::resize<3>(bytes, 3 * input_shape_.width, input_shape_.height, down, across, result_bytes);
  for (std::size_t c = 0; c < input_shape_.channels; ++c) {
    detail::resize<1>(bytes + c * input_shape_.height * input_shape_.width, input_shape_.width, input_shape_.height,
                      down, across, result_bytes + c * height_ * width_);
  }
}

MUSTER_INLINE record_schema greyscale::output(const record_schema& input_schema) {
  input_shape_ = detail::image_in(input_schema, "greyscale");
  if (input_shape_.channels != 3)
    throw configuration_error("images with one channel are grey already (greyscale takes three); leave the step out");
  return {record_form::fixed,
          {{input_schema.fields[0].name, dtype::uint8, {input_shape_.height, input_shape_.width}}},
          0,
          input_schema.labels,
          input_schema.classes};
}

MUSTER_INLINE void greyscale::operator()(std::span<const std::byte> input, std::span<std::byte> result) const noexcept {
  const bool planes = input_shape_.layout == image_layout::chw;
  const std::size_t pixel = planes ? 1 : 3, channel = planes ? result.size() : 1;
  for (std::size_t k = 0; k < result.size(); ++k) {
    const auto value = [&](std::size_t c) { return std::to_integer<unsigned>(input[k * pixel + c * channel]); };
    result[k] = static_cast<std::byte>((77 * value(0) + 150 * value(1) + 29 * value(2) + 128) >> 8);
  }
}

MUSTER_INLINE prepare::prepare(const jpeg_options& jpeg)
    : text("jpeg:" + std::to_string(jpeg.height) + "x" + std::to_string(jpeg.width) +
           ",resize=" + std::to_string(jpeg.resize)) {}

MUSTER_INLINE prepare::prepare(const image_options& normalised)
    : text("normalise,mean=" + detail::three(normalised.mean) + ",deviation=" + detail::three(normalised.deviation) +
           ",layout=" + detail::layout_text(normalised.output)) {}

MUSTER_INLINE prepare::prepare(const source_statistics& standardised, image_layout output)
    : text("standardise:" + detail::layout_text(output) + "," + detail::to_text(standardised)) {}

MUSTER_INLINE loader operator|(loader pipeline, const prepare& steps) {
  if (steps.text.empty()) return pipeline;
  for (const auto step : muster::detail::split(steps.text, '|'))
    detail::read_step(step, [&](auto function) { pipeline = std::move(pipeline) | map(std::move(function)); });
  return pipeline;
}

MUSTER_INLINE preparation::preparation(const prepare& steps, const record_schema& records) : output_(records) {
  const auto add = [&](auto function) {
    const std::size_t size = output_.record_bytes();
    output_ = function.output(output_);
    steps_.push_back({std::move(function), buffer<std::byte>(size)});
  };
  if (steps.text.empty()) return;
  for (const auto text : muster::detail::split(steps.text, '|')) detail::read_step(text, add);
}

MUSTER_INLINE void preparation::operator()(std::span<const std::byte> input, std::span<std::byte> output) {
  for (std::size_t k = 0; k < steps_.size(); ++k) {
    auto& stage = steps_[k];
    // An input of numbers is copied to an aligned buffer.
    if (k == 0 && stage.aligned_input.size() == input.size() && input.size() > 0) {
      std::memcpy(stage.aligned_input.data(), input.data(), input.size());
      input = stage.aligned_input.span();
    }
    const auto result = k + 1 < steps_.size() ? steps_[k + 1].aligned_input.span() : output;
    stage.apply(input, result);
    input = result;
  }
  if (steps_.empty()) std::memcpy(output.data(), input.data(), output.size());
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
