#include <muster/train/device/arena.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <muster/core/error.hpp>

#include "../layout.hpp"

namespace muster::inline v0 {
namespace {

constexpr seconds for_copies{60};

}  // namespace

device_arena::device_arena(std::vector<tensor_shape> shapes, device_stream_ref stream)
    : shapes_(std::move(shapes)),
      extents_(detail::lay_out(shapes_)),
      size_(detail::size_of(extents_)),
      stream_(stream),
      parameters_(size_),
      gradients_(head + size_) {}

device_span<float> device_arena::state(const std::string& name) {
  auto found = states_.find(name);
  if (found == states_.end()) found = states_.emplace(name, device_buffer<float>(size_)).first;
  return found->second.span();
}

device_span<float> device_arena::view(device_span<float> whole, std::size_t tensor) const {
  if (tensor >= shapes_.size()) {
    throw configuration_error("no tensor has index " + std::to_string(tensor) + " (the arena has " +
                              std::to_string(shapes_.size()) + "); count from 0");
  }
  return whole.subspan(extents_[tensor].first, shapes_[tensor].size());
}

void device_arena::upload(const arena& from, clock::time_point until) {
  copy(from.parameters(), parameters(), stream_);
  wait_for(stream_, until);
}

void device_arena::download(arena& to, clock::time_point until) {
  copy(parameters(), to.parameters(), stream_);
  wait_for(stream_, until);
}

void device_arena::describe(state_parts& parts) {
  add_to(parts, "parameters", parameters());
  for (auto& [name, values] : states_) add_to(parts, "optimizer " + name, values.span());
}

void device_arena::add_to(state_parts& parts, const std::string& name, device_span<float> values) {
  parts.add(
      name, state_kind::replicated,
      [this, values] {
        std::vector<std::byte> bytes(values.size_bytes());
        copy(values, std::span(reinterpret_cast<float*>(bytes.data()), values.size()), stream_);
        wait_for(stream_, deadline_after(for_copies));
        return bytes;
      },
      [this, name, values](std::span<const std::byte> bytes) {
        if (bytes.size() != values.size_bytes()) {
          throw configuration_error("the " + name + " cannot be taken over (there are " + std::to_string(bytes.size()) +
                                    " bytes where " + std::to_string(values.size_bytes()) +
                                    " are needed); give it the model it was made with");
        }
        std::vector<float> floats(values.size());  // aligned, which what was sent need not be
        std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<std::byte*>(floats.data()));
        copy(std::span<const float>(floats), values, stream_);
        wait_for(stream_, deadline_after(for_copies));
      });
}

}  // namespace muster::inline v0
