#include "store_calls.hpp"

#include <algorithm>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr std::uint64_t of_lease = std::uint64_t{1} << 63;  // ids of requests about the lease of the same number

}  // namespace

class store_calls::holder final : public store_lease::holder {
 public:
  holder(std::weak_ptr<store_calls> store, std::uint64_t id) : store_(std::move(store)), id_(id) {}
  ~holder() override {
    if (const auto open = store_.lock()) open->end_keeping(id_);
  }
  [[nodiscard]] std::uint64_t id() const noexcept override { return id_; }
  [[nodiscard]] bool held() const noexcept override {
    const auto open = store_.lock();
    return open && open->is_kept(id_);
  }

 private:
  std::weak_ptr<store_calls> store_;
  std::uint64_t id_;
};

std::string store_calls::open(clock::time_point until) { return call("open", {.what = store_call::open}, until).value; }

store_entry store_calls::get(std::string_view key, clock::time_point until) {
  check_store_key(key, where_);
  auto came = call("get", {.what = store_call::get, .key = key}, until);
  return {came.number, std::move(came.value)};
}

store_swap store_calls::compare_and_swap(std::string_view key, std::uint64_t expected,
                                         std::optional<std::string_view> value, clock::time_point until,
                                         std::uint64_t lease) {
  check_store_key(key, where_);
  check_store_value(value, where_);
  auto came = call("compare_and_swap",
                   {.what = store_call::swap, .number = expected, .lease = lease, .key = key, .value = value}, until);
  return {came.status == store_status::done, {came.number, std::move(came.value)}};
}

std::optional<store_entry> store_calls::watch(std::string_view key, std::uint64_t known, clock::time_point until) {
  check_store_key(key, where_);
  auto came = wait_for({.what = store_call::watch, .number = known, .key = key}, until);
  if (!came) return std::nullopt;
  if (came->status == store_status::full) {
    throw error(error_kind::other,
                "the store " + where_ + " takes no more watches of this client; wait for fewer keys");
  }
  return store_entry{came->number, std::move(came->value)};
}

store_lease store_calls::lease(const std::shared_ptr<store_calls>& store, seconds ttl, clock::time_point until) {
  check_store_ttl(ttl, store->where_);
  const auto asked = clock::now();
  const auto microseconds = static_cast<std::uint64_t>(ttl.count() * 1e6);
  const auto came = store->call("lease", {.what = store_call::lease, .number = microseconds}, until);
  {
    const std::lock_guard held(store->mutex_);
    store->leases_.emplace(came.number, kept_lease{ttl, asked, {}, false, true});
    store->wake();
  }
  return store_lease(std::make_unique<holder>(store, came.number));
}

store_calls::answer store_calls::call(const char* name, const store_request& asked, clock::time_point until) {
  auto came = wait_for(asked, until);
  if (!came) store_timed_out(name, asked.key, where_);
  if (came->status == store_status::full) {
    throw error(error_kind::other, "the store " + where_ +
                                       " takes no more (256 MiB in all; 4096 leases and as many watches of a client); "
                                       "remove what is not needed");
  }
  if (came->status == store_status::ended) {
    throw store_lease_ended("a lease at the store " + where_ +
                            " has ended (its holder was silent for longer than it lives, or let it go); begin anew");
  }
  return std::move(*came);
}

std::optional<store_calls::answer> store_calls::wait_for(store_request asked, clock::time_point until) {
  waiting mine;
  std::unique_lock held(mutex_);
  if (is_lost()) fail();
  asked.id = ++last_id_;
  calls_.emplace(asked.id, &mine);
  ask(asked);
  mine.answered.wait_until(held, until, [&] { return mine.came || is_lost(); });
  calls_.erase(asked.id);
  if (mine.came) return std::move(mine.came);
  if (is_lost()) fail();
  if (asked.what == store_call::watch) ask({.what = store_call::cancel, .id = asked.id});
  return std::nullopt;
}

void store_calls::take(const store_reply& said) {
  if ((said.id & of_lease) != 0) {
    const auto found = leases_.find(said.id & ~of_lease);
    if (found == leases_.end()) return;
    auto& kept = found->second;
    kept.is_being_asked = false;
    kept.asked = kept.asking;
    if (said.status != store_status::done) kept.held = false;
    return;
  }
  const auto found = calls_.find(said.id);
  if (found == calls_.end()) return;  // it has given up
  found->second->came = answer{said.status, said.number, std::string(said.value)};
  found->second->answered.notify_all();
}

void store_calls::keep_leases(clock::time_point now) {
  for (auto& [id, kept] : leases_) {
    if (!kept.held || kept.is_being_asked || now < kept.asked + kept.ttl / 4) continue;
    kept.asking = now;
    kept.is_being_asked = true;
    ask({.what = store_call::keep, .id = of_lease | id, .number = id});
  }
}

clock::time_point store_calls::next_keeping() const {
  auto next = clock::time_point::max();
  for (const auto& [id, kept] : leases_) {
    if (!kept.held || kept.is_being_asked) continue;
    next = std::min(next, std::chrono::time_point_cast<clock::duration>(kept.asked + kept.ttl / 4));
  }
  return next;
}

void store_calls::end_keeping(std::uint64_t id) noexcept {
  const std::lock_guard held(mutex_);
  if (leases_.erase(id) == 0 || is_lost()) return;
  try {
    ask({.what = store_call::end, .id = of_lease | id, .number = id});
  } catch (const std::exception&) {  // no memory: it ends by silence
  }
}

bool store_calls::is_kept(std::uint64_t id) const noexcept {
  const std::lock_guard held(mutex_);
  const auto found = leases_.find(id);
  if (found == leases_.end() || is_lost()) return false;
  return found->second.held && clock::now() < found->second.asked + found->second.ttl;
}

void store_calls::lose(const std::string& why) {
  if (lost_.empty()) lost_ = why;
  for (auto& [id, call] : calls_) call->answered.notify_all();
}

void store_calls::fail() const {
  throw peer_failure({}, "the store " + where_ + " is lost (" + lost_ + "); see what became of whoever served it");
}

}  // namespace muster::inline v0::detail
