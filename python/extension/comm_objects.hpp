// The owners of contexts, groups and works in Python.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include <muster/comm/context.hpp>
#include <muster/comm/work.hpp>

#include "array_argument.hpp"
#include "module.hpp"

namespace muster::python {

/// The arrays of a collective: input and output.
using held_arrays = std::array<array_argument, 2>;

/// A group in Python: its own, or a context's world. Calls of several threads take turns.
class group_object final : public process_bound {
 public:
  /// Owns a group that was made from the group of `parent`.
  group_object(group&& own, const group_object& from, nb::object parent)
      : own_(std::make_unique<group>(std::move(own))), ranks_(own_.get()), is_open_(from.is_open_), parent_(parent) {}
  /// Refers to a group of `parent`, which exists as long as `is_open` is true.
  group_object(group& ranks, std::shared_ptr<const std::atomic<bool>> is_open, nb::object parent)
      : ranks_(&ranks), is_open_(std::move(is_open)), parent_(parent) {}
  ~group_object() override;

  [[nodiscard]] group& get() {
    if (ranks_ == nullptr || !*is_open_) refuse_ended("group");
    return *ranks_;
  }
  [[nodiscard]] int rank() { return get().rank(); }
  [[nodiscard]] int size() { return get().size(); }
  /// Run a collective, without the interpreter's lock. A signal's exception in Python ends the group.
  void run(const muster::detail::typed_call& call);
  [[nodiscard]] work start(const muster::detail::typed_call& call);
  [[nodiscard]] group split(int color, int key);
  /// Waits for a work, or for a limit in seconds; returns true when it is done.
  bool wait(work& outstanding, std::optional<double> limit);
  bool test(work& outstanding);

  void forget() noexcept override;
  void close() noexcept override;

 private:
  void interrupt();

  std::unique_ptr<group> own_;
  group* ranks_ = nullptr;
  std::shared_ptr<const std::atomic<bool>> is_open_;  // false when the context has ended
  std::mutex mutex_;
  nb::object parent_;
};

/// A work in Python, with the arrays and the group that it uses.
class work_object final : public process_bound {
 public:
  work_object() = default;
  ~work_object() override;

  [[nodiscard]] held_arrays& arrays() noexcept { return arrays_; }
  [[nodiscard]] nb::object result() const { return result_; }
  /// Starts the call. Takes the interpreter's lock off meanwhile.
  void begin(nb::object parent, group_object& ranks, const muster::detail::typed_call& call, nb::object result);
  bool wait(std::optional<double> limit);
  bool test();

  void forget() noexcept override;
  void close() noexcept override;

 private:
  held_arrays arrays_;
  nb::object result_;
  nb::object parent_;
  group_object* ranks_ = nullptr;
  std::unique_ptr<work> work_;
};

/// A context in Python.
class context_object final : public process_bound {
 public:
  /// Connects the ranks, without the interpreter's lock.
  explicit context_object(settings&& chosen);
  ~context_object() override;

  [[nodiscard]] context& get() {
    if (!context_) refuse_ended("context");
    return *context_;
  }
  /// Returns the world as a Python object, the same at each call; `self` is the context's.
  [[nodiscard]] nb::object world(nb::handle self);
  /// Calls the function as every rank of this process.
  void run(nb::object function);

  void forget() noexcept override;
  void close() noexcept override;

 private:
  std::unique_ptr<context> context_;
  std::shared_ptr<std::atomic<bool>> is_open_ = std::make_shared<std::atomic<bool>>(true);
  nb::object world_;  // a weak reference: the world refers to the context
};

}  // namespace muster::python
