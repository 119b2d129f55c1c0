// Comparisons between ranks before they train together and during training.
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

/// Returns a digest by which ranks compare states. It works in blocks, so that it reads memory as fast as a checksum
/// does.
[[nodiscard]] std::uint64_t digest_of_bytes(std::span<const std::byte> bytes);

/// Returns the properties as one text, to be sent.
[[nodiscard]] std::string packed(const std::vector<state_property>& properties);
/// Returns the first property that differs, as "the seed is 1 at rank 0 and 7 at rank 2"; empty if none differs. The
/// texts are results of `packed`, and the names identify the two ranks.
[[nodiscard]] std::string first_difference(std::string_view first, const std::string& first_name,
                                           std::string_view second, const std::string& second_name);

/// Throws mismatch_error at all ranks; collective. The error is thrown once each rank has the text: a rank could
/// otherwise detect the end of another rank first.
[[noreturn]] void throw_mismatch(group& ranks, const std::string& text);

/// Compares properties; collective. Throws mismatch_error at all ranks, with the first property that differs from those
/// of rank 0.
void require_equal_properties(group& ranks, const std::vector<state_property>& mine);

/// A part whose value at this rank differs from the value at the reference rank.
struct differing_part {
  std::size_t part;
  int rank;
};
/// Returns, for each part that differs between ranks, the first rank whose value is not that of rank `reference`.
/// Collective; all ranks have these parts.
[[nodiscard]] std::vector<differing_part> differing_parts(group& ranks, std::span<const state_part> parts,
                                                          int reference);

/// Makes ranks begin together, each with its own state; collective. Throws mismatch_error at all ranks if their
/// properties differ. All ranks adopt the position and the replicated parts of rank 0, and before the first step also
/// its parameters if ranks have their own weights. A warning names the first part that differed.
void begin_together(group& ranks, state& target);

/// Compares replicas; collective. Throws mismatch_error at all ranks if the parameters, or an optimizer's arrays for
/// them, differ from those of rank 0.
void require_equal_replicas(group& ranks, const state& target);

}}}  // namespace muster::v0::detail
