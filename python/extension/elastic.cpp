// Sessions: steps that commit or did not happen, over fixed and over elastic ranks, and their checkpoints.
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <muster/core/error.hpp>
#include <muster/elastic/elastic.hpp>
#include <muster/elastic/followed_data.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/checkpoint.hpp>

#include "array_argument.hpp"
#include "comm_objects.hpp"
#include "data_objects.hpp"
#include "module.hpp"

namespace muster::python {
namespace {

/// An owner of state for arrays and objects of Python.
class python_parts {
 public:
  void add_array(const std::string& name, nb::handle array, state_kind kind) {
    arrays_.push_back({name, array_argument(array, ("the array '" + name + "'").c_str(), true), kind});
  }
  void add_object(const std::string& name, nb::object object) { objects_.push_back({name, std::move(object)}); }

  void describe(state_parts& parts) {
    for (auto& [name, array, kind] : arrays_)
      parts.add(name, std::span(array.elements().data, array.bytes()), kind, rollback_policy::restore_on_failure);
    for (auto& [name, object] : objects_) {
      const nb::handle held = object;
      parts.add(
          name, state_kind::replicated, [held] { return saved(held); },
          [held](std::span<const std::byte> bytes) { load(held, bytes); }, rollback_policy::restore_on_failure);
    }
  }

 private:
  struct array_part {
    std::string name;
    array_argument array;
    state_kind kind;
  };
  struct object_part {
    std::string name;
    nb::object object;
  };

  static std::vector<std::byte> saved(nb::handle object) {
    const nb::gil_scoped_acquire held;
    try {
      const nb::bytes text =
          nb::cast<nb::bytes>(nb::module_::import_("pickle").attr("dumps")(object.attr("state_dict")()));
      const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
      return {begin, begin + text.size()};
    } catch (nb::python_error& raised) {
      throw python_failure(std::move(raised));
    }
  }

  static void load(nb::handle object, std::span<const std::byte> bytes) {
    const nb::gil_scoped_acquire held;
    try {
      const nb::bytes text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      object.attr("load_state_dict")(nb::module_::import_("pickle").attr("loads")(text));
    } catch (nb::python_error& raised) {
      throw python_failure(std::move(raised));
    }
  }

  std::vector<array_part> arrays_;
  std::vector<object_part> objects_;
};

class session_object;

/// A step in Python: a context manager that commits it.
struct step_object {
  nb::object owner;  // the session
  std::uint64_t number;
  std::uint64_t epoch;
  std::uint64_t generation;
  int rank;
  int size;
  nb::object ranks;
};

/// A session in Python, with its state and its run.
class session_object final : public process_bound {
 public:
  session_object(nb::object parent, const nb::dict& arrays, std::optional<nb::object> data, const nb::dict& objects,
                 const nb::dict& local, std::optional<std::string> folder, std::size_t keep);
  ~session_object() override { close(); }

  bool run(const run_limits& limits);
  bool goes_on();
  nb::object step(nb::object self);
  bool end_step(nb::handle raised);
  bool load();
  void save(double metric);
  [[nodiscard]] std::uint64_t steps() { return get().state.steps(); }
  [[nodiscard]] std::uint64_t digest() { return get().state.digest(); }

  void forget() noexcept override { (void)parts_.release(); }
  void close() noexcept override;

 private:
  struct parts {
    template <class... Owners>
    parts(muster::session&& made, Owners&&... owners) : session(std::move(made)), state(owners...) {}
    muster::session session;
    muster::state state;
    std::optional<step_run> run;
    muster::step* current = nullptr;
    std::optional<checkpoint> store;
  };
  [[nodiscard]] parts& get() {
    if (!parts_) refuse_ended("session");
    return *parts_;
  }

