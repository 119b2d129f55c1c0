#include <muster/train/arena.hpp>

#include <algorithm>
#include <limits>
#include <set>

namespace muster::inline v0 {
namespace {

constexpr std::size_t elements_a_line = buffer_alignment / sizeof(float);

std::size_t round_up(std::size_t size) { return (size + elements_a_line - 1) / elements_a_line * elements_a_line; }

std::vector<std::size_t> lay_out(const std::vector<tensor_shape>& shapes) {
  std::set<std::string_view> names;
  std::vector<std::size_t> offsets{0};
  for (const auto& shape : shapes) {
    if (shape.name.empty()) {
      throw configuration_error("tensor " + std::to_string(offsets.size() - 1) +
                                " of the arena has no name (views and checkpoints go by it); name it");
    }
    if (!names.insert(shape.name).second) {
      throw configuration_error("two tensors of the arena are named '" + shape.name +
                                "' (views and checkpoints go by the name); rename one");
    }
    offsets.push_back(offsets.back() + round_up(shape.size()));
  }
  return offsets;
}

}  // namespace

std::size_t tensor_shape::size() const {
  std::size_t size = 1;
  for (const std::size_t extent : extents) {
    // A quarter of the range is left for rounding up and for the bytes of an element.
    if (extent != 0 && size > std::numeric_limits<std::size_t>::max() / 16 / extent) {
      throw configuration_error("tensor '" + name +
                                "' is too large (its elements do not fit 64 bits); check its shape");
    }
    size *= extent;
  }
  return size;
}

arena::arena(std::vector<tensor_shape> shapes, allocator allocate)
    : shapes_(std::move(shapes)),
      offsets_(lay_out(shapes_)),
      allocate_(std::move(allocate)),
      parameters_(allocate_(offsets_.back())),
      gradients_(allocate_(offsets_.back())) {}

std::span<float> arena::state(const std::string& name) {
  auto found = states_.find(name);
  if (found == states_.end()) found = states_.emplace(name, allocate_(offsets_.back())).first;
  return found->second.span();
}

std::size_t arena::index(std::string_view name) const {
  const auto found =
      std::find_if(shapes_.begin(), shapes_.end(), [&](const auto& shape) { return shape.name == name; });
  if (found != shapes_.end()) return static_cast<std::size_t>(found - shapes_.begin());
  std::vector<std::string> names;
  for (const auto& shape : shapes_) names.push_back(shape.name);
  const auto meant = closest(name, names);
  throw configuration_error("no tensor is named '" + std::string(name) + "' (the arena has " +
                            std::to_string(shapes_.size()) + ")" +
                            (meant ? "; did you mean '" + *meant + "'?" : "; use a name that it was made with"));
}

void arena::clear_gradients() noexcept { std::fill(gradients_.begin(), gradients_.end(), 0.0f); }

void arena::describe(state_parts& parts) {
  parts.add("parameters", parameters());
  for (auto& [name, values] : states_) parts.add("optimizer " + name, values.span());
}

std::span<float> arena::view(std::span<float> whole, std::size_t tensor) const {
  if (tensor >= shapes_.size()) {
    throw configuration_error("no tensor has index " + std::to_string(tensor) + " (the arena has " +
                              std::to_string(shapes_.size()) + "); count from 0");
  }
  return whole.subspan(offsets_[tensor], shapes_[tensor].size());
}

}  // namespace muster::inline v0
