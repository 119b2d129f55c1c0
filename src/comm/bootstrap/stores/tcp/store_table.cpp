#include "store_table.hpp"

#include <algorithm>

namespace muster::inline v0::detail {

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
    if (its.owner == 0) keep(key, its.version, its.value);
  }
  keep("", version_, std::nullopt);  // no key, so that no version is used twice
}

bool store_table::handle(client from, const store_request& asked) {
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
  const std::string key(asked.key);
  const bool goes = asked.life == store_life::of_client;
  const auto& changed = items_[key] = {std::string(*asked.value), ++version_, goes ? from : 0};
  if (keep_) keep_(key, version_, goes ? std::nullopt : asked.value);
  tell_(from, {.id = asked.id, .number = changed.version});
  wake(key, changed.version, changed.value);
}

bool store_table::watch(client from, const store_request& asked) {
  auto& mine = watched_[from];
  if (mine.contains(asked.id)) return false;
  const auto found = items_.find(asked.key);
  const std::uint64_t version = found != items_.end() ? found->second.version : 0;
  if (version != asked.number) {
    tell_(from, {.id = asked.id,
                 .number = version,
                 .value = version != 0 ? std::string_view(found->second.value) : std::string_view()});
  } else if (mine.size() >= most_of_a_client) {
    tell_(from, {.id = asked.id, .status = store_status::full});
  } else {
    mine.emplace(asked.id, asked.key);
    watches_[std::string(asked.key)].push_back({from, asked.id});
  }
  return true;
}

void store_table::remove(std::map<std::string, item, std::less<>>::iterator where) {
  bytes_ -= where->first.size() + where->second.value.size();
  const auto gone = items_.extract(where);
  wake(gone.key(), 0, {});
}

void store_table::wake(const std::string& key, std::uint64_t version, std::string_view value) {
  auto woken = watches_.extract(key);
  if (woken.empty()) return;
  for (const auto& one : woken.mapped()) {
    watched_[one.who].erase(one.id);
    tell_(one.who, {.id = one.id, .number = version, .value = value});
  }
}

void store_table::forget_watch(client who, std::uint64_t id) {
  const auto mine = watched_.find(who);
  if (mine == watched_.end()) return;
  const auto watched = mine->second.extract(id);
  if (watched.empty()) return;
  const auto others = watches_.find(watched.mapped());
  std::erase_if(others->second, [&](const waiting& one) { return one.who == who && one.id == id; });
  if (others->second.empty()) watches_.erase(others);
}

void store_table::leave(client gone) {
  if (const auto mine = watched_.find(gone); mine != watched_.end()) {
    while (!mine->second.empty()) forget_watch(gone, mine->second.begin()->first);
    watched_.erase(mine);
  }
  for (auto at = items_.begin(); at != items_.end();) {
    const auto one = at++;
    if (one->second.owner == gone) remove(one);
  }
}

}  // namespace muster::inline v0::detail