  nb::object parent_, loader_;
  python_parts values_;
  std::optional<followed_data> followed_;
  std::optional<sampler_handle> cursor_;
  std::unique_ptr<parts> parts_;
  std::shared_ptr<std::atomic<bool>> step_is_open_;
};

muster::session open_session(context& parent) {
  if (parent.elastic()) return elastic::session(parent);
  return fixed_session(parent);
}

session_object::session_object(nb::object parent, const nb::dict& arrays, std::optional<nb::object> data,
                               const nb::dict& objects, const nb::dict& local, std::optional<std::string> folder,
                               std::size_t keep)
    : parent_(parent) {
  auto& place = nb::cast<context_object&>(parent_);
  for (const auto& [name, array] : arrays)
    values_.add_array(nb::cast<std::string>(name), array, state_kind::replicated);
  for (const auto& [name, array] : local) values_.add_array(nb::cast<std::string>(name), array, state_kind::rank_local);
  for (const auto& [name, object] : objects) values_.add_object(nb::cast<std::string>(name), nb::borrow(object));
  if (data && !data->is_none()) {
    loader_ = *data;
    loader& own = nb::cast<loader_object&>(loader_).get();
    followed_.emplace(own);
    cursor_.emplace(own.cursor());
  }
  const nb::gil_scoped_release released;
  auto made = open_session(place.get());
  if (cursor_)
    parts_ = std::make_unique<parts>(std::move(made), values_, *followed_, *cursor_);
  else
    parts_ = std::make_unique<parts>(std::move(made), values_);
  if (folder) parts_->store.emplace(*folder, checkpoint_options{.keep = keep});
}

bool session_object::run(const run_limits& limits) {
  auto& own = get();
  own.current = nullptr;
  own.run.reset();
  own.run.emplace(own.session, own.state, limits);
  own.current = own.run->next();
  return own.run->has_run();
}

bool session_object::goes_on() {
  auto& own = get();
  if (!own.run) {
    throw configuration_error("the session has no run (goes_on() belongs to one); call run(epochs=N) or run(steps=N)");
  }
  if (own.current == nullptr) own.current = own.run->next();
  return own.current != nullptr;
}

nb::object session_object::step(nb::object self) {
  {
    const nb::gil_scoped_release released;
    if (!goes_on()) {
      throw configuration_error("the run has no further step (goes_on() returned False); begin the next run");
    }
  }
  const muster::step& now = *get().current;
  step_is_open_ = std::make_shared<std::atomic<bool>>(true);
  nb::object ranks = nb::cast(new group_object(now.group(), step_is_open_, nb::none()), nb::rv_policy::take_ownership);
  return nb::cast(step_object{std::move(self), now.number(), now.epoch(), now.generation(), now.group().rank(),
                              now.group().size(), std::move(ranks)});
}

// Throws the C++ exception that was translated into this exception of Python, so that a session can judge it.
[[noreturn]] void throw_as_cpp(nb::handle raised) {
  const std::string name = nb::cast<std::string>(raised.type().attr("__name__"));
  const std::string text = nb::cast<std::string>(nb::str(raised));
  const bool is_ours = nb::hasattr(raised, "exit_status");
  if (is_ours && name == "peer_failure")
    throw peer_failure(nb::cast<std::vector<int>>(raised.attr("ranks")), text,
                       nb::cast<int>(raised.attr("exit_status")));
  if (is_ours && name == "timeout_error")
    throw timeout_error(nb::cast<std::string>(raised.attr("operation")),
                        nb::cast<std::vector<int>>(raised.attr("missing")), text);
  throw error(error_kind::other, name + ": " + text);
}

// Ends the step: commits it, or restores the state after an exception. Returns true if the exception is dealt with: the
// step is repeated.
bool session_object::end_step(nb::handle raised) {
  auto& own = get();
  if (step_is_open_) *step_is_open_ = false;
  own.current = nullptr;
  if (!own.run) refuse_ended("step");
  if (raised.is_none()) {
    const nb::gil_scoped_release released;
    try {
      own.run->commit();
    } catch (...) {
      own.run->recover();
    }
    return false;
  }
  std::exception_ptr failure;
  try {
    throw_as_cpp(raised);
  } catch (...) {
    failure = std::current_exception();
  }
  const nb::gil_scoped_release released;
  try {
    std::rethrow_exception(failure);
  } catch (...) {
    try {
      own.run->recover();
      return true;
    } catch (const elastic::departure&) {
      throw;
    } catch (...) {
      return false;  // the exception of Python goes on
    }
  }
}

bool session_object::load() {
  auto& own = get();
  if (!own.store) throw configuration_error("the session has no checkpoints; pass checkpoint=FOLDER to it");
  own.run.reset();
  return own.store->load(own.session, own.state);
}

void session_object::save(double metric) {
  auto& own = get();
  if (!own.store) throw configuration_error("the session has no checkpoints; pass checkpoint=FOLDER to it");
  if (own.current != nullptr) {
    throw configuration_error(
        "a step of the run is left (save() belongs between two runs); call it when goes_on() is "
        "False, or end runs by every_steps=N");
  }
  own.run.reset();
  own.store->save(own.session, own.state, metric);
}

void session_object::close() noexcept {
  PyThreadState* const state = PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
  if (step_is_open_) *step_is_open_ = false;
  parts_.reset();
  if (state != nullptr) PyEval_RestoreThread(state);
}

void define_step(nb::module_& module) {
  nb::class_<step_object>(
      module, "session_step",
      "A step of a session: `with` commits it at its end. When ranks fail within it the state is as "
      "before, the exception ends here, and the session begins the step again with the others.")
      .def_ro("number", &step_object::number, "The number of steps that were committed before it.")
      .def_ro("epoch", &step_object::epoch, "The epoch, from 0.")
      .def_ro("generation", &step_object::generation, "The number of the group; 0 in a session of fixed ranks.")
      .def_ro("group", &step_object::ranks, "The ranks that compute the step together; valid within it.")
      .def_ro("rank", &step_object::rank, "This rank's number in the group.")
      .def_ro("size", &step_object::size, "The number of ranks in the group.")
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def(
          "__exit__",
          [](step_object& self, nb::handle, nb::handle raised, nb::handle) {
            return nb::cast<session_object&>(self.owner).end_step(raised);
          },
          nb::arg("kind").none(), nb::arg("value").none(), nb::arg("trace").none());
}

}  // namespace

void define_elastic(nb::module_& module) {
  using nb::arg;
  define_step(module);
  nb::class_<session_object>(
      module, "session", nb::is_weak_referenceable(),
      "A training as steps that commit or did not happen, over the ranks of a context: fixed ranks, or ranks that die "
      "and "
      "join where the context is elastic (muster-launch).\n\n"
      "`arrays` are the model's and the optimizer's, by name, and stay at their addresses; `local` are each rank's "
      "own; "
      "`objects` have state_dict() and load_state_dict(); `loader` is the data. All of it is restored when a step "
      "fails, "
      "copied to a rank that joins, and saved in checkpoints.\n\n"
      "    while session.run(epochs=3):\n        while session.goes_on():\n            with session.step() as step:\n"
      "                batch = loader.next(step.rank, step.size)\n                ...\n        session.save()")
      .def(
          "__init__",
          [](session_object* self, nb::object context, const nb::dict& arrays, std::optional<nb::object> loader,
             const nb::dict& objects, const nb::dict& local, std::optional<std::string> checkpoint, std::size_t keep) {
            new (self) session_object(std::move(context), arrays, std::move(loader), objects, local,
                                      std::move(checkpoint), keep);
          },
          arg("context"), arg("arrays"), arg("loader") = nb::none(), arg("objects") = nb::dict(),
          arg("local") = nb::dict(), arg("checkpoint") = nb::none(), arg("keep") = 3)
      .def(
          "run",
          [](session_object& self, std::uint64_t epochs, std::uint64_t steps, std::uint64_t every_steps) {
            return self.run({.epochs = epochs, .steps = steps, .every_steps = every_steps});
          },
          arg("epochs") = 0, arg("steps") = 0, arg("every_steps") = 0, nb::call_guard<nb::gil_scoped_release>(),
          "Begins a run of steps, to the end of the epoch or a limit, which counts from the start of the training. "
          "Returns "
          "False when a limit had already been reached.")
      .def("goes_on", &session_object::goes_on, nb::call_guard<nb::gil_scoped_release>(),
           "Returns True if the run has a further step. Here ranks join and leave.")
      .def(
          "step", [](nb::object self) { return nb::cast<session_object&>(self).step(self); },
          "Returns the next step of the run, for `with`.")
      .def("load", &session_object::load, nb::call_guard<nb::gil_scoped_release>(),
           "Loads the newest checkpoint, before the first step. Returns True if the state has steps afterwards.")
      .def("save", &session_object::save, arg("metric") = std::numeric_limits<double>::quiet_NaN(),
           nb::call_guard<nb::gil_scoped_release>(),
           "Saves the state between two runs; `metric` measures it, for the best checkpoint. Collective.")
      .def_prop_ro("steps", &session_object::steps, "The number of committed steps.")
      .def("digest", &session_object::digest, nb::call_guard<nb::gil_scoped_release>(),
           "Returns a digest of the replicated state, which is equal at all ranks.")
      .def("close", &session_object::close, "Leaves the job.");
}

}  // namespace muster::python
