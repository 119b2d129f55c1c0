// Tables of a parameter server.
#include <optional>
#include <string>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <muster/core/error.hpp>
#include <muster/ps/job.hpp>

#include "array_argument.hpp"
#include "comm_objects.hpp"
#include "module.hpp"

namespace muster::python {
namespace {

std::span<float> floats_of(const array_argument& array, const char* name) {
  if (array.elements().type != dtype::float32) {
    throw configuration_error(std::string(name) + " has elements of " + std::string(to_string(array.elements().type)) +
                              " (tables have float32); convert it");
  }
  return {reinterpret_cast<float*>(array.elements().data), array.elements().count};
}

std::span<const std::uint64_t> keys_of(const array_argument& array) {
  const dtype type = array.elements().type;
  if (type != dtype::uint64 && type != dtype::int64)
    throw configuration_error("the keys have elements of " + std::string(to_string(type)) +
                              " (keys have 64 bits); pass uint64 or int64");
  return {reinterpret_cast<const std::uint64_t*>(array.elements().data), array.elements().count};
}

template <class T>
void read(const nb::dict& from, const char* key, T& value) {
  if (from.contains(key)) value = nb::cast<T>(from[key]);
}

ps::table_spec table_from(const std::string& name, const nb::dict& words) {
  ps::table_spec table{.name = name};
  for (const auto& [key, value] : words) {
    const auto word = nb::cast<std::string>(key);
    const std::vector<std::string> known{"size", "width", "update", "initial", "ranges", "most_rows", "most_age"};
    if (std::find(known.begin(), known.end(), word) == known.end())
      throw configuration_error("the table '" + name + "' has no option '" + word +
                                "' (size, width, update, initial, ranges, most_rows and most_age are); correct it");
  }
  read(words, "size", table.size);
  read(words, "width", table.width);
  read(words, "update", table.update);
  read(words, "initial", table.initial);
  read(words, "ranges", table.ranges);
  read(words, "most_rows", table.most_rows);
  read(words, "most_age", table.most_age);
  return table;
}

/// A rank's part in a job with a parameter server.
class tables_object final : public process_bound {
 public:
  tables_object(nb::object parent, const nb::dict& tables) : parent_(parent) {
    auto& place = nb::cast<context_object&>(parent_);
    std::vector<ps::table_spec> specs;
    for (const auto& [name, words] : tables)
      specs.push_back(table_from(nb::cast<std::string>(name), nb::cast<nb::dict>(words)));
    const nb::gil_scoped_release released;
    for (const auto& spec : specs) names_.push_back(spec.name);
    auto& context = place.get();
    job_ = std::make_unique<ps::job>(context, context.world(),
                                     ps::chosen_options(context.configuration(), std::move(specs)));
  }
  ~tables_object() override { close(); }

  [[nodiscard]] ps::job& get() {
    if (!job_) refuse_ended("job of tables");
    return *job_;
  }
  [[nodiscard]] ps::client& client() {
    if (get().is_server()) {
      throw configuration_error("this rank is a server (it holds tables and has no access to them); call serve()");
    }
    return get().tables();
  }
  [[nodiscard]] std::uint32_t number_of(const std::string& name) const {
    for (std::size_t k = 0; k < names_.size(); ++k) {
      if (names_[k] == name) return static_cast<std::uint32_t>(k);
    }
    throw configuration_error("there is no table '" + name + "'; it is a key of the constructor's argument");
  }

  void forget() noexcept override { (void)job_.release(); }
  void close() noexcept override {
    PyThreadState* const state = PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
    job_.reset();
    if (state != nullptr) PyEval_RestoreThread(state);
  }

 private:
  nb::object parent_;
  std::vector<std::string> names_;
  std::unique_ptr<ps::job> job_;
};

void push(tables_object& self, const std::string& table, nb::object values, nb::object keys, std::size_t offset,
          float scale) {
  const std::uint32_t number = self.number_of(table);
  const array_argument rows(values, "the values", false);
  const auto floats = floats_of(rows, "the values");
  const array_argument named = keys.is_none() ? array_argument() : array_argument(keys, "the keys", false);
  const nb::gil_scoped_release released;
  if (named.elements().data == nullptr)
    self.client().push(number, floats, {.offset = offset, .scale = scale});
  else
    self.client().push(number, keys_of(named), floats, {.scale = scale});
}

nb::object pull(tables_object& self, const std::string& table, nb::object out, nb::object keys, std::size_t offset) {
  const std::uint32_t number = self.number_of(table);
  const array_argument rows(out, "out", true);
  const auto floats = floats_of(rows, "out");
  const array_argument named = keys.is_none() ? array_argument() : array_argument(keys, "the keys", false);
  {
    const nb::gil_scoped_release released;
    if (named.elements().data == nullptr)
      self.client().pull(number, floats, offset);
    else
      self.client().pull(number, keys_of(named), floats);
  }
  return out;
}

}  // namespace

void define_tables(nb::module_& module) {
  using nb::arg;
  using released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<tables_object>(module, "tables", nb::is_weak_referenceable(),
                            "Tables of a parameter server: the last ranks of the context are servers (`servers=N` of "
                            "the context), the others "
                            "push and pull at their own pace.\n\n"
                            "`tables(context, {\"weights\": {\"size\": 10, \"update\": \"sgd:0.1\"}})`: a dense table "
                            "has a size; a table without "
                            "one has rows of `width` floats under 64-bit keys. Collective.")
      .def(nb::init<nb::object, const nb::dict&>(), arg("context"), arg("tables"))
      .def_prop_ro(
          "is_server", [](tables_object& self) { return self.get().is_server(); },
          "True if this rank is a server and no worker: it calls `serve`.")
      .def_prop_ro(
          "workers", [](tables_object& self) { return self.get().workers(); }, "The number of workers.")
      .def_prop_ro(
          "worker", [](tables_object& self) { return self.get().worker(); }, "This worker's number, from 0.")
      .def(
          "serve", [](tables_object& self) { self.get().serve(); }, released(),
          "Serves until the last worker has finished.")
      .def("push", &push, arg("table"), arg("values"), arg("keys") = nb::none(), arg("offset") = 0, arg("scale") = 1.0f,
           "Applies values to a table, once, by its update function: elements from `offset` on, or rows under `keys`.")
      .def("pull", &pull, arg("table"), arg("out"), arg("keys") = nb::none(), arg("offset") = 0,
           "Reads elements from `offset` on, or the rows under `keys`, into `out`, and returns it.")
      .def(
          "assign",
          [](tables_object& self, const std::string& table, nb::object values, std::size_t offset) {
            const std::uint32_t number = self.number_of(table);
            const array_argument rows(values, "the values", false);
            const auto floats = floats_of(rows, "the values");
            const nb::gil_scoped_release unlocked;
            self.client().assign(number, floats, offset);
          },
          arg("table"), arg("values"), arg("offset") = 0,
          "Sets elements of a dense table, whatever its update function.")
      .def(
          "next_clock", [](tables_object& self) { self.client().next_clock(); }, released(),
          "Ends a clock of this worker.")
      .def(
          "flush", [](tables_object& self) { self.client().flush(); }, released(),
          "Waits until all of this worker's pushes are applied.")
      .def(
          "finish", [](tables_object& self) { self.get().finish(); }, released(),
          "Applies this worker's pushes and leaves; the last call of a worker.");
}

}  // namespace muster::python
