#include "map_keeper.hpp"

#include <muster/core/error.hpp>

namespace muster::inline v0::ps::detail {

map_keeper::map_keeper(std::shared_ptr<any_store> store, std::string key, const shard_map& first,
                       clock::time_point until)
    : store_(std::move(store)),
      key_(std::move(key)),
      record_(store_, key_, {log_level::debug, "the shard map", "pushes and pulls go on, and no range moves"},
              leave(first, until)) {}

store_entry map_keeper::leave(const shard_map& first, clock::time_point until) {
  auto left = store_->compare_and_swap(key_, 0, first.encode(), until);
  if (left.swapped) left.now.value = first.encode();
  (void)read(left.now.value);  // throws for what is no map
  return std::move(left.now);
}

shard_map map_keeper::read(const std::string& text) const {
  auto map = shard_map::decode(text);
  if (map) return std::move(*map);
  throw data_error({store_->where()}, "the value of '" + key_ +
                                          "' in the store is no shard map (another version of muster or another "
                                          "program wrote it); give each job its own store");
}

std::optional<shard_map> map_keeper::take() {
  const auto entry = record_.take();
  if (!entry) return std::nullopt;
  auto map = read(entry->value);
  version_ = entry->version;
  map_version_ = map.version;
  return map;
}

void map_keeper::swap(std::uint64_t expected, const shard_map& next) {
  constexpr std::uint64_t nothing_there = 0;  // never so: another was faster, and `take` gives that map
  record_.swap(map_version_ == expected ? version_ : nothing_there, next.encode());
}

}  // namespace muster::inline v0::ps::detail
