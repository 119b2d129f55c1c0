#include <muster/data/image_steps.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/spec.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/standardise.hpp>
#include "../core/text.hpp"
#include "resample.hpp"

namespace muster { inline namespace v0 {
namespace {

detail::image_shape image_in(const record_schema& in, const char* step) {
  const auto shape = detail::shape_of_image(in);
  if (shape) return *shape;
  throw configuration_error("records of " + to_string(in) + " cannot go through " + step +
                            " (they are not one image of uint8 with 1 or 3 channels); decode or convert them first");
}

template <std::size_t Channels>
void resize(const std::uint8_t* from, std::size_t row_bytes, std::size_t rows, const detail::resampled_axis& down,
            const detail::resampled_axis& across, std::uint8_t* to) {
  detail::resampler<Channels> made(down, across, false, to);
  for (std::size_t row = made.first_row(); row < rows && !made.done(); ++row) made.take(row, from + row * row_bytes, 0);
}

std::string shortest(float number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

std::string three(const std::array<float, 3>& numbers) {
  return shortest(numbers[0]) + "/" + shortest(numbers[1]) + "/" + shortest(numbers[2]);
}

std::string layout_text(image_layout layout) { return layout == image_layout::hwc ? "hwc" : "chw"; }

image_layout layout_of(spec_reader& from) {
  return from.choice_of("layout", image_layout::hwc, {{"hwc", image_layout::hwc}, {"chw", image_layout::chw}});
}

// One number for all channels, or three.
std::array<float, 3> three_of(spec_reader& from, const std::string& key, float fallback) {
  std::array<float, 3> numbers = {fallback, fallback, fallback};
  const auto text = from.take(key);
  if (!text) return numbers;
  const auto parts = detail::split(*text, '/');
  if (parts.size() != 1 && parts.size() != 3)
    from.refuse(key + " is not one number or three", "write such as " + key + "=0.485/0.456/0.406");
  for (std::size_t c = 0; c < 3; ++c) {
    const auto number = parse_number<float>(parts[parts.size() == 1 ? 0 : c]);
    if (!number) from.refuse(key + " '" + *text + "' is no number", "write such as " + key + "=0.1307");
    numbers[c] = *number;
  }
  return numbers;
}

std::pair<std::uint32_t, std::uint32_t> sides_of(spec_reader& from) {
  constexpr std::uint64_t most = 1 << 16;
  const std::string text = from.value("size");
  const auto parts = detail::split(text, 'x');
  if (parts.size() != 2)
    from.refuse("size '" + text + "' is not two numbers with x between them", "write such as 224x224");
  const auto side = [&](std::size_t k) {
    return static_cast<std::uint32_t>(from.read_whole("side", parts[k], 1, most));
  };
  return {side(0), side(1)};
}

// Calls use(function) with the function for map() that the text of a step says.
template <class Use>
void read_step(std::string_view step, const Use& use) {
  constexpr std::string_view by_statistics = "standardise:";
  if (step.starts_with(by_statistics)) {
    auto words = step.substr(by_statistics.size());
    const auto layout = words.starts_with("chw,") ? image_layout::chw : image_layout::hwc;
    words.remove_prefix(std::min<std::size_t>(4, words.size()));
    return use(standardise(detail::statistics_from_text(words, "preparation"), layout));
  }
  spec_reader from("preparation", step);
  const std::string name = from.name({"jpeg", "resize", "greyscale", "normalise"}, "normalise,mean=0.5,deviation=0.25");
  if (name == "jpeg") {
    const auto [height, width] = sides_of(from);
    const jpeg_options options{.height = height,
                               .width = width,
                               .resize = static_cast<std::uint32_t>(
                                   std::min<std::uint64_t>(from.whole_of("resize", 0), std::uint64_t{1} << 16))};
    from.finish("jpeg:224x224,resize=256");
    return use(decode_jpeg(options));
  }
  if (name == "resize") {
    const auto [height, width] = sides_of(from);
    from.finish("resize:28x28");
    return use(resize_image(height, width));
  }
  if (name == "greyscale") {
    from.finish("greyscale");
    return use(greyscale());
  }
  const image_options options{
      .mean = three_of(from, "mean", 0), .deviation = three_of(from, "deviation", 1), .output = layout_of(from)};
  from.finish("normalise,mean=0.5,deviation=0.25");
  return use(normalise(options));
}

}  // namespace

record_schema resize_image::output(const record_schema& in) {
  input_shape_ = image_in(in, "resize");
  if (height_ == 0 || width_ == 0 || input_shape_.height == 0 || input_shape_.width == 0)
    throw configuration_error("an image cannot be resized (it has no pixel, or would have none); give both its sides");
  record_schema made = in;
  auto& shape = made.fields[0].shape;
  const std::size_t rows = shape.size() == 3 && input_shape_.layout == image_layout::chw ? 1 : 0;
  shape[rows] = height_;
  shape[rows + 1] = width_;
  return made;
}

std::uint64_t resize_image::version() const noexcept {
  return digest().add(std::uint64_t{height_}).add(std::uint64_t{width_}).value();
}

void resize_image::operator()(std::span<const std::byte> from, std::span<std::byte> to) const {
  const auto rows = static_cast<std::uint32_t>(input_shape_.height),
             columns = static_cast<std::uint32_t>(input_shape_.width);
  const detail::resampled_axis down(0, rows, rows, height_), across(0, columns, columns, width_);
  const auto* const in = reinterpret_cast<const std::uint8_t*>(from.data());
  auto* const out = reinterpret_cast<std::uint8_t*>(to.data());
  if (input_shape_.channels == 3 && input_shape_.layout == image_layout::hwc)
    return resize<3>(in, 3 * input_shape_.width, input_shape_.height, down, across, out);
  for (std::size_t c = 0; c < input_shape_.channels; ++c) {
    resize<1>(in + c * input_shape_.height * input_shape_.width, input_shape_.width, input_shape_.height, down, across,
              out + c * height_ * width_);
  }
}

record_schema greyscale::output(const record_schema& in) {
  input_shape_ = image_in(in, "greyscale");
  if (input_shape_.channels != 3)
    throw configuration_error("images of one channel are grey already (greyscale takes three); leave the step out");
  return {record_form::fixed,
          {{in.fields[0].name, dtype::uint8, {input_shape_.height, input_shape_.width}}},
          0,
          in.labels,
          in.classes};
}

void greyscale::operator()(std::span<const std::byte> from, std::span<std::byte> to) const noexcept {
  const bool planes = input_shape_.layout == image_layout::chw;
  const std::size_t pixel = planes ? 1 : 3, channel = planes ? to.size() : 1;
  for (std::size_t k = 0; k < to.size(); ++k) {
    const auto value = [&](std::size_t c) { return std::to_integer<unsigned>(from[k * pixel + c * channel]); };
    to[k] = static_cast<std::byte>((77 * value(0) + 150 * value(1) + 29 * value(2) + 128) >> 8);
  }
}

prepare::prepare(const jpeg_options& jpeg)
    : text("jpeg:" + std::to_string(jpeg.height) + "x" + std::to_string(jpeg.width) +
           ",resize=" + std::to_string(jpeg.resize)) {}

prepare::prepare(const image_options& normalised)
    : text("normalise,mean=" + three(normalised.mean) + ",deviation=" + three(normalised.deviation) +
           ",layout=" + layout_text(normalised.output)) {}

prepare::prepare(const source_statistics& standardised, image_layout output)
    : text("standardise:" + layout_text(output) + "," + detail::to_text(standardised)) {}

loader operator|(loader from, const prepare& steps) {
  if (steps.text.empty()) return from;
  for (const auto step : detail::split(steps.text, '|'))
    read_step(step, [&](auto function) { from = std::move(from) | map(std::move(function)); });
  return from;
}

preparation::preparation(const prepare& steps, const record_schema& records) : output_(records) {
  const auto add = [&](auto function) {
    const std::size_t size = output_.record_bytes();
    output_ = function.output(output_);
    steps_.push_back({std::move(function), buffer<std::byte>(size)});
  };
  if (steps.text.empty()) return;
  for (const auto text : detail::split(steps.text, '|')) read_step(text, add);
}

void preparation::operator()(std::span<const std::byte> from, std::span<std::byte> to) {
  for (std::size_t k = 0; k < steps_.size(); ++k) {
    auto& here = steps_[k];
    if (k == 0 && here.aligned_input.size() == from.size() && from.size() > 0) {  // of numbers, which must be aligned
      std::memcpy(here.aligned_input.data(), from.data(), from.size());
      from = here.aligned_input.span();
    }
    const auto made = k + 1 < steps_.size() ? steps_[k + 1].aligned_input.span() : to;
    here.apply(from, made);
    from = made;
  }
  if (steps_.empty()) std::memcpy(to.data(), from.data(), to.size());
}

}}  // namespace muster::v0
