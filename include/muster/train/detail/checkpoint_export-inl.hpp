#pragma once

#include <muster/train/checkpoint.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>

#include <muster/core/checked_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/core/text.hpp>
#include <muster/data/sources/safetensors.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/checkpoint_file.hpp>
#include <muster/train/detail/arena-inl.hpp>
#include <muster/train/detail/checkpoint-inl.hpp>

namespace muster { inline namespace v0 {
namespace detail {

/// Parses a tensor as the part "tensors" of a checkpoint has it: "weight[10x20]", "bias", "scale[3]:float16".
inline tensor_shape tensor_in(std::string_view text) {
  tensor_shape shape;
  const auto colon = text.rfind(':');
  if (const auto type =
          colon == std::string_view::npos ? dtype::none : data::detail::dtype_named(text.substr(colon + 1));
      type != dtype::none) {
    shape.type = type;
    text = text.substr(0, colon);
  }
  const auto bracket = text.ends_with(']') ? text.rfind('[') : std::string_view::npos;
  if (bracket != std::string_view::npos) {
    for (const auto word : split(text.substr(bracket + 1, text.size() - bracket - 2), 'x'))
      shape.extents.push_back(parse_number<std::size_t>(word).value_or(0));
    text = text.substr(0, bracket);
  }
  shape.name = text;
  return shape;
}

}  // namespace detail

MUSTER_INLINE void export_parameters(const std::string& checkpoint, const std::string& path) {
  std::string state = checkpoint;
  if (std::filesystem::is_directory(checkpoint)) {
    const auto names = detail::list(checkpoint);
    if (names.empty())
      throw data_error({.file = checkpoint}, "has no complete checkpoint; name the folder of --checkpoint");
    state = detail::file_of(checkpoint, names.back(), detail::replicated_file);
  }
  const auto file = detail::read_whole_file(state, [] {});
  const auto image = detail::parse_checkpoint(file, state);
  const auto part = [&](std::string_view name) {
    const auto found = std::ranges::find(image.parts, name, &detail::checkpoint_part::name);
    if (found != image.parts.end()) return found->bytes;
    throw data_error({.file = state}, "has no part '" + std::string(name) +
                                          "' (every rank has its own parameters, or the training has no arena); save "
                                          "with another mode");
  };
  const auto values = part("parameters"), text = part("tensors");
  std::vector<tensor_shape> shapes;
  for (const auto word : detail::split({reinterpret_cast<const char*>(text.data()), text.size()}, ' '))
    shapes.push_back(detail::tensor_in(word));
  const auto places = detail::place_tensors(shapes);
  const std::size_t floats = places.front().first + places.front().count;
  if (values.size() != floats * sizeof(float))
    throw data_error({.file = state}, "cannot be exported (its parameters have " + std::to_string(values.size()) +
                                          " bytes, and the tensors that it names need " +
                                          std::to_string(floats * sizeof(float)) +
                                          "); give the tensors names without blanks");
  std::vector<data::tensor_view> tensors;
  for (std::size_t k = 0; k < shapes.size(); ++k) {
    data::tensor_view view{{shapes[k].name, shapes[k].type, {shapes[k].extents.begin(), shapes[k].extents.end()}}, {}};
    view.values = values.subspan(places[k].first * sizeof(float), view.bytes());
    tensors.push_back(std::move(view));
  }
  data::write_safetensors(path, tensors, {{"steps", std::to_string(image.head.position.steps)}});
}

}}  // namespace muster::v0
