#include "store_table.hpp"

#include <algorithm>

namespace muster::inline v0::detail {

namespace {

constexpr std::uint64_t shortest_lease = 100'000;  // microseconds
constexpr std::uint64_t longest_lease = 3600'000'000;

}  // namespace

void store_table::restore(std::string_view key, std::uint64_t version, std::optional<std::string_view> value) {
  if (const auto found = items_.find(key); found != items_.end()) remove(found);
  if (value) {
    bytes_ += key.size() + value->size();
    items_.emplace(key, item{std::string(*value), version, 0});
  }
  version_ = std::max(version_, version);
}

void store_table::for_each_kept(const change& keep) const {
  for (const auto& [key, its] : items_) {
    if (its.lease == 0) keep(key, its.version, its.value);
  }
  keep("", version_, std::nullopt);  // no key, so that no version is used twice
}

bool store_table::handle(client from, const store_request& asked, clock::time_point now) {
  switch (asked.what) {
    case store_call::get: {
      const auto found = items_.find(asked.key);
      const bool there = found != items_.end();
      tell_(from, {.id = asked.id,
                   .number = there ? found->second.version : 0,
                   .value = there ? std::string_view(found->second.value) : std::string_view()});
      return true;
    }
    case store_call::open:
      open(from, asked);
      return true;
    case store_call::swap:
      swap(from, asked);
      return true;
    case store_call::watch:
      return watch(from, asked);
    case store_call::cancel:
      forget_watch(from, asked.id);
      return true;
    case store_call::lease:
      begin_lease(from, asked, now);
      return true;
    case store_call::keep:
    case store_call::end: {
      const auto found = leases_.find(asked.number);
      const bool own = found != leases_.end() && found->second.holder == from;
      if (own && asked.what == store_call::keep) found->second.ends = now + found->second.ttl;
      if (own && asked.what == store_call::end) end_lease(asked.number);
      tell_(from, {.id = asked.id, .status = own ? store_status::done : store_status::ended});
      return true;
    }
  }
  return false;
}

void store_table::open(client from, const store_request& asked) {
  if (is_alone_(from)) {
    for (auto at = items_.begin(); at != items_.end();) {
      if (keep_) keep_(at->first, version_, std::nullopt);
      remove(at++);
    }
  }
  auto found = items_.find(store_identity_key);
  if (found == items_.end()) {
    restore(store_identity_key, version_ + 1, draw_());
    found = items_.find(store_identity_key);
    if (keep_) keep_(found->first, version_, found->second.value);
    wake(found->first, version_, found->second.value);
  }
  tell_(from, {.id = asked.id, .number = found->second.version, .value = found->second.value});
}

void store_table::swap(client from, const store_request& asked) {
  const auto found = items_.find(asked.key);
  const bool there = found != items_.end();
  const std::uint64_t version = there ? found->second.version : 0;
  const auto lease = asked.value && asked.lease != 0 ? leases_.find(asked.lease) : leases_.end();
  if (asked.value && asked.lease != 0 && lease == leases_.end()) {
    return tell_(from, {.id = asked.id, .status = store_status::ended});
  }
  if (version != asked.number) {
    return tell_(from, {.id = asked.id,
                        .status = store_status::refused,
                        .number = version,
                        .value = there ? std::string_view(found->second.value) : std::string_view()});
  }
  if (!asked.value) {
    if (there && keep_) keep_(asked.key, version_, std::nullopt);
    if (there) remove(found);
    return tell_(from, {.id = asked.id});
  }
  const std::size_t before = there ? found->first.size() + found->second.value.size() : 0;
  const std::size_t after = bytes_ - before + asked.key.size() + asked.value->size();
  if (after > most_bytes && after > bytes_) return tell_(from, {.id = asked.id, .status = store_status::full});
  bytes_ = after;
  auto& changed = there ? found->second : items_[std::string(asked.key)];
  const std::string key(asked.key);
  detach(key, changed);
  changed = {std::string(*asked.value), ++version_, asked.lease};
  if (lease != leases_.end()) lease->second.keys.insert(key);
  if (keep_) keep_(key, version_, asked.lease == 0 ? asked.value : std::nullopt);
  tell_(from, {.id = asked.id, .number = changed.version});
  wake(key, changed.version, changed.value);
}

bool store_table::watch(client from, const store_request& asked) {
  auto& mine = clients_[from];
  if (mine.watches.contains(asked.id)) return false;
  const auto found = items_.find(asked.key);
  const std::uint64_t version = found != items_.end() ? found->second.version : 0;
  if (version != asked.number) {
    tell_(from, {.id = asked.id,
                 .number = version,
                 .value = version != 0 ? std::string_view(found->second.value) : std::string_view()});
  } else if (mine.watches.size() >= most_of_a_client) {
    tell_(from, {.id = asked.id, .status = store_status::full});
  } else {
    mine.watches.emplace(asked.id, asked.key);
    watches_[std::string(asked.key)].push_back({from, asked.id});
  }
  return true;
}

void store_table::begin_lease(client from, const store_request& asked, clock::time_point now) {
  auto& mine = clients_[from];
  if (mine.leases.size() >= most_of_a_client) {
    return tell_(from, {.id = asked.id, .status = store_status::full});
  }
  const std::chrono::microseconds ttl(std::clamp(asked.number, shortest_lease, longest_lease));
  const std::uint64_t id = ++last_lease_;
  leases_.emplace(id, held{from, ttl, now + ttl, {}});
  mine.leases.insert(id);
  tell_(from, {.id = asked.id, .number = id});
}

void store_table::end_lease(std::uint64_t id) {
  auto ended = leases_.extract(id);
  if (const auto holder = clients_.find(ended.mapped().holder); holder != clients_.end()) {
    holder->second.leases.erase(id);
  }
  for (const auto& key : ended.mapped().keys) remove(items_.find(key));
}

void store_table::remove(std::map<std::string, item, std::less<>>::iterator where) {
  bytes_ -= where->first.size() + where->second.value.size();
  detach(where->first, where->second);
  const auto gone = items_.extract(where);
  wake(gone.key(), 0, {});
}

void store_table::detach(const std::string& key, const item& from) {
  const auto lease = leases_.find(from.lease);
  if (lease != leases_.end()) lease->second.keys.erase(key);
}

void store_table::wake(const std::string& key, std::uint64_t version, std::string_view value) {
  auto woken = watches_.extract(key);
  if (woken.empty()) return;
  for (const auto& one : woken.mapped()) {
    clients_[one.who].watches.erase(one.id);
    tell_(one.who, {.id = one.id, .number = version, .value = value});
  }
}

void store_table::forget_watch(client who, std::uint64_t id) {
  const auto mine = clients_.find(who);
  if (mine == clients_.end()) return;
  const auto watched = mine->second.watches.extract(id);
  if (watched.empty()) return;
  const auto others = watches_.find(watched.mapped());
  std::erase_if(others->second, [&](const waiting& one) { return one.who == who && one.id == id; });
  if (others->second.empty()) watches_.erase(others);
}

void store_table::leave(client gone) {
  const auto found = clients_.find(gone);
  if (found == clients_.end()) return;
  while (!found->second.watches.empty()) forget_watch(gone, found->second.watches.begin()->first);
  const auto leases = std::move(found->second.leases);
  clients_.erase(found);
  for (const auto id : leases) end_lease(id);
}

void store_table::expire(clock::time_point now) {
  std::vector<std::uint64_t> over;
  for (const auto& [id, lease] : leases_) {
    if (lease.ends <= now) over.push_back(id);
  }
  for (const auto id : over) end_lease(id);
}

void store_table::forgive(clock::duration deafness) {
  for (auto& [id, lease] : leases_) lease.ends += deafness;
}

}  // namespace muster::inline v0::detail
