// The parts of the module, and what they share.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <nanobind/nanobind.h>

namespace muster::python {

namespace nb = nanobind;

void define_errors(nb::module_& module);
void define_comm(nb::module_& module);
void define_data(nb::module_& module);
void define_elastic(nb::module_& module);
void define_tables(nb::module_& module);
void define_info(nb::module_& module);

/// The exception of a function in Python that C++ called, with one line of text. Thread safe.
class python_failure : public std::exception {
 public:
  /// Takes the exception; called with the interpreter's lock held.
  explicit python_failure(nb::python_error&& raised);
  [[nodiscard]] const char* what() const noexcept override { return text_->c_str(); }
  /// Sets the interpreter's error to the exception; called with the interpreter's lock held.
  void restore() const;
  /// Returns the exception object, with its traceback; called with the interpreter's lock held.
  [[nodiscard]] nb::object value() const;

 private:
  std::shared_ptr<nb::python_error> raised_;
  std::shared_ptr<const std::string> text_;
};

/// Raises KeyboardInterrupt, or another handler's exception, when a signal has arrived. Takes the interpreter's lock,
/// and does nothing in threads other than the main thread.
void check_signals();

/// An owner of a C++ object that must not run its destructor in a child of fork(): there its threads do not exist, and
/// its peers are the parent's. The child forgets the object, and its uses raise configuration_error.
class process_bound {
 public:
  process_bound();
  process_bound(const process_bound&) = delete;
  process_bound& operator=(const process_bound&) = delete;
  virtual ~process_bound();

  /// Forgets the object without destroying it.
  virtual void forget() noexcept = 0;
  /// Ends what the object still does, before the interpreter ends.
  virtual void close() noexcept = 0;

  /// Call `forget` for all objects of the process, in a child of fork(), or `close`, newest first.
  static void forget_all() noexcept;
  static void close_all() noexcept;
};

/// Throws configuration_error for an object of the given kind ("group") that a fork or `close` has ended.
[[noreturn]] void refuse_ended(const char* kind);

}  // namespace muster::python
