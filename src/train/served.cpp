#include "served.hpp"

#include <algorithm>
#include <utility>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/core/error.hpp>
#include <muster/core/events.hpp>

namespace muster::inline v0::detail {

served::served(context& of, arena& values, std::string update, bool sparse)
    : arena_(values),
      sparse_(sparse),
      job_(of, of.world(),
           ps::chosen_options(
               of.configuration(),
               {{.name = "parameters", .size = sparse ? 0 : values.parameters().size(), .update = std::move(update)}})),
      workers_(of.world().split(job_.is_server() ? 1 : 0)),
      alone_(of.world().split(of.world().rank())) {}

std::optional<ps::saved_tables> served::start(const std::string& folder, bool resume) {
  if (!folder.empty()) savers_.emplace(job_.connect_workers());
  std::optional<ps::saved_tables> saved;
  if (savers_ && resume) saved = ps::load_tables(job_, *savers_, folder);
  if (!saved && !sparse_ && is_first()) job_.tables().assign(0, std::as_const(arena_).parameters());
  assigned_ = job_.tables().bytes_pushed();
  barrier(workers_);  // none pulls before the parameters are there
  return saved;
}

void served::pull(std::span<const std::uint64_t> elements) {
  const auto parameters = arena_.parameters();
  const auto bytes = sparse_ ? elements.size() * sizeof(float) : parameters.size_bytes();
  const scoped_event waits(activity::aggregate, "pull", 0);
  const scoped_event measured(activity::communication, "pull", bytes);
  if (!sparse_) return job_.tables().pull(0, parameters);
  elements_.assign(elements.begin(), elements.end());
  rows_.resize(elements_.size());
  job_.tables().pull(0, elements_, rows_);
  for (std::size_t k = 0; k < elements_.size(); ++k) parameters[elements_[k]] = rows_[k];
}

// From a copy, so that the next step need not wait until the servers have it.
void served::push(double learning_rate) {
  const ps::push_options how{.scale = static_cast<float>(learning_rate)};
  {
    const scoped_event measured(activity::communication, "push", 0);  // its bytes are told when they are handed over
    under_way_.wait();
  }
  const auto gradients = arena_.gradients();
  if (!sparse_) {
    pushed_.assign(gradients.begin(), gradients.end());
    under_way_ = job_.tables().push_async(0, pushed_, how);
    return;
  }
  pushed_elements_.swap(elements_);
  pushed_.resize(pushed_elements_.size());
  for (std::size_t k = 0; k < pushed_.size(); ++k) pushed_[k] = std::exchange(gradients[pushed_elements_[k]], 0.0f);
  under_way_ = job_.tables().push_async(0, pushed_elements_, pushed_, how);
}

}  // namespace muster::inline v0::detail
