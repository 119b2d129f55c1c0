// What ranks compare before they train together, and while they do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/elastic/state.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Tells states apart; in blocks, so that it reads memory as fast as a checksum does.
[[nodiscard]] std::uint64_t digest_of_bytes(std::span<const std::byte> bytes);

/// Properties as one text, to be sent.
[[nodiscard]] std::string packed(const std::vector<state_property>& properties);
/// The first property that differs, as "the seed is 1 at rank 0 and 7 at rank 2"; empty where none does. Takes what
/// `packed` made, and the names of the two ranks.
[[nodiscard]] std::string first_difference(std::string_view one, const std::string& of_one, std::string_view other,
                                           const std::string& of_other);

/// Collective: throws mismatch_error at all ranks, once each has the reason. Otherwise a rank could see the end of
/// another one before.
[[noreturn]] void throw_mismatch(group& ranks, const std::string& text);

/// Collective. Throws mismatch_error at all ranks, with the first property that differs from those of rank 0.
void require_equal_properties(group& ranks, const std::vector<state_property>& mine);

/// A part that is another at this rank than at the rank of reference.
struct differing_part {
  std::size_t part;
  int rank;
};
/// Collective: for each of these parts, which all ranks have, the first rank where it is not that of `reference`.
[[nodiscard]] std::vector<differing_part> differing_parts(group& ranks, std::span<const state_part> parts,
                                                          int reference);

/// Collective: what ranks that begin together with a state each do. Throws mismatch_error at all ranks where their
/// properties differ. The position and the replicated parts become rank 0's, as do the parameters of ranks with weights
/// of their own before the first step; one warning names the first part that was another.
void begin_together(group& ranks, state& of);

/// Collective. Throws mismatch_error at all ranks where the parameters that all have, or what an optimizer keeps of
/// them, are not those of rank 0.
void require_equal_replicas(group& ranks, const state& of);

}}}  // namespace muster::v0::detail
