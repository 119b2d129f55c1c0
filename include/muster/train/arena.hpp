// A model's parameters, gradients and optimizer state in contiguous memory.
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
#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>
#include <muster/elastic/elastic_settings.hpp>
#include <muster/elastic/state.hpp>

namespace muster { inline namespace v0 {

/// The name, extents and element type of a tensor. A tensor without extents is a single number.
struct tensor_shape {
  std::string name;
  std::vector<std::size_t> extents;
  /// Type of the elements: float32, or float64, float16 or bfloat16 for a model of another library that computes with
  /// these types. The arrays of an arena then hold the bytes of such elements in place of floats, and only
  /// gradient_sync in mode allreduce and updates of the program read them.
  dtype type = dtype::float32;

  /// Returns the number of elements, the product of the extents. Throws configuration_error when the product does not
  /// fit into 64 bits.
  [[nodiscard]] std::size_t size() const;
  /// Returns the number of floats with the size of the elements, rounded up.
  [[nodiscard]] std::size_t floats() const { return (size() * size_of(type) + sizeof(float) - 1) / sizeof(float); }
};

/// The part of an arena's state that the reducer of its gradients decides: the kind of each array, the moment at which
/// a step changes the arrays, and further state that belongs to the arena.
struct arena_sharing {
  state_kind parameters = state_kind::replicated;
  state_kind states = state_kind::replicated;
  rollback_policy change = rollback_policy::keep_on_failure;  ///< `restore_on_failure`: updates run at once, and the
                                                              ///< state copies the arrays before a step changes them
  std::function<void(state_parts&)> beside{};                 ///< describes the further state
};

/// The part of an arena that does not depend on its memory: the tensors, their places, and the updates that wait for
/// their step's commit.
///
/// The tensors are stored in the order in which a backward pass computes their gradients, the reverse of the order of
/// declaration. Gradients that become ready together are therefore adjacent, and buckets are parts of the array,
/// without copies. Each tensor begins at a 64-byte boundary.
class arena_base {
 public:
  arena_base(const arena_base&) = delete;
  arena_base& operator=(const arena_base&) = delete;

  /// Returns the tensors in the order of the constructor's argument.
  [[nodiscard]] const std::vector<tensor_shape>& shapes() const noexcept { return shapes_; }
  /// Returns each tensor's place in the arrays, including the gap after the tensor. Element 0 is the first element
  /// of the last tensor of `shapes()`.
  [[nodiscard]] const std::vector<block>& places() const noexcept { return extents_; }
  /// Returns the index in `shapes()` of the tensor with that name. Throws configuration_error when no tensor has that
  /// name. O(tensors).
  [[nodiscard]] std::size_t index(std::string_view name) const;

  /// Runs `change`, which updates the parameters from the gradients and does not throw. Within a step of a session
  /// `change` runs when the step commits, so that a step that fails later leaves the parameters unchanged. Otherwise,
  /// and where ranks exchange weights within the step, `change` runs at once. In the latter case the state shadows the
  /// parameters. Changes run in the order of the calls.
  void update(std::function<void()> change);

  /// Describes the state to a session: the parameters, the arrays of the optimizer and the further state of
  /// `arena_sharing::beside`. All parts are replicated, unless `share` declared another kind.
  void describe(state_parts& parts);

  /// Sets the kinds of the parameters and of the optimizer's arrays, and the moment at which a step changes the arrays,
  /// until `end_sharing`. Called by the gradient_sync of the arena. Throws configuration_error when the arena has a
  /// gradient_sync already.
  void share(arena_sharing sharing);
  void end_sharing() noexcept { sharing_ = {}; }
  /// Returns true between `share` and `end_sharing`.
  [[nodiscard]] bool is_shared() const noexcept { return static_cast<bool>(sharing_.beside); }
  /// Throws configuration_error that begins with `problem` ("a codec cannot be used") unless all tensors are float32.
  void require_floats(std::string_view problem) const;

