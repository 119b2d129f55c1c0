// The module of the backend in Python.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <muster/core/error.hpp>

#include "backend.hpp"

namespace muster::torch_backend {
namespace {

namespace py = pybind11;

py::object class_named(const char* name) { return py::module_::import("muster.errors").attr(name); }

void raise(const char* name, const muster::error& failure,
           const std::vector<std::pair<const char*, py::object>>& more) {
  const py::object type = class_named(name);
  const py::object raised = type(failure.what());
  raised.attr("exit_status") = failure.exit_status();
  for (const auto& [key, value] : more) raised.attr(key) = value;
  PyErr_SetObject(type.ptr(), raised.ptr());
}

// Translates muster's errors in all of torch's functions, which share their translators with other modules.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const muster::configuration_error& e) {
    raise("configuration_error", e, {});
  } catch (const muster::peer_failure& e) {
    raise("peer_failure", e, {{"ranks", py::cast(e.ranks())}});
  } catch (const muster::timeout_error& e) {
    raise("timeout_error", e,
          {{"operation", py::cast(e.operation())},
           {"sequence", py::cast(e.sequence())},
           {"missing", py::cast(e.missing())}});
  } catch (const muster::mismatch_error& e) {
    raise("mismatch_error", e, {});
  } catch (const muster::error& e) {
    raise("error", e, {});
  }
}

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         std::chrono::milliseconds timeout, bool enable_reconfigure,
                                         const std::string& group_name, const std::vector<std::int64_t>& global_ranks,
                                         const std::string& transport) {
  auto options = c10::make_intrusive<backend_options>(timeout);
  options->transport = transport;
  options->group_name = group_name;
  for (const auto rank_in_world : global_ranks)
    options->global_ranks_in_group.push_back(static_cast<std::uint64_t>(rank_in_world));
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  options->enable_reconfigure = enable_reconfigure;
#else
  if (enable_reconfigure)
    throw muster::configuration_error("this torch has no reconfigure interface; use torch 2.14 or later");
#endif
  return c10::static_intrusive_pointer_cast<c10d::Backend>(
      c10::make_intrusive<backend>(store, rank, size, std::move(options)));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::register_exception_translator(translate);
  py::class_<backend_options, c10d::Backend::Options, c10::intrusive_ptr<backend_options>>(
      module, "Options", "Options of a process group: `transport` is \"auto\", \"shm\", \"tcp\" or \"hierarchical\".")
      .def(py::init<std::chrono::milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout)
      .def_readwrite("transport", &backend_options::transport);
  py::class_<backend, c10d::Backend, c10::intrusive_ptr<backend>>(module, "ProcessGroupMuster",
                                                                  "The backend \"muster\" of a process group.")
      .def_property_readonly("transport", &backend::transport_name);
  module.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
             py::arg("enable_reconfigure") = false, py::arg("group_name") = "",
             py::arg("global_ranks") = std::vector<std::int64_t>(), py::arg("transport") = "auto",
             py::call_guard<py::gil_scoped_release>(), "Connects the ranks of a process group. Collective.");
  module.def("stop_progress", &stop_progress, py::call_guard<py::gil_scoped_release>());
  module.def("forget_progress", &forget_progress);
}

}  // namespace muster::torch_backend
