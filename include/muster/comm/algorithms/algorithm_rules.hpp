// The algorithm that the user requests for each collective and size, as written in MUSTER_ALGORITHM.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/algorithms/algorithm.hpp>

namespace muster { inline namespace v0 {

/// A list of rules. A later rule overrides an earlier rule. Written as a comma list of
///
///     ring                                  every collective that has the algorithm, all sizes
///     broadcast:chain                       one collective, all sizes
///     allreduce:0-4k:recursive_doubling     one collective, from 0 to 4 KiB, the upper end not included
///     allreduce:4k-inf:ring                 the same collective, all larger sizes
///
/// A size is the bytes of the whole buffer: the larger of the input and the output of a call. The units `k`, `m`, `g`
/// (or `Ki`, `Mi`, `Gi`) are powers of 1024. The algorithm `auto` leaves the choice to the library. A value type: equal
/// lists compare equal, and copies share nothing.
class algorithm_rules {
 public:
  /// The upper end of a rule without an upper end: "inf".
  static constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

  /// An entry of the list. Sizes are bytes of the whole buffer.
  struct rule {
    collective kind = collective::none;                          ///< none: every collective that has the algorithm
    std::size_t low = 0;                                         ///< bytes, included
    std::size_t high = no_limit;                                 ///< bytes, not included
    muster::algorithm algorithm = muster::algorithm::automatic;  ///< automatic: the library's choice

    bool operator==(const rule&) const = default;
  };

  /// No rules: the library chooses.
  algorithm_rules() = default;
  /// One algorithm for every collective that has the algorithm; `automatic` makes no rule. Implicit, so that `algorithm
  /// = algorithm::ring` compiles.
  algorithm_rules(algorithm name);  // NOLINT(google-explicit-constructor)

  /// Parses the form above. Throws configuration_error that begins with `origin` ("--algorithm") and names the rule: an
  /// unknown collective or algorithm, a collective without that algorithm, a malformed size, an empty range.
  [[nodiscard]] static algorithm_rules parse(std::string_view text, std::string_view origin = "the algorithm rules");

  /// Returns the form above, "auto" when there are no rules; `parse` returns an equal list for it.
  [[nodiscard]] std::string to_string() const;

  /// Returns the algorithm of the last rule that matches; `automatic` when none does. `bytes` is the size of the whole
  /// buffer.
  [[nodiscard]] algorithm algorithm_for(collective kind, std::size_t bytes) const noexcept;

  /// Returns the rules in the order of the text; valid until the list changes or is destroyed.
  [[nodiscard]] std::span<const rule> rules() const noexcept { return rules_; }

  bool operator==(const algorithm_rules&) const = default;

 private:
  std::vector<rule> rules_;
};

/// Returns a rule in the form above.
[[nodiscard]] std::string to_string(const algorithm_rules::rule& rule);

/// Returns a size in bytes as rules write it, in the largest unit that divides it: "4k", "1m", "100".
[[nodiscard]] std::string format_bytes(std::size_t bytes);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
