#pragma once

#include <muster/train/arena.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

#include <muster/core/events.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/round_up.hpp>
#include <muster/core/text.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline constexpr std::size_t elements_per_line = buffer_alignment / sizeof(float);

inline std::vector<block> place_tensors(const std::vector<tensor_shape>& shapes) {
  std::set<std::string_view> names;
  for (const auto& shape : shapes) {
    if (shape.name.empty()) {
      throw configuration_error("tensor " + std::to_string(names.size()) +
                                " of the arena has no name (views and checkpoints use the name); name it");
    }
    if (!names.insert(shape.name).second) {
      throw configuration_error("two tensors of the arena are named '" + shape.name +
                                "' (views and checkpoints use the name); rename one");
    }
    if (!detail::with_one_of<float, double, float16, bfloat16>(shape.type, [](auto) {})) {
      throw configuration_error("tensor '" + shape.name + "' of the arena has elements of " +
                                std::string(to_string(shape.type)) +
                                " (gradients are summed as floating-point numbers); use float32");
    }
  }
  std::vector<block> extents(shapes.size());
  std::size_t end = 0;
  for (std::size_t tensor = shapes.size(); tensor-- > 0;) {
    extents[tensor] = {end, detail::round_up(shapes[tensor].floats(), elements_per_line)};
    end += extents[tensor].count;
  }
  return extents;
}

}  // namespace detail

MUSTER_INLINE std::size_t tensor_shape::size() const {
  std::size_t size = 1;
  for (const std::size_t extent : extents) {
    // Limits the bytes of the elements, at most 8 each, to half of the range, so that rounding up does not overflow.
    if (extent != 0 && size > std::numeric_limits<std::size_t>::max() / 16 / extent) {
      throw configuration_error("tensor '" + name +
                                "' is too large (its elements do not fit 64 bits); check its shape");
    }
    size *= extent;
  }
  return size;
}

MUSTER_INLINE arena_base::arena_base(std::vector<tensor_shape> shapes)
    : shapes_(std::move(shapes)),
      extents_(detail::place_tensors(shapes_)),
      size_(extents_.empty() ? 0 : extents_.front().first + extents_.front().count) {}

MUSTER_INLINE std::size_t arena_base::index(std::string_view name) const {
  const auto found =
      std::find_if(shapes_.begin(), shapes_.end(), [&](const auto& shape) { return shape.name == name; });
  if (found != shapes_.end()) return static_cast<std::size_t>(found - shapes_.begin());
  std::vector<std::string> names;
  for (const auto& shape : shapes_) names.push_back(shape.name);
  const auto suggestion = closest(name, names);
  throw configuration_error(
      "no tensor is named '" + std::string(name) + "' (the arena has " + std::to_string(shapes_.size()) + ")" +
      (suggestion ? "; did you mean '" + *suggestion + "'?" : "; use the name of an existing tensor"));
}

MUSTER_INLINE std::vector<std::string> arena_base::tensors() const {
  std::vector<std::string> all;
  for (const auto& shape : shapes_) {
    std::string& text = all.emplace_back(shape.name);
    for (std::size_t k = 0; k < shape.extents.size(); ++k)
      text += (k == 0 ? "[" : "x") + std::to_string(shape.extents[k]) + (k + 1 == shape.extents.size() ? "]" : "");
    if (shape.type != dtype::float32) text += ":" + std::string(to_string(shape.type));
  }
  return all;
}

