// One flat piece of memory for everything a model learns with.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/error.hpp>
#include <muster/elastic/state.hpp>

namespace muster { inline namespace v0 {

/// Name and extents of one tensor; no extents means a single number.
struct tensor_shape {
  std::string name;
  std::vector<std::size_t> extents;

  /// The number of elements, the product of the extents. Throws configuration_error when it does not fit 64 bits.
  [[nodiscard]] std::size_t size() const;
};

/// What an arena's state is told by what reduces its gradients: what of it differs between ranks, when it changes, and
/// what else belongs to it.
struct arena_sharing {
  state_kind parameters = state_kind::replicated;
  state_kind states = state_kind::replicated;
  in_step change = in_step::keep_on_failure;  ///< `restore_on_failure`: updates are run at once, and the state copies
                                              ///< what they change
  std::function<void(state_parts&)> beside{};
};

/// What an arena is apart from its arrays: the tensors and where they lie, and updates that wait for their step's
/// commit.
///
/// The tensors lie in the order in which a backward pass has their gradients, which is the reverse of that in which
/// layers are declared and given here: so what becomes ready together lies together, and buckets are cut from it
/// without copies. Each begins at a 64-byte boundary.
class arena_base {
 public:
  arena_base(const arena_base&) = delete;
  arena_base& operator=(const arena_base&) = delete;

  /// The tensors, in the order in which they were given.
  [[nodiscard]] const std::vector<tensor_shape>& shapes() const noexcept { return shapes_; }
  /// Where each lies in the arrays, the gap behind it included: element 0 is the first of the tensor that was given
  /// last.
  [[nodiscard]] const std::vector<block>& extents() const noexcept { return extents_; }
  /// Where the tensor of that name is in `shapes()`. Throws configuration_error when there is none; O(tensors).
  [[nodiscard]] std::size_t index(std::string_view name) const;

  /// Runs `change`, which updates the parameters from the gradients and does not throw: at once, or, in a step of a
  /// session, when the step commits, so that a step that fails after it leaves the parameters as they were. Changes run
  /// in the order of the calls. Where ranks exchange weights within the step it is at once, too, and the state shadows
  /// them.
  void update(std::function<void()> change);

  /// As an owner of state: the parameters, the arrays of the optimizer, and what is kept beside them. All of it is
  /// replicated, unless it is shared otherwise.
  void describe(state_parts& parts);

  /// What reduces the gradients says how they are shared, until it ends that. Throws configuration_error when they are
  /// shared already.
  void share(arena_sharing how);
  void end_sharing() noexcept { sharing_ = {}; }

 protected:
  explicit arena_base(std::vector<tensor_shape> shapes);
  virtual ~arena_base() = default;

  /// Of each array, in elements.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Where that tensor's elements are in an array. Throws configuration_error when there is no such tensor.
  [[nodiscard]] block place(std::size_t tensor) const;

 private:
  virtual void add_arrays(state_parts& parts, const arena_sharing& how) = 0;
  void run_updates();
  [[nodiscard]] std::vector<std::string> tensors() const;  // "weight[10x20]", "bias[10]"

  std::vector<tensor_shape> shapes_;
  std::vector<block> extents_;
  std::size_t size_;
  arena_sharing sharing_;
  bool in_step_ = false;
  std::vector<std::function<void()>> updates_;  // of this step, to be done when it commits
};

/// Parameters, gradients and optimizer state of a model, each in one contiguous array, so that one collective reduces
/// all gradients and one loop updates all parameters: what `arena` and `device_arena` have in common. `Values` is a
/// view of floats, `Array` owns them.
///
/// The gaps between tensors belong to the arrays and hold zeros: code that writes through the views below leaves them
/// alone, sums and updates keep them zero. Nothing moves while the arena lives, so views stay valid; they dangle after
/// it. Not copied or moved. Not thread safe; every rank has its own.
template <class Values, class Array>
class arena_in : public arena_base {
 public:
  using values = Values;  ///< the view of floats
  /// Elements in front of the gradients, for what is reduced with the first of them.
  static constexpr std::size_t head = buffer_alignment / sizeof(float);

  /// All parameters, gaps included.
  [[nodiscard]] Values parameters() noexcept { return parameters_.span(); }
  [[nodiscard]] auto parameters() const noexcept { return parameters_.span(); }
  /// All gradients, gaps included: what is reduced over the ranks.
  [[nodiscard]] Values gradients() noexcept { return gradients_.span().subspan(head, size()); }
  [[nodiscard]] auto gradients() const noexcept { return gradients_.span().subspan(head, size()); }
  /// The head and the gradients behind it.
  [[nodiscard]] Values gradients_with_head() noexcept { return gradients_.span(); }
  /// An array of the optimizer with the layout of the parameters, made of zeros when it is first asked for. `name` is
  /// what checkpoints call it, "velocity". The memory the arena was made from must still live at that first call.
  [[nodiscard]] Values state(const std::string& name) {
    auto found = states_.find(name);
    if (found == states_.end()) found = states_.emplace(name, allocate_(size())).first;
    return found->second.span();
  }

  /// One tensor's parameters. Throws configuration_error when `tensor` is not below shapes().size().
  [[nodiscard]] Values parameter(std::size_t tensor) { return view(parameters(), tensor); }
  [[nodiscard]] Values parameter(std::string_view name) { return parameter(index(name)); }
  /// One tensor's gradients.
  [[nodiscard]] Values gradient(std::size_t tensor) { return view(gradients(), tensor); }
  [[nodiscard]] Values gradient(std::string_view name) { return gradient(index(name)); }

 protected:
  /// Throws configuration_error when two tensors have one name or a name is empty. All values start as zeros.
  arena_in(std::vector<tensor_shape> shapes, std::function<Array(std::size_t)> allocate)
      : arena_base(std::move(shapes)),
        allocate_(std::move(allocate)),
        parameters_(allocate_(size())),
        gradients_(allocate_(head + size())) {}

 private:
  virtual void add_array(state_parts& parts, const std::string& name, Values array, state_kind kind,
                         in_step change) = 0;
  void add_arrays(state_parts& parts, const arena_sharing& how) override {
    add_array(parts, "parameters", parameters(), how.parameters, how.change);
    for (auto& [name, array] : states_) add_array(parts, "optimizer " + name, array.span(), how.states, how.change);
  }
  [[nodiscard]] Values view(Values whole, std::size_t tensor) const {
    const block at = place(tensor);
    return whole.subspan(at.first, at.count);
  }

  std::function<Array(std::size_t)> allocate_;
  Array parameters_;
  Array gradients_;
  std::map<std::string, Array, std::less<>> states_;
};

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

}}  // namespace muster::v0
