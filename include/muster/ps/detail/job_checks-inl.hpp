#pragma once

#include <muster/ps/job_checks.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/comm_settings.hpp>
#include <muster/comm/group/words.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/core/text.hpp>
#include <muster/elastic/rank_comparison.hpp>
#include <muster/ps/ps_settings.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {
// Throws configuration_error if pushes to these tables cannot use this codec.
inline void check_codec(const compression& codec, const std::vector<table_spec>& tables) {
  if (codec.method == compression_method::powersgd) {
    throw configuration_error("--compress " + to_string(codec) +
                              " cannot be used with a parameter server (the ranks multiply its matrices "
                              "together); use another method");
  }
  if (!any_codec(codec).is_biased()) return;
  for (const auto& table : tables) {
    if (table.size != 0 || table.leases) continue;
    throw configuration_error(
        "--compress " + to_string(codec) + " cannot be used with the sparse table '" + table.name +
        "' (sparse tables have no residuals for the codec's error); use float16, bfloat16 or qsgd8");
  }
}

// Returns a text with a digest of some initial values, or with the initial value of all elements.
inline std::string initial_text(const table_spec& table) {
  if (!table.initial_values || table.size == 0) return number_text(table.initial);
  constexpr std::size_t samples = 64;
  digest all;
  for (std::size_t k = 0; k < samples; ++k) {
    float value = 0;
    table.initial_values(table.size * k / samples, std::span(&value, 1));
    all.add(std::uint64_t{std::bit_cast<std::uint32_t>(value)});
  }
  return "values with the digest " + muster::detail::hex(all.value());
}

MUSTER_INLINE std::vector<compared_property> properties_of(const job_options& options, const table_layout& layout) {
  std::vector<compared_property> all;
  for (const auto& table : options.tables) {
    all.push_back({"table '" + table.name + "'",
                   std::to_string(table.size) + " elements of width " + std::to_string(table.width) + ", update " +
                       table.update + ", initially " + initial_text(table) + (table.leases ? ", leases" : "") +
                       ", at most " + std::to_string(table.most_rows) + " rows of age " +
                       std::to_string(table.most_age)});
  }
  all.push_back({"the number of servers", options.colocated ? "colocated" : std::to_string(options.servers)});
  all.push_back({"the number of hot spares", std::to_string(options.standby)});
  all.push_back({"the number of replicas", std::to_string(options.replicas)});
  all.push_back({"the consistency", to_string(options.consistency_model)});
  all.push_back({"the compression", to_string(options.compress)});
  all.push_back({"the number of ranges", std::to_string(layout.ranges())});
  all.insert(all.end(), options.properties.begin(), options.properties.end());
  return all;
}

MUSTER_INLINE void refuse_transport(const transport_abilities& abilities) {
  throw configuration_error("transport " + std::string(abilities.name) +
                            " cannot carry a parameter server (it has no receives from any source); use shm, tcp, "
                            "hierarchical, local or mpi");
}

MUSTER_INLINE void check_options(const job_options& options, int rank_count) {
  check_codec(options.compress, options.tables);
  const bool no_rank_works = options.servers + options.standby >= rank_count;
  if (!options.colocated && (options.servers < 1 || options.standby < 0 || no_rank_works)) {
    throw configuration_error(
        "of " + std::to_string(rank_count) + " ranks " + std::to_string(options.servers + options.standby) +
        " cannot serve (at least one rank serves and one works); " +
        (rank_count < 2 ? "start two ranks or more" : "choose --servers from 1 to " + std::to_string(rank_count - 1)));
  }
}

MUSTER_INLINE void check_ranks(group& ranks, const job_options& options, const table_layout& layout) {
  check_options(options, ranks.size());
  if (!ranks.abilities().any_source) refuse_transport(ranks.abilities());
  muster::detail::require_equal_properties(ranks, properties_of(options, layout));
}

MUSTER_INLINE void check_remote(const settings& configuration, const job_options& options) {
  const auto remote = configuration.integer(setting::remote_servers);
  if (remote == 0 || (!options.colocated && remote <= options.servers + options.standby)) return;
  throw configuration_error(configuration.origin(setting::remote_servers) + " is " + std::to_string(remote) + " (" +
                            (options.colocated ? "co-located servers are in the processes of the workers"
                                               : "there are fewer servers and hot spares") +
                            "); choose --servers " + std::to_string(remote));
}

}}}  // namespace muster::v0::ps::detail
