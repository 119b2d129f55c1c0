// The translation of C++ exceptions into the classes of muster/errors.py.
#include <optional>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <muster/core/error.hpp>
#include <muster/elastic/departure.hpp>

#include "module.hpp"

namespace muster::python {
namespace {

nb::object class_named(const char* name) { return nb::module_::import_("muster.errors").attr(name); }

// Sets the interpreter's error to an object of the class, with the exception of a nested Python function as its cause.
void raise(const nb::object& raised, const std::exception& original) {
  try {
    std::rethrow_if_nested(original);
  } catch (const python_failure& cause) {
    nb::object value = cause.value();
    PyException_SetCause(raised.ptr(), value.release().ptr());
  } catch (...) {  // the text has it
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
}

nb::object made(const char* name, const error& from) {
  nb::object raised = class_named(name)(nb::str(from.what()));
  raised.attr("exit_status") = from.exit_status();
  return raised;
}

constexpr const char* departure_name(elastic::exit_reason why) {
  switch (why) {
    case elastic::exit_reason::left:
      return "left";
    case elastic::exit_reason::fenced:
      return "fenced";
    case elastic::exit_reason::too_few:
      return "too_few";
    case elastic::exit_reason::no_majority:
      return "no_majority";
    case elastic::exit_reason::never_started:
      return "never_started";
    case elastic::exit_reason::state_lost:
      return "state_lost";
    case elastic::exit_reason::too_slow:
      return "too_slow";
  }
  return "unknown";
}

template <class Error>
void set_place(nb::object& raised, const Error& from) {
  const auto& place = from.where();
  raised.attr("file") = place.file;
  raised.attr("record") = place.line;
  raised.attr("column") = place.column;
  raised.attr("offset") = nb::cast(place.offset);
  raised.attr("problem") = from.problem();
}

void translate(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const python_failure& e) {
    e.restore();
  } catch (const elastic::departure& e) {
    auto raised = made("departure", e);
    raised.attr("why") = departure_name(e.why());
    raised.attr("should_save") = e.should_save();
    raise(raised, e);
  } catch (const data_error& e) {
    auto raised = made("data_error", e);
    set_place(raised, e);
    raise(raised, e);
  } catch (const source_error& e) {
    auto raised = made("source_error", e);
    set_place(raised, e);
    raise(raised, e);
  } catch (const configuration_error& e) {
    raise(made("configuration_error", e), e);
  } catch (const peer_failure& e) {
    auto raised = made("peer_failure", e);
    raised.attr("ranks") = nb::cast(e.ranks());
    raise(raised, e);
  } catch (const timeout_error& e) {
    auto raised = made("timeout_error", e);
    raised.attr("operation") = e.operation();
    raised.attr("sequence") = e.sequence();
    raised.attr("missing") = nb::cast(e.missing());
    raise(raised, e);
  } catch (const mismatch_error& e) {
    raise(made("mismatch_error", e), e);
  } catch (const training_error& e) {
    raise(made("training_error", e), e);
  } catch (const error& e) {
    raise(made("error", e), e);
  }
}

}  // namespace

void define_errors(nb::module_& /*module*/) { nb::register_exception_translator(translate); }

}  // namespace muster::python
