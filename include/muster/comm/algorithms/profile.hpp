// What was measured about the algorithms on one machine, kept in a file.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/comm/algorithms/chooser.hpp>

namespace muster::inline v0 {

class group;

/// The result of `muster-info --calibrate`: constants of the cost model and, for the collectives that were measured,
/// which algorithm was the fastest at which size. Good for the transport and the number of ranks it was measured with.
struct algorithm_profile {
  std::string transport;
  int ranks = 1;
  transport_costs costs;
  std::map<collective, std::vector<choices::row>> chosen;  ///< each list as `choices::rows` has it

  /// Whether it was measured on this transport with this number of ranks; the chooser ignores any other profile.
  [[nodiscard]] bool fits(const transport_abilities& used, int used_ranks) const noexcept {
    return transport == used.name && ranks == used_ranks;
  }
  /// The table of one collective; null when it was not measured.
  [[nodiscard]] const std::vector<choices::row>* rows(collective kind) const noexcept;
  /// Whether any choice is this algorithm.
  [[nodiscard]] bool has(algorithm how) const noexcept;

  /// As JSON: {"muster", "transport", "ranks", "constants": {"latency", "per_byte", "reduce_per_byte"}, "choices":
  /// {collective: [[below bytes, algorithm], ...]}}, seconds and bytes; the last row of a list has null for its bytes.
  [[nodiscard]] std::string to_json() const;
  /// Reads that back. Throws configuration_error that begins with `origin` and names what is wrong where.
  [[nodiscard]] static algorithm_profile parse(std::string_view json, const std::string& origin);
  /// The same from a file; the error names it, also when it cannot be read. `origin` names the setting that asks:
  /// "--profile".
  [[nodiscard]] static algorithm_profile load(const std::string& path, const std::string& origin);

  bool operator==(const algorithm_profile& other) const noexcept;
};

/// How long one collective took by one algorithm.
struct measured_time {
  collective kind = collective::none;
  muster::algorithm algorithm = muster::algorithm::automatic;
  std::size_t bytes = 0;  ///< of the whole buffer, as in `estimate`
  double seconds = 0;
};

/// Runs every algorithm of allreduce, broadcast, reduce, allgather, reduce_scatter and all_to_all, the transport's own
/// and registered ones too, over float32 from 64 bytes to 16 MiB in the transport's memory. The algorithms of one size
/// take turns, so that a slow moment of the machine counts for all; a call takes as long as its slowest rank, and the
/// median of all calls counts. Collective; the same times at every rank. Takes some seconds, more with more ranks than
/// cores. `muster-info --calibrate` is this; a program with algorithms of its own calls it and saves
/// `make_profile(...).to_json()`.
[[nodiscard]] std::vector<measured_time> calibrate(group& world);

/// The constants, none below 0, with which `estimate` comes closest to the times, relative to each: what lies between
/// 64 bytes and 16 MiB counts alike. `known` has what is not fitted: `next_message` and `ranks_a_core`. Times of what
/// has no model, native and registered algorithms, are left out.
[[nodiscard]] transport_costs fit_costs(std::span<const measured_time> times, int ranks,
                                        const transport_costs& known = {});

/// The profile those times make. Between two sizes that were measured the choice changes at their geometric mean. It
/// begins with the first of `algorithms_of` and changes only to one that is faster by more than 5 %, for less is noise.
[[nodiscard]] algorithm_profile make_profile(const transport_abilities& transport, int ranks,
                                             std::span<const measured_time> times);

}  // namespace muster::inline v0
