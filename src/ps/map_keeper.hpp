// The shard map in the store: the record that servers and workers agree on.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <muster/comm/bootstrap/store.hpp>
#include "protocol/shard_map.hpp"

#include "../comm/bootstrap/stores/watched_record.hpp"

namespace muster::inline v0::ps::detail {

/// One process' view of the map. `swap`, `take` and `take_failure` are its owner's thread's and do not block.
class map_keeper {
 public:
  /// Leaves `first` in the store under `key` unless a map is there, and begins with what is there. Throws
  /// timeout_error, and data_error for what is no map.
  map_keeper(std::shared_ptr<any_store> store, std::string key, const shard_map& first, clock::time_point until);
  map_keeper(const map_keeper&) = delete;
  map_keeper& operator=(const map_keeper&) = delete;

  /// A map that was not taken yet.
  [[nodiscard]] std::optional<shard_map> take();
  /// The map becomes `next` if it is of that version; then `take` gives what came of it, or `take_failure` says that
  /// nothing is known.
  void swap(std::uint64_t expected, const shard_map& next);
  [[nodiscard]] bool take_failure() noexcept { return record_.take_failure(); }
  /// Blocks: writes what `change` makes of the newest map, if it makes anything, until it succeeds.
  template <class Change>
  void change(const Change& change, clock::time_point until) {
    for (;;) {
      const auto before = store_->get(key_, until);
      const std::optional<shard_map> next = change(read(before.value));
      if (!next || store_->compare_and_swap(key_, before.version, next->encode(), until).swapped) return;
    }
  }

 private:
  [[nodiscard]] shard_map read(const std::string& text) const;
  [[nodiscard]] store_entry leave(const shard_map& first, clock::time_point until);

  std::shared_ptr<any_store> store_;
  std::string key_;
  // Of the map that was taken last: the store's version, and its own.
  std::uint64_t version_ = 0;
  std::uint64_t map_version_ = 0;
  muster::detail::watched_record record_;
};

}  // namespace muster::inline v0::ps::detail
