// A store in a process's memory, for ranks that are threads.
#pragma once

#include <memory>
#include <string>

#include <muster/comm/bootstrap/store.hpp>

namespace muster { inline namespace v0 {

/// A store in memory. Copies refer to the same store. Threads end together, so the keys of a client stay as long as any
/// copy exists.
class memory_store final : public any_store {
 public:
  memory_store();

  [[nodiscard]] store_entry get(std::string_view key, clock::time_point until) override;
  store_swap compare_and_swap(std::string_view key, std::uint64_t expected, std::optional<std::string_view> value,
                              clock::time_point until, store_life life = store_life::of_store) override;
  [[nodiscard]] std::optional<store_entry> watch(std::string_view key, std::uint64_t known, clock::time_point until,
                                                 const std::stop_token& stop = {}) override;
  [[nodiscard]] std::string where() const override { return "memory"; }

 private:
  struct contents;

  std::shared_ptr<contents> self_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