 protected:
  /// Sets the initial values before the first access to the parameters.
  void prepare() const {
    if (is_read_) return;  // concurrent reads write nothing
    fill_initial();
    is_read_ = true;
  }
  /// Returns true after the first access to the parameters.
  [[nodiscard]] bool is_read() const noexcept { return is_read_; }

  explicit arena_base(std::vector<tensor_shape> shapes);
  virtual ~arena_base() = default;

  /// Returns the number of elements in each array.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Returns the place of the tensor's elements in an array. Throws configuration_error when the index is out of range.
  [[nodiscard]] block place(std::size_t tensor) const;

 private:
  // Adds the parameters and the optimizer's arrays to `parts`, with the kinds that `sharing` names.
  virtual void add_arrays(state_parts& parts, const arena_sharing& sharing) = 0;
  virtual void fill_initial() const {}
  // Runs the updates that wait for the commit.
  void run_updates();
  [[nodiscard]] std::vector<std::string> tensors() const;  // "weight[10x20]", "bias[10]"

  std::vector<tensor_shape> shapes_;
  std::vector<block> extents_;
  std::size_t size_;
  arena_sharing sharing_;
  mutable bool is_read_ = false;
  bool in_step_ = false;
  std::vector<std::function<void()>> updates_;  // updates of the current step, run when the step commits
};

/// Parameters, gradients and optimizer state of a model, each in one contiguous array. One collective reduces all
/// gradients, and one loop updates all parameters. The class is the common base of `arena` and `device_arena`. `Values`
/// is a view of floats, `Array` owns them.
///
/// The gaps between tensors belong to the arrays and hold zeros. Code that writes through the views leaves the gaps
/// unchanged; sums and updates keep them zero. The arrays never move, so a view is valid as long as the arena lives.
/// Neither copyable nor movable. Not thread safe: every rank has its own arena.
template <class Values, class Array>
class arena_in : public arena_base {
 public:
  using values = Values;  ///< the view of floats
  /// Number of elements before the gradients, for numbers that are reduced together with the first gradients.
  static constexpr std::size_t head = buffer_alignment / sizeof(float);

  /// Returns all parameters, including the gaps.
  [[nodiscard]] Values parameters() {
    prepare();
    return parameters_.span();
  }
  [[nodiscard]] auto parameters() const {
    prepare();
    return parameters_.span();
  }
  /// Returns all gradients, including the gaps: the array that ranks reduce.
  [[nodiscard]] Values gradients() noexcept { return gradients_.span().subspan(head, size()); }
  [[nodiscard]] auto gradients() const noexcept { return gradients_.span().subspan(head, size()); }
  /// Returns the head followed by the gradients.
  [[nodiscard]] Values gradients_with_head() noexcept { return gradients_.span(); }
  /// Returns an array of the optimizer with the layout of the parameters. The first call with a name allocates the
  /// array and fills it with zeros. `name` is the array's name in checkpoints, such as "velocity". The memory resource
  /// of the constructor must live until that first call.
  [[nodiscard]] Values state(const std::string& name) {
    auto found = states_.find(name);
    if (found == states_.end()) found = states_.emplace(name, allocate_(size())).first;
    return found->second.span();
  }

  /// Returns one tensor's parameters. Throws configuration_error when `tensor` is not below shapes().size().
  [[nodiscard]] Values parameter(std::size_t tensor) { return view(parameters(), tensor); }
  [[nodiscard]] Values parameter(std::string_view name) { return parameter(index(name)); }
  /// Returns one tensor's gradients.
  [[nodiscard]] Values gradient(std::size_t tensor) { return view(gradients(), tensor); }
  [[nodiscard]] Values gradient(std::string_view name) { return gradient(index(name)); }

 protected:
  /// Returns the parameters without their initial values.
  [[nodiscard]] Values unprepared_parameters() noexcept { return parameters_.span(); }
  /// Throws configuration_error when two tensors have the same name or a name is empty. All values start as zeros.
  arena_in(std::vector<tensor_shape> shapes, std::function<Array(std::size_t)> allocate)
      : arena_base(std::move(shapes)),
        allocate_(std::move(allocate)),
        parameters_(allocate_(size())),
        gradients_(allocate_(head + size())) {}

