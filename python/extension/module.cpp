// The module muster._extension: the whole of muster's interface in Python that is C++.
#include "module.hpp"

#include <algorithm>
#include <vector>

#include <nanobind/stl/string.h>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>

namespace muster::python {
namespace {

std::mutex registry_mutex;
std::vector<process_bound*>& registry() {
  static auto* const objects = new std::vector<process_bound*>();  // outlives the objects of the interpreter
  return *objects;
}
bool is_forked = false;

std::string one_line(const nb::python_error& raised) {
  std::string text = nb::cast<std::string>(raised.type().attr("__name__"));
  const std::string said = nb::cast<std::string>(nb::str(raised.value()));
  if (!said.empty()) text += ": " + said;
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

python_failure::python_failure(nb::python_error&& raised)
    : raised_(std::make_shared<nb::python_error>(std::move(raised))),
      text_(std::make_shared<const std::string>(one_line(*raised_))) {}

void python_failure::restore() const {
  nb::python_error copy(*raised_);
  copy.restore();
}

nb::object python_failure::value() const {
  nb::object held = nb::borrow(raised_->value());
  if (raised_->traceback().is_valid()) PyException_SetTraceback(held.ptr(), raised_->traceback().ptr());
  return held;
}

void check_signals() {
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

process_bound::process_bound() {
  const std::lock_guard lock(registry_mutex);
  registry().push_back(this);
}

process_bound::~process_bound() {
  const std::lock_guard lock(registry_mutex);
  std::erase(registry(), this);
}

void process_bound::forget_all() noexcept {
  is_forked = true;
  for (auto* const object : registry()) object->forget();
}

void process_bound::close_all() noexcept {
  std::vector<process_bound*> objects;
  {
    const std::lock_guard lock(registry_mutex);
    objects.assign(registry().rbegin(), registry().rend());
  }
  for (auto* const object : objects) object->close();
}

void refuse_ended(const char* kind) {
  const std::string name(kind);
  if (is_forked) {
    throw configuration_error("this " + name +
                              " belongs to the parent process (fork() copied it, but neither its threads nor its "
                              "place among the ranks); use spawn, or make it after the fork");
  }
  throw configuration_error("this " + name + " has been closed (its context has ended); make a new one");
}

}  // namespace muster::python

NB_MODULE(_extension, module) {
  using namespace muster::python;
  module.doc() = "muster: data, collectives and elastic training. Import the package muster instead.";
  nanobind::set_leak_warnings(false);  // an exception at the top level keeps its frames' objects until the end
  module.attr("__version__") = muster::library_version();
  define_errors(module);
  define_comm(module);
  define_data(module);
  define_elastic(module);
  define_tables(module);
  define_info(module);
  module.def("_forget_all", [] { process_bound::forget_all(); });
  module.def(
      "_close_all", [] { process_bound::close_all(); }, nanobind::call_guard<nanobind::gil_scoped_release>());
}
