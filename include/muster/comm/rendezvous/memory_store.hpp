// A store in the memory of one process, for ranks that are threads.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <muster/comm/rendezvous/store.hpp>

namespace muster::inline v0 {

/// Models `store`. Copies are the same store. A lease ends when it is destroyed, and not before: a thread does not die
/// alone.
class memory_store {
 public:
  memory_store() : self_(std::make_shared<contents>()) {}

  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until);
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, std::uint64_t lease = 0);
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until);
  [[nodiscard]] store_lease lease(seconds ttl, clock::time_point until);
  [[nodiscard]] std::string where() const { return "memory"; }

 private:
  class held_lease;
  struct item {
    store_entry entry;
    std::uint64_t lease = 0;
  };
  struct contents {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, item, std::less<>> items;
    std::map<std::uint64_t, bool> leases;
    std::uint64_t version = 0;
    std::uint64_t last_lease = 0;
  };

  std::shared_ptr<contents> self_;
};

static_assert(store<memory_store>);

}  // namespace muster::inline v0