MUSTER_INLINE void arena_base::describe(state_parts& parts) {
  const auto all = tensors();
  for (std::size_t k = 0; k < all.size(); ++k) parts.add_property("tensor " + std::to_string(k), all[k]);
  // The part never changes. It is in the state to be compared.
  parts.add(
      "tensors", state_kind::replicated,
      [this] {
        const std::string text = detail::joined(tensors(), " ");
        const auto bytes = std::as_bytes(std::span(text));
        return std::vector<std::byte>(bytes.begin(), bytes.end());
      },
      [this](std::span<const std::byte> bytes) {
        const std::string theirs(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        if (const std::string ours = detail::joined(tensors(), " "); theirs != ours) {
          throw configuration_error("this state belongs to another model (its tensors are " + theirs +
                                    " and this model's are " + ours + "); use the model that saved it");
        }
      });
  add_arrays(parts, sharing_);
  if (sharing_.beside) sharing_.beside(parts);
  parts.hook(
      [this] {
        in_step_ = false;
        run_updates();
      },
      [this] {
        in_step_ = false;
        updates_.clear();
      },
      [this] { in_step_ = true; });
}

MUSTER_INLINE void arena_base::share(arena_sharing sharing) {
  if (sharing_.beside) {
    throw configuration_error("an arena cannot have two gradient_syncs (its gradients are reduced once); use one");
  }
  sharing_ = std::move(sharing);
}

MUSTER_INLINE void arena_base::update(std::function<void()> change) {
  updates_.push_back(std::move(change));
  if (!in_step_ || sharing_.change == rollback_policy::restore_on_failure) run_updates();
}

MUSTER_INLINE void arena_base::run_updates() {
  if (updates_.empty()) return;
  const scoped_event measured(activity::update, "update", 0);
  for (const auto& change : updates_) change();
  updates_.clear();
}

MUSTER_INLINE block arena_base::place(std::size_t tensor) const {
  if (tensor >= shapes_.size()) {
    throw configuration_error("no tensor has index " + std::to_string(tensor) + " (the arena has " +
                              std::to_string(shapes_.size()) + "); count from 0");
  }
  return {extents_[tensor].first, shapes_[tensor].floats()};
}

MUSTER_INLINE void arena_base::require_floats(std::string_view problem) const {
  for (const auto& shape : shapes_) {
    if (shape.type == dtype::float32) continue;
    throw configuration_error(
        std::string(problem) + " (tensor '" + shape.name + "' has elements of " + std::string(to_string(shape.type)) +
        ", and only mode allreduce, without a codec and virtual shards, and updates of the program "
        "read these); use float32, or do without");
  }
}

MUSTER_INLINE void arena::clear_gradients() noexcept { std::ranges::fill(gradients(), 0.0f); }

MUSTER_INLINE void arena::initialise(std::size_t tensor, std::function<float(std::size_t)> value) {
  const block at = place(tensor);
  const auto& shape = shapes()[tensor];
  const auto problem = "tensor '" + shape.name + "' cannot be given initial values by a function ";
  if (shape.type != dtype::float32)
    throw configuration_error(problem + "(its elements are " + std::string(to_string(shape.type)) +
                              "); write them through parameters()");
  if (is_taken_)
    throw configuration_error(problem + "(the servers have the initial values); call before the training is made");
  const auto own = unprepared_parameters().subspan(at.first, at.count);
  if (is_read()) return fill({at.first, own, std::move(value)});
  initial_.push_back({at.first, own, std::move(value)});
}

MUSTER_INLINE void arena::fill(const initial_tensor& tensor) {
  for (std::size_t k = 0; k < tensor.values.size(); ++k) tensor.values[k] = tensor.value(k);
}

MUSTER_INLINE void arena::fill_initial() const { std::ranges::for_each(initial_, fill); }

MUSTER_INLINE std::function<void(std::size_t, std::span<float>)> arena::take_initial() {
  if (is_read() || initial_.empty()) return {};
  is_taken_ = true;
  return [tensors = std::exchange(initial_, {})](std::size_t first, std::span<float> filled) {
    for (const auto& tensor : tensors) {
      const auto begin = std::max(first, tensor.first);
      const auto end = std::min(first + filled.size(), tensor.first + tensor.values.size());
      for (auto element = begin; element < end; ++element)
        filled[element - first] = tensor.value(element - tensor.first);
    }
  };
}

// Later accesses map new pages of zeros, or the same pages of shared memory.
MUSTER_INLINE void arena::discard() noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const auto array : {unprepared_parameters(), gradients_with_head()}) {
    const auto bytes = std::as_writable_bytes(array);
    const auto begin = detail::round_up(reinterpret_cast<std::uintptr_t>(bytes.data()), page);
    const auto end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size()) / page * page;
    if (end > begin) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

MUSTER_INLINE void arena::add_array(state_parts& parts, const std::string& name, std::span<float> array,
                                    state_kind kind, rollback_policy change) {
  parts.add(name, array, kind, change);
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
