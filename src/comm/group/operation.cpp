#include "operation.hpp"

namespace muster::inline v0::detail {

void operation_queue::append(operation_state& op) noexcept {
  (tail_ == nullptr ? head_ : tail_->next) = &op;
  tail_ = &op;
}

void operation_queue::begin_first(bool check_full) {
  operation_state& op = *head_;
  if (op.timed) op.begun_at = clock::now();
  op.begin(make_task(op.steps, op.what, op.what.algorithm, check_full));
}

void operation_queue::end(const std::exception_ptr& failure) noexcept {
  while (head_ != nullptr) finish_first(failure);
}

}  // namespace muster::inline v0::detail
