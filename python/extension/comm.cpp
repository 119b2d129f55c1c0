// Contexts, groups, works and collectives.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <muster/comm/context.hpp>
#include <muster/core/error.hpp>

#include "array_argument.hpp"
#include "comm_objects.hpp"
#include "module.hpp"

namespace muster::python {
namespace {

using muster::detail::typed_call;

/// Reads settings as a command line does: `words` as given, then `--name=value` for each keyword.
settings settings_from(nb::object words, const nb::kwargs& keywords) {
  std::vector<std::string> texts{"python"};
  const bool has_words = !words.is_none();
  if (has_words) {
    texts.clear();
    for (const nb::handle word : words) texts.push_back(nb::cast<std::string>(word));
  }
  const std::size_t own = texts.size();
  for (const auto& [name, value] : keywords) {
    std::string flag = nb::cast<std::string>(name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    const std::string text = nb::isinstance<nb::bool_>(value) ? (nb::cast<bool>(value) ? "on" : "off")
                                                              : nb::cast<std::string>(nb::str(value));
    texts.push_back("--" + flag + "=" + text);
  }
  std::vector<char*> arguments;
  for (auto& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  int count = static_cast<int>(texts.size());
  settings chosen(count, arguments.data());
  for (int k = 0; k < count; ++k) {
    const std::string left(arguments[static_cast<std::size_t>(k)]);
    for (std::size_t i = own; i < texts.size(); ++i) {
      if (left == texts[i]) throw unknown_argument(left.substr(0, left.find('=')));
    }
  }
  if (has_words) {
    nb::list kept;
    for (int k = 0; k < count; ++k) kept.append(nb::str(arguments[static_cast<std::size_t>(k)]));
    words[nb::slice(nb::none(), nb::none(), nb::none())] = kept;
  }
  return chosen;
}

collective_options options_from(double timeout, const std::string& algorithm) {
  collective_options options{.timeout = seconds(timeout)};
  for (const auto known : all_algorithms) {
    if (algorithm != to_string(known)) continue;
    options.algorithm = known;
    return options;
  }
  throw configuration_error("there is no algorithm '" + algorithm +
                            "' (docs/collectives.md lists them); choose one or auto");
}

/// The arguments of a collective as Python passes them. `out` is None for a call in place.
struct python_call {
  collective kind;
  nb::object in;
  nb::object out;
  std::string op{};
  int root = 0;
  double timeout = 0;
  std::string algorithm = "auto";
};

// Returns the call, and in `held` the references that keep its memory.
typed_call prepared(const python_call& asked, bool in_place, held_arrays& held) {
  typed_call call;
  call.kind = asked.kind;
  call.root = asked.root;
  call.options = options_from(asked.timeout, asked.algorithm);
  const bool reduces = !asked.op.empty();
  if (reduces) call.op = muster::detail::operation_named(asked.op);
  if (!asked.in.is_none()) held[0] = array_argument(asked.in, "the array", in_place);
  if (!asked.out.is_none()) held[1] = array_argument(asked.out, "out", true);
  call.in = held[0].elements();
  call.out = in_place ? call.in : held[1].elements();
  const bool is_complex = held[0].is_complex() || held[1].is_complex();
  if (is_complex && reduces && call.op != operation::sum && call.op != operation::mean) {
    throw configuration_error(std::string(to_string(call.kind)) + ": complex numbers have no operation " + asked.op +
                              " here (sum and mean are); reduce their parts");
  }
  return call;
}

nb::object blocking(group_object& ranks, const python_call& asked, bool in_place) {
  held_arrays held;
  const typed_call call = prepared(asked, in_place, held);
  {
    const nb::gil_scoped_release released;
    ranks.run(call);
  }
  return in_place ? asked.in : asked.out;
}

nb::object asynchronous(nb::handle self, const python_call& asked, bool in_place) {
  auto& ranks = nb::cast<group_object&>(self);
  auto made = std::make_unique<work_object>();
  const typed_call call = prepared(asked, in_place, made->arrays());
  made->begin(nb::borrow(self), ranks, call, in_place ? asked.in : asked.out);
  return nb::cast(made.release(), nb::rv_policy::take_ownership);
}

template <class Class>
void define_reducing(Class& cls) {
  using nb::arg;
  cls.def(
      "allreduce",
      [](group_object& self, nb::object data, const std::string& op, nb::object out, double timeout,
         const std::string& algorithm) {
        const bool in_place = out.is_none();
        return blocking(self, {collective::allreduce, data, out, op, 0, timeout, algorithm}, in_place);
      },
      arg("data"), arg("op") = "sum", arg("out") = nb::none(), arg("timeout") = 0.0, arg("algorithm") = "auto",
      "Combines all ranks' data element by element, with the same bits at every rank. In place unless `out` is "
      "given. Returns the array with the result.");
  cls.def(
      "allreduce_async",
      [](nb::handle self, nb::object data, const std::string& op, nb::object out, double timeout,
         const std::string& algorithm) {
        const bool in_place = out.is_none();
        return asynchronous(self, {collective::allreduce, data, out, op, 0, timeout, algorithm}, in_place);
      },
      arg("data"), arg("op") = "sum", arg("out") = nb::none(), arg("timeout") = 0.0, arg("algorithm") = "auto",
      "Starts an allreduce and returns its `work`, which keeps the arrays.");
  cls.def(
      "reduce",
      [](group_object& self, nb::object data, int root, const std::string& op, nb::object out, double timeout) {
        const bool in_place = out.is_none() && self.rank() == root;
        return blocking(self, {collective::reduce, data, out, op, root, timeout}, in_place);
      },
      arg("data"), arg("root") = 0, arg("op") = "sum", arg("out") = nb::none(), arg("timeout") = 0.0,
      "Combines all ranks' data at the root: into `out`, or in place.");
  cls.def(
      "reduce_scatter",
      [](group_object& self, nb::object data, nb::object out, const std::string& op, double timeout) {
        return blocking(self, {collective::reduce_scatter, data, out, op, 0, timeout}, false);
      },
      arg("data"), arg("out"), arg("op") = "sum", arg("timeout") = 0.0,
      "Combines all ranks' data; `out` becomes this rank's block of the result.");
  cls.def(
      "reduce_scatter_async",
      [](nb::handle self, nb::object data, nb::object out, const std::string& op, double timeout) {
        return asynchronous(self, {collective::reduce_scatter, data, out, op, 0, timeout}, false);
      },
      arg("data"), arg("out"), arg("op") = "sum", arg("timeout") = 0.0, "Starts a reduce-scatter.");
}

template <class Class>
void define_moving(Class& cls) {
  using nb::arg;
  cls.def(
      "broadcast",
      [](group_object& self, nb::object data, int root, double timeout) {
        return blocking(self, {collective::broadcast, data, nb::none(), "", root, timeout}, true);
      },
      arg("data"), arg("root") = 0, arg("timeout") = 0.0, "Copies the root's data to all ranks, in place.");
  cls.def(
      "broadcast_async",
      [](nb::handle self, nb::object data, int root, double timeout) {
        return asynchronous(self, {collective::broadcast, data, nb::none(), "", root, timeout}, true);
      },
      arg("data"), arg("root") = 0, arg("timeout") = 0.0, "Starts a broadcast.");
  cls.def(
      "allgather",
      [](group_object& self, nb::object data, nb::object out, double timeout) {
        return blocking(self, {collective::allgather, data, out, "", 0, timeout}, false);
      },
      arg("data"), arg("out"), arg("timeout") = 0.0,
      "Gathers all ranks' blocks at all ranks: `out` has the blocks in the order of ranks.");
  cls.def(
      "allgather_async",
      [](nb::handle self, nb::object data, nb::object out, double timeout) {
        return asynchronous(self, {collective::allgather, data, out, "", 0, timeout}, false);
      },
      arg("data"), arg("out"), arg("timeout") = 0.0, "Starts an allgather.");
  cls.def(
      "gather",
      [](group_object& self, nb::object data, nb::object out, int root, double timeout) {
        return blocking(self, {collective::gather, data, out, "", root, timeout}, false);
      },
      arg("data"), arg("out") = nb::none(), arg("root") = 0, arg("timeout") = 0.0,
      "Gathers all ranks' data at the root, which passes `out`.");
  cls.def(
      "scatter",
      [](group_object& self, nb::object out, nb::object data, int root, double timeout) {
        return blocking(self, {collective::scatter, data, out, "", root, timeout}, false);
      },
      arg("out"), arg("data") = nb::none(), arg("root") = 0, arg("timeout") = 0.0,
      "Divides the root's data among the ranks: `out` becomes this rank's piece.");
  cls.def(
      "all_to_all",
      [](group_object& self, nb::object data, nb::object out, double timeout) {
        return blocking(self, {collective::all_to_all, data, out, "", 0, timeout}, false);
      },
      arg("data"), arg("out"), arg("timeout") = 0.0, "Exchanges equal pieces between all ranks.");
  cls.def(
      "all_to_all_async",
      [](nb::handle self, nb::object data, nb::object out, double timeout) {
        return asynchronous(self, {collective::all_to_all, data, out, "", 0, timeout}, false);
      },
      arg("data"), arg("out"), arg("timeout") = 0.0, "Starts an all-to-all.");
  cls.def(
      "barrier",
      [](group_object& self, double timeout) {
        (void)blocking(self, {collective::barrier, nb::none(), nb::none(), "", 0, timeout}, false);
      },
      arg("timeout") = 0.0, "Waits until all ranks have called it.");
}

void define_group(nb::module_& module) {
  nb::class_<group_object> cls(
      module, "group", nb::dynamic_attr(), nb::is_weak_referenceable(),
      "Ranks that call collectives together, all in the same order.\n\n"
      "Arrays are anything with `__dlpack__` or the buffer protocol: numpy, PyTorch and JAX on "
      "the host. They are contiguous. The interpreter's lock is released while ranks wait.");
  cls.def_prop_ro(
      "rank", [](group_object& self) { return self.rank(); }, "This rank's number, from 0.");
  cls.def_prop_ro(
      "size", [](group_object& self) { return self.size(); }, "The number of ranks.");
  cls.def_prop_ro(
      "sequence", [](group_object& self) { return self.get().sequence(); },
      "The number of collectives started so far.");
  cls.def_prop_ro(
      "failed", [](group_object& self) { return self.get().failed(); }, "True if an error has ended the group.");
  cls.def_prop_ro(
      "transport", [](group_object& self) { return std::string(self.get().abilities().name); },
      "The name of the transport, such as \"shm\".");
  define_reducing(cls);
  define_moving(cls);
  cls.def(
      "split",
      [](nb::handle self, int color, int key) {
        auto& ranks = nb::cast<group_object&>(self);
        std::optional<group> made;
        {
          const nb::gil_scoped_release released;
          made.emplace(ranks.split(color, key));
        }
        return nb::cast(new group_object(std::move(*made), ranks, nb::borrow(self)), nb::rv_policy::take_ownership);
      },
      nb::arg("color"), nb::arg("key") = 0,
      "Splits the group: ranks with the same color form a group, numbered by key and then by rank. Collective.");
  cls.def(
      "abort",
      [](group_object& self, const std::string& reason, int status) {
        const nb::gil_scoped_release released;
        self.get().abort(reason, status);
      },
      nb::arg("reason"), nb::arg("status") = 1,
      "Ends the group: ranks that wait in it get a peer_failure with the reason. Does not wait.");
}

void define_work(nb::module_& module) {
  nb::class_<work_object>(module, "work", nb::is_weak_referenceable(),
                          "An outstanding collective. It keeps its arrays, which the caller neither reads nor writes "
                          "until it is done.")
      .def("wait", &work_object::wait, nb::call_guard<nb::gil_scoped_release>(), nb::arg("timeout") = nb::none(),
           "Waits until the collective is done, or for `timeout` seconds; returns True when it is done. Raises its "
           "error.")
      .def("test", &work_object::test, nb::call_guard<nb::gil_scoped_release>(),
           "Makes progress without waiting; returns True when the collective is done. Raises its error.")
      .def_prop_ro(
          "result", [](work_object& self) { return self.result(); }, "The array with the result.");
}

void define_context(nb::module_& module) {
  nb::class_<context_object>(
      module, "context", nb::dynamic_attr(), nb::is_weak_referenceable(),
      "This process's place in the job: finds its rank by the launcher's variables and connects it to the other "
      "ranks.\n\n"
      "`argv`, such as sys.argv, may contain muster's flags, which are removed from it. Keywords are settings: "
      "`context(transport=\"tcp\", timeout=60)`. Without either the environment (MUSTER_*) decides.")
      .def(
          "__init__",
          [](context_object* self, nb::object argv, const nb::kwargs& keywords) {
            settings chosen = settings_from(std::move(argv), keywords);
            new (self) context_object(std::move(chosen));
          },
          nb::arg("argv") = nb::none(), nb::arg("settings"))
      .def_prop_ro(
          "world", [](nb::handle self) { return nb::cast<context_object&>(self).world(self); },
          "The group with all ranks. With ranks as threads it exists inside `run` alone.")
      .def_prop_ro(
          "ranks", [](context_object& self) { return self.get().ranks(); }, "The number of ranks.")
      .def_prop_ro(
          "transport", [](context_object& self) { return self.get().transport_name(); },
          "The name of the transport in use.")
      .def_prop_ro(
          "why", [](context_object& self) { return self.get().why(); },
          "The reason for the choice of the transport, one line.")
      .def_prop_ro(
          "elastic", [](context_object& self) { return self.get().elastic(); },
          "True if ranks may die and join (`elastic=\"on\"`, which muster-launch sets).")
      .def("run", &context_object::run, nb::arg("function"),
           "Calls `function(world)` as every rank of this process: once, or on N threads with `ranks=N`.")
      .def(
          "close", [](context_object& self) { self.close(); }, nb::call_guard<nb::gil_scoped_release>(),
          "Leaves the job. Its groups cannot be used any more.");
}

}  // namespace

void define_comm(nb::module_& module) {
  define_work(module);
  define_group(module);
  define_context(module);
  module.def("_launch", [] {
    const launch_env found = detect_launch();
    return nb::make_tuple(found.rank, found.size, found.local_rank, std::string(to_string(found.kind)));
  });
}

}  // namespace muster::python
