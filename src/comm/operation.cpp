#include "operation.hpp"

#include <muster/comm/collectives/algo/chooser.hpp>

namespace muster::inline v0::detail {

void operation_queue::append(operation_state& op) noexcept {
  (tail_ == nullptr ? head_ : tail_->next) = &op;
  tail_ = &op;
}

void operation_queue::begin(operation_state& op, bool check_full) {
  op.begun = true;
  if (op.timed) op.begun_at = clock::now();
  algorithm how = op.mark.how;
  if (how == algorithm::native && abilities_.native_first) {
    if (begin_native(op)) return;
    // What it leaves to the library it leaves at every rank alike.
    how = choose(op.what.kind, payload_bytes(op.what, transport_.size()), transport_.size(), abilities_.costs);
  }
  op.body = make_task(op.steps, op.what, how, check_full);
  op.steps.start(op.body.handle());
}

bool operation_queue::begin_native(operation_state& op) {
  if (transport_.size() == 1) return false;
  const call& what = op.what;
  op.handed = {what.kind, what.root, what.in, what.out, what.count, what.element_size, &what.reduce, op.mark};
  if (!transport_.native(op.handed, op.own_request)) return false;
  op.native = &op.own_request;
  return true;
}

void operation_queue::end(const std::exception_ptr& failure) noexcept {
  while (head_ != nullptr) finish_first(failure);
}

}  // namespace muster::inline v0::detail
