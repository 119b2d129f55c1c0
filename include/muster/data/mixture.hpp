// Several sources in one, each with its part of every batch: `mix:a=0.7,b=0.3`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/data/record_source.hpp>

namespace muster { inline namespace v0 {

/// One source of a mixture, and how much of it there is: in proportion to the weights of the others.
struct mixture_part {
  any_record_source source;  ///< of the schema that all have
  double weight = 1;         ///< above 0; in millionths, what is finer is rounded
};

/// The records of several sources, one source behind another: a record_source. A loader takes of every source its
/// proportion: up to any position of an epoch each is less than two samples ahead of its proportion or behind it (of
/// two sources less than one), and a global batch in which all proportions are whole numbers has exactly these, where
/// batches before it had. The order is a function of seed and epoch as always, whatever the world, and a cursor goes on
/// in it. An epoch has as many samples as all sources together; a source goes through epochs of its own, shuffled anew
/// each, and begins in an epoch of the mixture where it ended in the one before: none of its records is used again
/// before all of them were. Its digest is of those of the parts, and of the weights. Parts with names of classes
/// get the numbers of the first part; see with_classes().
class mixture : public detail::source_with_facts {
 public:
  /// Throws configuration_error for no parts, weights that are no numbers from 0.000001 to 1000000000, and sources of
  /// different schemas.
  explicit mixture(std::vector<mixture_part> parts);

  /// Of the part that has most; see any_record_source.
  [[nodiscard]] std::uint64_t block_records() const noexcept;
  /// See record_source.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  /// See record_source. Each part reads its own at once.
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  /// As any_record_source has them.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;
  /// Whether the records of all parts lie in memory as they are.
  [[nodiscard]] bool mapped() const noexcept;
  /// See mapped_record_source.
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const;

  /// The order of the parts.
  [[nodiscard]] const std::shared_ptr<const detail::proportions>& mixture_order() const noexcept;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};
static_assert(mapped_record_source<mixture>);

}}  // namespace muster::v0