 private:
  virtual void add_array(state_parts& parts, const std::string& name, Values array, state_kind kind,
                         rollback_policy change) = 0;
  void add_arrays(state_parts& parts, const arena_sharing& sharing) override {
    add_array(parts, "parameters", parameters(), sharing.parameters, sharing.change);
    for (auto& [name, array] : states_)
      add_array(parts, "optimizer " + name, array.span(), sharing.states, sharing.change);
  }
  [[nodiscard]] Values view(Values array, std::size_t tensor) const {
    const block at = place(tensor);
    return array.subspan(at.first, at.count);
  }

  std::function<Array(std::size_t)> allocate_;
  Array parameters_;
  Array gradients_;
  std::map<std::string, Array, std::less<>> states_;
};

/// A source of memory for an arena: a muster::context, or any class with the same `allocate<T>(n)`.
template <class Memory>
concept arena_memory = requires(Memory& memory, std::size_t size) {
  { memory.template allocate<float>(size) } -> std::same_as<buffer<float>>;
};

namespace detail {

// Returns the allocator of an arena's arrays. In mode ps no other rank reads them, so they are in pages of the rank's
// own, which take memory when they are first written.
template <arena_memory Memory>
std::function<buffer<float>(std::size_t)> allocator_in(Memory& memory) {
  if constexpr (requires { memory.configuration().value(setting::mode); }) {
    if (memory.configuration().value(setting::mode) == "ps")
      return [](std::size_t size) { return buffer<float>(size); };
  }
  return [&memory](std::size_t size) { return memory.template allocate<float>(size); };
}

}  // namespace detail

/// An arena in the memory of the host.
class arena final : public arena_in<std::span<float>, buffer<float>> {
 public:
  /// `shapes` are in the order of the layers, from the input to the loss. Throws configuration_error when two tensors
  /// have one name or a name is empty. All values start as zeros.
  template <arena_memory Memory>
  arena(Memory& memory, std::vector<tensor_shape> shapes) : arena_in(std::move(shapes), detail::allocator_in(memory)) {}

  /// Sets the initial values of a tensor: element k is `value(k)`. They are computed at the first access to the
  /// parameters. In mode ps each server computes the values of its own ranges, so a rank that only serves holds no
  /// parameters, and the workers send none: there the parameters are 0 from the training's construction until the first
  /// step, and writing them in between is an error of the run. `value` must give the same bits at every rank. It is
  /// called by threads of servers too, also after the arena's destruction, so it refers to nothing that changes or
  /// ends. Throws configuration_error for a tensor that is not float32, and in mode ps after the training's
  /// construction.
  void initialise(std::size_t tensor, std::function<float(std::size_t)> value);
  void initialise(std::string_view name, std::function<float(std::size_t)> value) {
    initialise(index(name), std::move(value));
  }
  /// Returns a function that adds the initial values of the elements from `first` on to zeros, and leaves all
  /// parameters 0. Returns an empty function if no tensor has initial values, or the parameters were accessed before.
  [[nodiscard]] std::function<void(std::size_t first, std::span<float> values)> take_initial();

  /// Sets all gradients to zero.
  void clear_gradients() noexcept;
  /// Returns the memory of the parameters and gradients to the system, at a rank that does not train. Views stay valid.
  /// The values are undefined afterwards.
  void discard() noexcept;

 private:
  void add_array(state_parts& parts, const std::string& name, std::span<float> array, state_kind kind,
                 rollback_policy change) override;
  void fill_initial() const override;

  struct initial_tensor {
    std::size_t first;        // the place in the arrays
    std::span<float> values;  // the parameters
    std::function<float(std::size_t)> value;
  };
  static void fill(const initial_tensor& tensor);

  std::vector<initial_tensor> initial_;
  bool is_taken_ = false;  // servers have the initial values
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
