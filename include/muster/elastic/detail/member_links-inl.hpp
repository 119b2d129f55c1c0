#pragma once

#include <muster/elastic/member_links.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>
#include <muster/elastic/elastic_timing.hpp>
#include <muster/elastic/job_member.hpp>

namespace muster { inline namespace v0 { namespace detail {

MUSTER_INLINE member_links::member_links(const context& parent, const std::shared_ptr<any_store>& store,
                                         std::uint32_t order)
    : context_(parent),
      member_(std::make_unique<job_member>(parent.configuration(), parent.launcher(), store, order, 0)) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

MUSTER_INLINE member_links::~member_links() {
  thread_.request_stop();
  thread_.join();
  member_->leave();
}

MUSTER_INLINE bool member_links::take_new_links(const mover& move) {
  if (!has_news_.load(std::memory_order_acquire)) return false;
  generation_links next;
  std::vector<std::uint32_t> gone;
  {
    const std::lock_guard held(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    has_news_.store(false, std::memory_order_relaxed);
    next = *std::exchange(ready_, std::nullopt);
    gone = std::exchange(gone_, {});
  }
  move(next, gone);
  const std::lock_guard held(mutex_);
  if (used_) former_.push_back({std::move(used_), clock::now() + elastic_timing::former_links});
  used_ = std::move(next.member_transport);
  return true;
}

MUSTER_INLINE void member_links::await_new_links(const mover& move) {
  {
    std::unique_lock held(mutex_);
    changed_.wait(held, [this] { return has_news_.load(std::memory_order_relaxed); });  // the membership has a deadline
  }
  (void)take_new_links(move);
}

MUSTER_INLINE void member_links::run(const std::stop_token& stop) {
  try {
    change(stop);
  } catch (...) {
    const std::lock_guard held(mutex_);
    failure_ = std::current_exception();
    has_news_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

MUSTER_INLINE void member_links::end_former() {
  std::vector<former> over;  // destroyed after the mutex is unlocked
  const std::lock_guard held(mutex_);
  const auto ended = [](const former& group) { return group.until <= clock::now(); };
  std::ranges::copy_if(former_, std::back_inserter(over), ended);
  std::erase_if(former_, ended);
}

MUSTER_INLINE void member_links::change(const std::stop_token& stop) {
  auto& membership = member_->service();
  elastic::generation_record before;
  bool stopped = true;                  // true if the last generation was reported as stopped
  std::shared_ptr<revocation> present;  // set while it is connected
  while (!stop.stop_requested()) {
    const auto until = clock::now() + elastic_timing::look_at_links;
    end_former();
    const auto* const broken = broken_generation_.exchange(nullptr, std::memory_order_acquire);
    if (present && broken != present.get() && !membership.await_stop(until)) continue;
    present.reset();
    if (!std::exchange(stopped, true)) {
      membership.apply([this](auto& protocol, auto now) {
        // The connecting of this generation may have shown that MPI can no longer connect this process.
        protocol.set_endpoints(member_->endpoints());
        protocol.stopped(now);
      });
    }
    const auto next = membership.next(until);
    if (!next) continue;
    stopped = false;
    const auto& record = next->record;
    try {
      // Uses separate memory: processes of former generations may still write to theirs.
      auto built = member_->connect(
          record, std::make_shared<segment>(reserve_for(static_cast<int>(record.members.size()))),
          [&] { return next->end_token->revoked() || stop.stop_requested(); }, true);
      present = next->end_token;
      generation_links links{std::move(built.transport), {}, next->end_token};
      for (const auto& member : record.members) links.orders.push_back(static_cast<std::uint32_t>(member.order));
      if (record.generation > 1)
        log(log_level::info, "generation " + std::to_string(record.generation) + ": " + record.reason);
      else if (std::cmp_less(record.members.size(), context_.launcher().size) &&
               record.rank_of(member_->self().id) == 0)
        log(log_level::warning, record.reason);
      const std::lock_guard held(mutex_);
      for (const auto& member : before.members) {
        if (!record.rank_of(member.id)) gone_.push_back(static_cast<std::uint32_t>(member.order));
      }
      before = record;
      if (ready_) former_.push_back({std::move(ready_->member_transport), clock::time_point{}});
      ready_ = std::move(links);
      has_news_.store(true, std::memory_order_release);
      changed_.notify_all();
    } catch (const peer_failure&) {  // the members that are left form the next generation
    } catch (const timeout_error& late) {
      if (!next->end_token->revoked()) member_->suspect_missing(record, late, "it did not connect: ");
    }
  }
}

}}}  // namespace muster::v0::detail
