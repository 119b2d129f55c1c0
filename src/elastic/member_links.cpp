#include "member_links.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "job_member.hpp"
#include "timing.hpp"

namespace muster { inline namespace v0 { namespace detail {

member_links::member_links(const context& of, const std::shared_ptr<any_store>& store, std::uint32_t order)
    : context_(of), member_(std::make_unique<job_member>(of.configuration(), of.launcher(), store, order)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

member_links::~member_links() {
  thread_.request_stop();
  thread_.join();
  member_->leave();
}

bool member_links::take(const mover& move) {
  if (!news_.load(std::memory_order_acquire)) return false;
  connected next;
  std::vector<std::uint32_t> gone;
  {
    const std::lock_guard held(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    news_.store(false, std::memory_order_relaxed);
    next = *std::exchange(ready_, std::nullopt);
    gone = std::exchange(gone_, {});
  }
  move(next, gone);
  const std::lock_guard held(mutex_);
  if (used_) former_.push_back({std::move(used_), clock::now() + elastic_timing::former_links});
  used_ = std::move(next.over);
  return true;
}

void member_links::await(const mover& move) {
  {
    std::unique_lock held(mutex_);
    changed_.wait(held, [this] { return news_.load(std::memory_order_relaxed); });  // the membership has a deadline
  }
  (void)take(move);
}

void member_links::run(const std::stop_token& stop) {
  try {
    change(stop);
  } catch (...) {
    const std::lock_guard held(mutex_);
    failure_ = std::current_exception();
    news_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void member_links::end_former() {
  std::vector<former> over;  // which goes when others may have the lock
  const std::lock_guard held(mutex_);
  const auto ended = [](const former& one) { return one.until <= clock::now(); };
  std::ranges::copy_if(former_, std::back_inserter(over), ended);
  std::erase_if(former_, ended);
}

void member_links::change(const std::stop_token& stop) {
  auto& membership = member_->service();
  elastic::generation_record before;
  bool stopped = true;                  // of the last generation that it was told of
  std::shared_ptr<revocation> present;  // while it is connected
  while (!stop.stop_requested()) {
    const auto until = clock::now() + elastic_timing::look_at_links;
    end_former();
    const auto* const broken = broken_.exchange(nullptr, std::memory_order_acquire);
    if (present && broken != present.get() && !membership.await_stop(until)) continue;
    present.reset();
    if (!std::exchange(stopped, true)) {
      membership.tell([this](auto& protocol, auto now) {
        protocol.wait_at(member_->endpoints());  // what connecting it has shown of MPI
        protocol.stopped(now);
      });
    }
    const auto next = membership.next(until);
    if (!next) continue;
    stopped = false;
    const auto& record = next->record;
    try {
      // Memory of its own: processes of former generations may still write to theirs.
      auto made = member_->connect(
          record, std::make_shared<segment>(reserve_for(static_cast<int>(record.members.size()))),
          [&] { return next->end->revoked() || stop.stop_requested(); }, true);
      present = next->end;
      connected links{std::move(made.transport), {}, next->end};
      for (const auto& one : record.members) links.orders.push_back(static_cast<std::uint32_t>(one.order));
      if (record.generation > 1)
        log(log_level::info, "generation " + std::to_string(record.generation) + ": " + record.why);
      const std::lock_guard held(mutex_);
      for (const auto& one : before.members) {
        if (!record.rank_of(one.id)) gone_.push_back(static_cast<std::uint32_t>(one.order));
      }
      before = record;
      if (ready_) former_.push_back({std::move(ready_->over), clock::time_point{}});
      ready_ = std::move(links);
      news_.store(true, std::memory_order_release);
      changed_.notify_all();
    } catch (const peer_failure&) {  // and once more, with those that are left
    } catch (const timeout_error& late) {
      if (!next->end->revoked()) member_->suspect_missing(record, late, "it did not connect: ");
    }
  }
}

}}}  // namespace muster::v0::detail
