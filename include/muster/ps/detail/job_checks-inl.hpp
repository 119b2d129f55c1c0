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

MUSTER_INLINE std::uint64_t memory_limit(const std::string& groups, const std::string& mounted) {
  std::uint64_t least = ~std::uint64_t{0};
  std::ifstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const auto path = line.find(':', line.find(':') + 1) + 1;  // NUMBER:CONTROLLERS:PATH, whose path may have colons
    const bool of_memory = line.find(":memory:") != std::string::npos;  // in version 1, each controller has a tree
    if (path == 0 || (!of_memory && !line.starts_with("0::"))) continue;
    const std::string tree = mounted + (of_memory ? "/memory" : "");
    for (std::string folder = line.substr(path);; folder.erase(folder.rfind('/'))) {
      if (folder == "/") folder.clear();
      std::ifstream file(tree + folder + (of_memory ? "/memory.limit_in_bytes" : "/memory.max"));
      if (std::uint64_t bytes = 0; file >> bytes) least = std::min(least, bytes);  // "max" is no limit
      if (folder.find('/') == std::string::npos) break;
    }
  }
  return least;
}

MUSTER_INLINE std::uint64_t bytes_of_server(const job_options& options, int server_count) {
  std::uint64_t all = 0;
  for (const auto& table : options.tables)
    all += sizeof(float) * table.size * (1 + (table.leases ? 0 : make_update(table.update)->states()));
  const auto servers = static_cast<std::uint64_t>(server_count);
  return all / servers * std::min<std::uint64_t>(servers, options.replicas + std::uint64_t{1});
}

MUSTER_INLINE void check_memory(int rank, std::uint64_t needed, std::uint64_t limit) {
  if (needed <= limit) return;
  throw configuration_error(
      "the server at rank " + std::to_string(rank) + " cannot hold its ranges (its share of the " +
      "tables and their replicas is " + std::to_string(needed >> 20) + " MiB, and its memory is " + "limited to " +
      std::to_string(limit >> 20) + " MiB); start more servers, use fewer replicas, or raise the limit");
}

// Compares the shares of the servers with their limits at all ranks, which then end with the same error.
inline void check_memory_of_servers(group& ranks, const job_options& options) {
  const auto limits = muster::detail::allgather_strings(ranks, std::to_string(memory_limit()));
  const int first = options.colocated ? 0 : ranks.size() - options.servers - options.standby;
  const auto needed = bytes_of_server(options, options.colocated ? ranks.size() : options.servers);
  for (int rank = first; rank < ranks.size(); ++rank) {
    const auto limit = parse_number<std::uint64_t>(limits[static_cast<std::size_t>(rank)]);
    if (limit) check_memory(rank, needed, *limit);
  }
}

MUSTER_INLINE void check_ranks(group& ranks, const job_options& options, const table_layout& layout) {
  check_options(options, ranks.size());
  if (!ranks.abilities().any_source) refuse_transport(ranks.abilities());
  muster::detail::require_equal_properties(ranks, properties_of(options, layout));
  check_memory_of_servers(ranks, options);
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
