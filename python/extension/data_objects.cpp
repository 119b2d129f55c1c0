#include "data_objects.hpp"

#include <utility>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/core/error.hpp>

namespace muster::python {

loader_object::loader_object(loader&& own) : loader_(std::make_unique<loader>(std::move(own))) {
  const launch_env launch = detect_launch();
  shard = {launch.rank, launch.size};
}

loader_object::~loader_object() { close(); }

loader& loader_object::get() {
  if (is_taken_) {
    throw configuration_error(
        "this loader has become a part of another loader (by |); use the result of the whole pipeline");
  }
  if (!loader_) refuse_ended("loader");
  return *loader_;
}

loader loader_object::take() {
  loader result = std::move(get());
  is_taken_ = true;
  loader_.reset();
  return result;
}

// Gives the batch its own memory if Python still refers to it, before the loader uses the memory for another batch.
void loader_object::leave_batch() {
  if (current_ && current_.use_count() > 1) current_->owner = get().release_batch();
  current_.reset();
}

std::shared_ptr<batch_memory> loader_object::next(batch_shard part) {
  const std::lock_guard turn(mutex_);
  loader& own = get();
  const cursor place = std::as_const(own).cursor();  // a session may have moved it
  if (current_ && place == place_ && part == current_shard_) return current_;
  leave_batch();
  const minibatch view = own.next(part);
  if (!view) return nullptr;
  current_ = std::make_shared<batch_memory>(batch_memory{view, own.schema(), nullptr});
  current_->view.schema = &current_->schema;
  current_shard_ = std::move(part);
  place_ = place;
  return current_;
}

void loader_object::commit() {
  const std::lock_guard turn(mutex_);
  get().commit();
}

void loader_object::next_epoch() {
  const std::lock_guard turn(mutex_);
  get().next_epoch();
}

void loader_object::open(const cursor& target) {
  const std::lock_guard turn(mutex_);
  get().open(target);
}

void loader_object::forget() noexcept { (void)loader_.release(); }

void loader_object::close() noexcept {
  // Tasks of the loader may wait for the interpreter's lock, to call a function.
  PyThreadState* const state = PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
  try {
    if (loader_) leave_batch();
  } catch (...) {  // no memory: the batch is then empty
  }
  loader_.reset();
  if (state != nullptr) PyEval_RestoreThread(state);
}

}  // namespace muster::python
