// Several sources combined into one, each with its proportion of every batch: `mix:a=0.7,b=0.3`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/data/record_source.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A source in a mixture, with its weight. A source's proportion is its weight divided by the sum of the weights.
struct mixture_part {
  any_record_source source;  ///< must have the same schema as all other parts
  double weight = 1;         ///< above 0; rounded to millionths
};

/// The records of several sources, concatenated: a record_source. A loader takes from every source its proportion. Up
/// to any position of an epoch each source is less than two samples ahead of or behind its proportion (with two sources
/// less than one sample). A global batch in which all proportions are whole numbers has exactly these numbers of
/// samples if the batches before it had. The order is a function of seed and epoch in every world, and a cursor is a
/// position in this order. An epoch has as many samples as all sources together. A source has epochs of its own, each
/// shuffled anew, and continues in an epoch of the mixture at its position at the end of the previous epoch: no record
/// of the source is used again before all its records were used. The digest covers the digests of the parts and the
/// weights. Parts with class names are renumbered like the first part. See with_classes().
class mixture : public detail::source_with_facts {
 public:
  /// Throws configuration_error if there are no parts, for weights that are not numbers from 0.000001 to 1000000000,
  /// for a source without records, and for sources of different schemas.
  /// `name` is the mixture's name in messages, by default the names of all parts with their weights.
  explicit mixture(std::vector<mixture_part> parts, std::string name = {});

  /// Returns the largest block_records() of the parts. See any_record_source.
  [[nodiscard]] std::uint64_t block_records() const noexcept;
  /// Writes the size of every record. See record_source.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  /// Reads records and labels with one call for each run of ids from the same part. See record_source.
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  /// Returns the record's place in its part. See any_record_source.
  [[nodiscard]] data_location location_of(sample_id id) const;
  /// Returns the state of the data on this host. See any_record_source.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;
  /// Returns true if the records in all parts are in memory in their final form.
  [[nodiscard]] bool mapped() const noexcept;
  /// Returns a view of the record. See mapped_record_source.
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const;

  /// Returns the order of the parts in an epoch.
  [[nodiscard]] const std::shared_ptr<const detail::proportions>& mixture_order() const noexcept;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};
static_assert(mapped_record_source<mixture>);

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::mixture;
using data::mixture_part;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
