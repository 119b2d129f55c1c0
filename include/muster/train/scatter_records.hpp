// Shards for ranks that have no data of their own: one rank reads, all get their part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/data/placement.hpp>
#include <muster/data/record_source.hpp>

namespace muster::inline v0 {

namespace detail {
class shard_receiver;
}  // namespace detail

/// Part of another source's records, in the memory of this rank: a mapped_record_source whose copies share it.
class record_shard {
 public:
  [[nodiscard]] std::string_view name() const noexcept;
  [[nodiscard]] std::uint64_t size() const noexcept;
  /// Of the whole source and of which of its records are here.
  [[nodiscard]] std::uint64_t digest() const noexcept;
  [[nodiscard]] const record_schema& schema() const noexcept;
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  void read(std::span<const sample_id> ids, const record_rows& rows,
            std::vector<bad_record>* bad = nullptr) const noexcept;
  [[nodiscard]] bool mapped() const noexcept { return true; }
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const noexcept;

  /// The ids that its records have in the source they came from, ascending: record i here is ids()[i] there.
  [[nodiscard]] std::span<const sample_id> ids() const noexcept;

 private:
  friend class detail::shard_receiver;
  struct state;
  std::shared_ptr<const state> state_;
};
static_assert(mapped_record_source<record_shard>);

struct scatter_records_options {
  /// Which records go where; its weights, if any, are one a rank.
  placement_options how{};
  /// Records that stay together.
  std::uint64_t block = 1;
  /// Deadline and algorithm of the collectives it is made of.
  options calls{};
};

/// Collective: cuts the records of `source`, which the root alone has (others pass nullptr), into a shard for each rank
/// and sends it there. Needs the memory of the own shard and, at the root, of some megabytes a rank. Throws at every
/// rank when the root cannot read a record (data_error), has options that cannot be, or none of the source
/// (configuration_error); and what collectives throw.
[[nodiscard]] record_shard scatter_records(group& ranks, const any_record_source* source, int root = 0,
                                           const scatter_records_options& chosen = {});

}  // namespace muster::inline v0
