#include <muster/train/arena.hpp>

#include <algorithm>
#include <limits>

#include <muster/core/events.hpp>

#include "layout.hpp"

namespace muster::inline v0 {
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
      extents_(detail::lay_out(shapes_)),
      size_(detail::size_of(extents_)),
      allocate_(std::move(allocate)),
      parameters_(allocate_(size_)),
      gradients_(allocate_(head + size_)) {}

std::span<float> arena::state(const std::string& name) {
  auto found = states_.find(name);
  if (found == states_.end()) found = states_.emplace(name, allocate_(size_)).first;
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

void arena::clear_gradients() noexcept { std::ranges::fill(gradients(), 0.0f); }

std::string arena::tensors() const {
  std::string text;
  for (const auto& shape : shapes_) {
    text += (text.empty() ? "" : " ") + shape.name;
    for (std::size_t k = 0; k < shape.extents.size(); ++k)
      text += (k == 0 ? "[" : "x") + std::to_string(shape.extents[k]) + (k + 1 == shape.extents.size() ? "]" : "");
  }
  return text;
}

void arena::describe(state_parts& parts) {
  // Nothing that changes: it is there to be compared.
  parts.add(
      "tensors", state_kind::replicated,
      [this] {
        const std::string text = tensors();
        const auto bytes = std::as_bytes(std::span(text));
        return std::vector<std::byte>(bytes.begin(), bytes.end());
      },
      [this](std::span<const std::byte> bytes) {
        const std::string theirs(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        if (const std::string ours = tensors(); theirs != ours) {
          throw configuration_error("this state is of another model (its tensors are " + theirs +
                                    " and this model's are " + ours + "); give it the model it was made with");
        }
      });
  parts.add("parameters", parameters(), parameters_are_, change_);
  for (auto& [name, values] : states_) parts.add("optimizer " + name, values.span(), states_are_, change_);
  if (beside_) beside_(parts);
  parts.hook([this] { commit(); },
             [this] {
               in_step_ = false;
               updates_.clear();
             },
             [this] { in_step_ = true; });
}

void arena::update(std::function<void()> change) {
  updates_.push_back(std::move(change));
  if (!in_step_ || change_ == in_step::shadowed) run_updates();
}

void arena::commit() {
  in_step_ = false;
  if (!updates_.empty()) run_updates();
}

void arena::run_updates() {
  const scoped_event measured(activity::update, "update", 0);
  for (const auto& change : updates_) change();
  updates_.clear();
}

void arena::check_index(std::size_t tensor) const {
  if (tensor < shapes_.size()) return;
  throw configuration_error("no tensor has index " + std::to_string(tensor) + " (the arena has " +
                            std::to_string(shapes_.size()) + "); count from 0");
}

block arena::extent(std::size_t tensor) const {
  check_index(tensor);
  return extents_[tensor];
}

std::span<float> arena::view(std::span<float> whole, std::size_t tensor) const {
  check_index(tensor);
  return whole.subspan(extents_[tensor].first, shapes_[tensor].size());
}

}  // namespace muster::inline v0
