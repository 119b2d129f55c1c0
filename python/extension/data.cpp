// Sources and loaders.
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <muster/core/error.hpp>
#include <muster/data/open.hpp>

#include "data_objects.hpp"
#include "module.hpp"

namespace muster::python {
namespace {

loader_object* with_step(loader_object& before, const pipeline_step& step) {
  const batch_shard shard = before.shard;
  auto* const made = new loader_object(step.add(before.take()));
  made->shard = shard;
  return made;
}

nb::dict state_of(loader_object& self) {
  const cursor& at = self.get().cursor();
  nb::dict state;
  state["version"] = at.version;
  state["order"] = static_cast<std::uint32_t>(at.order);
  state["dataset"] = at.dataset;
  state["size"] = at.size;
  state["seed"] = at.seed;
  state["block"] = at.block;
  state["window"] = at.window;
  state["drop_last"] = at.drop_last;
  state["per_rank"] = at.per_rank;
  state["batch"] = at.batch;
  state["epoch"] = at.epoch;
  state["position"] = at.position;
  state["joined"] = at.joined;
  state["joined_last"] = at.joined_last;
  state["joined_used"] = at.joined_used;
  return state;
}

template <class T>
void read_entry(const nb::dict& state, const char* key, T& value) {
  if (!state.contains(key)) {
    throw configuration_error(std::string("the state of the loader has no '") + key +
                              "' (state_dict() writes it); pass a result of state_dict()");
  }
  if constexpr (std::is_enum_v<T>)
    value = static_cast<T>(nb::cast<std::underlying_type_t<T>>(state[key]));
  else
    value = nb::cast<T>(state[key]);
}

cursor cursor_from(const nb::dict& state) {
  cursor target;
  read_entry(state, "version", target.version);
  read_entry(state, "order", target.order);
  read_entry(state, "dataset", target.dataset);
  read_entry(state, "size", target.size);
  read_entry(state, "seed", target.seed);
  read_entry(state, "block", target.block);
  read_entry(state, "window", target.window);
  read_entry(state, "drop_last", target.drop_last);
  read_entry(state, "per_rank", target.per_rank);
  read_entry(state, "batch", target.batch);
  read_entry(state, "epoch", target.epoch);
  read_entry(state, "position", target.position);
  read_entry(state, "joined", target.joined);
  read_entry(state, "joined_last", target.joined_last);
  read_entry(state, "joined_used", target.joined_used);
  return target;
}

nb::object next_batch(loader_object& self, std::optional<int> rank, std::optional<int> world) {
  batch_shard part = self.shard;
  if (rank) part.rank = *rank;
  if (world) part.world = *world;
  std::shared_ptr<batch_memory> found;
  {
    const nb::gil_scoped_release released;
    found = self.next(part);
  }
  return found ? nb::cast(batch_object{std::move(found)}) : nb::none();
}

nb::object iterate(loader_object& self) {
  std::shared_ptr<batch_memory> found;
  {
    const nb::gil_scoped_release released;
    found = self.next(self.shard);
    if (found)
      self.commit();
    else
      self.next_epoch();
  }
  if (!found) throw nb::stop_iteration();
  return nb::cast(batch_object{std::move(found)});
}

void define_loader(nb::module_& module) {
  using nb::arg;
  nb::class_<data::any_record_source>(module, "source", "Records that can be read in any order, see `open`.")
      .def("__len__", [](data::any_record_source& self) { return self.size(); })
      .def_prop_ro(
          "name", [](data::any_record_source& self) { return std::string(self.name()); },
          "The specification from which it was opened.")
      .def_prop_ro(
          "schema", [](data::any_record_source& self) { return to_string(self.schema()); },
          "A description of its records.")
      .def_prop_ro(
          "classes", [](data::any_record_source& self) { return self.schema().classes; },
          "The names of the classes of the first label; empty if unknown.")
      .def(
          "__or__", [](data::any_record_source& self, const shuffle& step) { return self | step; }, nb::is_operator())
      .def(
          "__or__", [](data::any_record_source& self, const batch& step) { return new loader_object(self | step); },
          nb::is_operator(), nb::rv_policy::take_ownership);
  nb::class_<shuffled_source>(module, "shuffled_source", "A source with an order; a `batch` follows.")
      .def(
          "__or__", [](shuffled_source& self, const batch& step) { return new loader_object(self | step); },
          nb::is_operator(), nb::rv_policy::take_ownership);
  module.def(
      "open", [](const std::string& specification) { return open_source(specification); }, arg("specification"),
      nb::call_guard<nb::gil_scoped_release>(),
      "Opens a source, such as \"csv:FILE\", \"cifar10:FOLDER\" or \"libsvm:FILE?features=123\" (docs/sources.md "
      "lists all).");
  nb::class_<loader_object>(
      module, "loader", nb::is_weak_referenceable(),
      "Divides samples into batches, epoch after epoch: `open(...) | shuffle(1) | batch(256) | prefetch(4)`.\n\n"
      "`for batch in loader` yields this rank's parts of one epoch and moves the loader past each. A loop that ends "
      "early is continued by the next one. `next` and `commit` do the same in two steps.")
      .def("__or__", &with_step, nb::is_operator(), nb::rv_policy::take_ownership)
      .def("__iter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__next__", &iterate)
      .def("__len__", [](loader_object& self) { return self.get().steps_per_epoch(); })
      .def("next", &next_batch, arg("rank") = nb::none(), arg("world") = nb::none(),
           "Returns a rank's part of the batch at the cursor, or None at the end of the epoch. Does not move: without "
           "`commit` it returns the same batch again.")
      .def("commit", &loader_object::commit, nb::call_guard<nb::gil_scoped_release>(),
           "Moves past the batch at the cursor.")
      .def("next_epoch", &loader_object::next_epoch, nb::call_guard<nb::gil_scoped_release>(),
           "Moves to the start of the next epoch.")
      .def("state_dict", &state_of, "Returns the position, for `load_state_dict` of a loader of the same pipeline.")
      .def(
          "load_state_dict", [](loader_object& self, const nb::dict& state) { self.open(cursor_from(state)); },
          arg("state"),
          "Moves to a position. Raises configuration_error, and does not move, for a position of other data, seed or "
          "batch size.")
      .def_prop_rw(
          "rank", [](loader_object& self) { return self.shard.rank; },
          [](loader_object& self, int rank) { self.shard.rank = rank; },
          "The rank for which it reads; by default the launcher's.")
      .def_prop_rw(
          "world", [](loader_object& self) { return self.shard.world; },
          [](loader_object& self, int world) { self.shard.world = world; },
          "The number of ranks that share each batch; by default the launcher's.")
      .def_prop_ro(
          "epoch", [](loader_object& self) { return self.get().epoch(); }, "The epoch, from 0.")
      .def_prop_ro(
          "position", [](loader_object& self) { return self.get().step(); },
          "The number of batches of the epoch that are used.")
      .def_prop_ro(
          "schema", [](loader_object& self) { return to_string(self.get().schema()); },
          "A description of the records after all steps.")
      .def_prop_ro(
          "classes", [](loader_object& self) { return self.get().schema().classes; },
          "The names of the classes of the first label; empty if unknown.")
      .def_prop_ro(
          "bad_records", [](loader_object& self) { return self.get().bad_records().count(); },
          "The number of different bad records that were left out.");
}

}  // namespace

void define_data(nb::module_& module) {
  define_batch(module);
  define_steps(module);
  define_loader(module);
}

}  // namespace muster::python
