// One flat piece of memory for everything a model learns with.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include <muster/elastic/state.hpp>

namespace muster::inline v0 {

/// Name and extents of one tensor; no extents means a single number.
struct tensor_shape {
  std::string name;
  std::vector<std::size_t> extents;

  /// The number of elements, the product of the extents. Throws configuration_error when it does not fit 64 bits.
  [[nodiscard]] std::size_t size() const;
};

/// What hands out the memory of an arena: a muster::context, or whatever has the same `allocate<T>(n)`.
template <class Memory>
concept arena_memory = requires(Memory& memory, std::size_t size) {
  { memory.template allocate<float>(size) } -> std::same_as<buffer<float>>;
};

/// Parameters, gradients and optimizer state of a model, each in one contiguous array, so that one collective reduces
/// all gradients and one loop updates all parameters.
///
/// The tensors lie in the order in which a backward pass has their gradients, which is the reverse of that in which
/// layers are declared and given here: so what becomes ready together lies together, and buckets are cut from it
/// without copies. Each begins at a 64-byte boundary. The gaps between them belong to the arrays and hold zeros:
/// whoever writes through the views below leaves them alone, sums and updates keep them zero. Nothing moves while the
/// arena lives, so spans stay valid; they dangle after it. Not copied or moved. Not thread safe; every rank has its
/// own.
class arena {
 public:
  /// `shapes` are in the order of the layers, from the input to the loss. Throws configuration_error when two tensors
  /// have one name or a name is empty. All values start as zeros.
  template <arena_memory Memory>
  arena(Memory& memory, std::vector<tensor_shape> shapes)
      : arena(std::move(shapes), [&memory](std::size_t size) { return memory.template allocate<float>(size); }) {}
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  /// All parameters, gaps included.
  [[nodiscard]] std::span<float> parameters() noexcept { return parameters_.span(); }
  [[nodiscard]] std::span<const float> parameters() const noexcept { return parameters_.span(); }
  /// All gradients, gaps included: what is reduced over the ranks.
  [[nodiscard]] std::span<float> gradients() noexcept { return gradients_.span().subspan(head); }
  [[nodiscard]] std::span<const float> gradients() const noexcept { return gradients_.span().subspan(head); }
  /// An array of the optimizer with the layout of the parameters, made of zeros when it is first asked for. `name` is
  /// what checkpoints call it, "velocity". The memory the arena was made from must still live at that first call.
  [[nodiscard]] std::span<float> state(const std::string& name);

  /// The tensors, in the order in which they were given.
  [[nodiscard]] const std::vector<tensor_shape>& shapes() const noexcept { return shapes_; }
  /// Where the tensor of that name is in `shapes()`. Throws configuration_error when there is none; O(tensors).
  [[nodiscard]] std::size_t index(std::string_view name) const;

  /// One tensor's parameters. Throws configuration_error when `tensor` is not below shapes().size().
  [[nodiscard]] std::span<float> parameter(std::size_t tensor) { return view(parameters_.span(), tensor); }
  [[nodiscard]] std::span<float> parameter(std::string_view name) { return parameter(index(name)); }
  /// One tensor's gradients.
  [[nodiscard]] std::span<float> gradient(std::size_t tensor) { return view(gradients(), tensor); }
  [[nodiscard]] std::span<float> gradient(std::string_view name) { return gradient(index(name)); }

  /// Where a tensor lies in parameters(), gradients() and state(), the gap behind it included: element 0 is the first
  /// of the tensor that was given last.
  [[nodiscard]] block extent(std::size_t tensor) const;

  /// Sets all gradients to zero.
  void clear_gradients() noexcept;

  /// Runs `change`, which updates the parameters from the gradients and does not throw: at once, or, in a step of a
  /// session, when the step commits, so that a step that fails after it leaves the parameters as they were. Changes run
  /// in the order of the calls. Where a gradient_sync averages weights within the step it is at once, too, and the state
  /// shadows them.
  void update(std::function<void()> change);

  /// As an owner of state: the parameters, the arrays of the optimizer, and what those who work on the arena keep
  /// beside it. All of it is replicated, unless a gradient_sync has ranks differ.
  void describe(state_parts& parts);

 private:
  friend class gradient_sync;
  void commit();
  void run_updates();
  // In front of the gradients, for what is reduced with the first of them.
  static constexpr std::size_t head = buffer_alignment / sizeof(float);
  using allocator = std::function<buffer<float>(std::size_t)>;
  arena(std::vector<tensor_shape> shapes, allocator allocate);
  [[nodiscard]] std::span<float> view(std::span<float> whole, std::size_t tensor) const;
  void check_index(std::size_t tensor) const;
  [[nodiscard]] std::string tensors() const;  // "weight[10x20] bias[10]"

  std::vector<tensor_shape> shapes_;
  std::vector<block> extents_;  // of each tensor
  std::size_t size_;            // of each array, in elements
  allocator allocate_;
  buffer<float> parameters_;
  buffer<float> gradients_;
  std::map<std::string, buffer<float>, std::less<>> states_;

  // What a gradient_sync says of the state.
  state_kind parameters_are_ = state_kind::replicated;
  state_kind states_are_ = state_kind::replicated;
  in_step change_ = in_step::settled;
  bool in_step_ = false;
  std::vector<std::function<void()>> updates_;  // of this step, to be done when it commits
  std::function<void(state_parts&)> beside_;
};

}  // namespace muster::inline v0
