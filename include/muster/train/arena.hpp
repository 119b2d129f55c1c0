// One flat piece of memory for everything a model learns with.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <muster/train/arena_in.hpp>

namespace muster::inline v0 {

/// What hands out the memory of an arena: a muster::context, or whatever has the same `allocate<T>(n)`.
template <class Memory>
concept arena_memory = requires(Memory& memory, std::size_t size) {
  { memory.template allocate<float>(size) } -> std::same_as<buffer<float>>;
};

/// An arena in the memory of the host.
class arena final : public arena_in<std::span<float>, buffer<float>> {
 public:
  /// `shapes` are in the order of the layers, from the input to the loss. Throws configuration_error when two tensors
  /// have one name or a name is empty. All values start as zeros.
  template <arena_memory Memory>
  arena(Memory& memory, std::vector<tensor_shape> shapes)
      : arena_in(std::move(shapes), [&memory](std::size_t size) { return memory.template allocate<float>(size); }) {}

  /// Sets all gradients to zero.
  void clear_gradients() noexcept;

 private:
  void add_array(state_parts& parts, const std::string& name, std::span<float> array, state_kind kind,
                 in_step change) override;
};

}  // namespace muster::inline v0
