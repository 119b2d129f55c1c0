#include "comm_objects.hpp"

#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

namespace muster::python {
namespace {

constexpr seconds between_signal_checks{0.05};

// Releases the interpreter's lock if this thread has it: destructors and `close` run with and without it.
class lock_released {
 public:
  lock_released() {
    if (PyGILState_Check() != 0) state_ = PyEval_SaveThread();
  }
  lock_released(const lock_released&) = delete;
  lock_released& operator=(const lock_released&) = delete;
  ~lock_released() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_ = nullptr;
};

}  // namespace

group_object::~group_object() { close(); }

void group_object::forget() noexcept {
  (void)own_.release();
  ranks_ = nullptr;
}

void group_object::close() noexcept {
  const lock_released released;
  const std::lock_guard turn(mutex_);
  ranks_ = nullptr;
  own_.reset();
}

// Ends the group when a signal's handler raises: the other ranks must not wait for this rank.
void group_object::interrupt() {
  try {
    check_signals();
  } catch (const nb::python_error&) {
    get().abort("a signal interrupted it", 130);
    throw;
  }
}

bool group_object::wait(work& outstanding, std::optional<double> limit) {
  const auto until = limit ? deadline_after(seconds(*limit)) : clock::time_point::max();
  for (;;) {
    const auto slice = std::min<seconds>(between_signal_checks, until - clock::now());
    {
      const std::lock_guard turn(mutex_);
      if (outstanding.wait_for(std::max(slice, seconds(0)))) return true;
    }
    if (clock::now() >= until) return false;
    interrupt();
  }
}

bool group_object::test(work& outstanding) {
  const std::lock_guard turn(mutex_);
  return outstanding.test();
}

void group_object::run(const muster::detail::typed_call& call) {
  work outstanding = start(call);
  (void)wait(outstanding, std::nullopt);
}

work group_object::start(const muster::detail::typed_call& call) {
  const std::lock_guard turn(mutex_);
  return muster::detail::start(get(), call);
}

group group_object::split(int color, int key) {
  const std::lock_guard turn(mutex_);
  return get().split(color, key);
}

work_object::~work_object() { close(); }

void work_object::begin(nb::object parent, group_object& ranks, const muster::detail::typed_call& call,
                        nb::object result) {
  parent_ = std::move(parent);
  result_ = std::move(result);
  ranks_ = &ranks;
  const nb::gil_scoped_release released;
  work_ = std::make_unique<work>(ranks.start(call));
}

bool work_object::wait(std::optional<double> limit) {
  if (ranks_ == nullptr || !work_) refuse_ended("work");
  return ranks_->wait(*work_, limit);
}

bool work_object::test() {
  if (ranks_ == nullptr || !work_) refuse_ended("work");
  return ranks_->test(*work_);
}

void work_object::forget() noexcept { (void)work_.release(); }

void work_object::close() noexcept {
  if (!work_) return;
  const lock_released released;
  try {
    if (!ranks_->test(*work_)) work_->wait();
  } catch (const std::exception& failure) {
    log(log_level::warning, std::string("a collective that nobody waited for failed: ") + failure.what());
  }
  work_.reset();
}

context_object::context_object(settings&& chosen) {
  const nb::gil_scoped_release released;
  context_ = std::make_unique<context>(std::move(chosen));
}

context_object::~context_object() { close(); }

nb::object context_object::world(nb::handle self) {
  if (world_.is_valid()) {
    nb::object alive = world_();
    if (!alive.is_none()) return alive;
  }
  nb::object made =
      nb::cast(new group_object(get().world(), is_open_, nb::borrow(self)), nb::rv_policy::take_ownership);
  world_ = nb::module_::import_("weakref").attr("ref")(made);
  return made;
}

void context_object::run(nb::object function) {
  const auto body = [&](group& world) {
    const nb::gil_scoped_acquire held;
    nb::object ranks = nb::cast(new group_object(world, is_open_, nb::none()), nb::rv_policy::take_ownership);
    auto& object = nb::cast<group_object&>(ranks);
    try {
      (void)function(ranks);
    } catch (nb::python_error& raised) {
      object.close();
      throw python_failure(std::move(raised));
    }
    object.close();
  };
  const nb::gil_scoped_release released;
  get().run(body);
}

void context_object::forget() noexcept {
  *is_open_ = false;
  (void)context_.release();
}

void context_object::close() noexcept {
  *is_open_ = false;
  const lock_released released;
  context_.reset();
}

}  // namespace muster::python
