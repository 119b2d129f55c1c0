#pragma once

#include <muster/elastic/place_shards.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/scatter.hpp>
#include <muster/comm/group/words.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/core/wire.hpp>
#include <muster/data/records/layout.hpp>
#include <muster/data/records/manifest.hpp>
#include <muster/data/records/manifest_file.hpp>
#include <muster/data/records/shards.hpp>
#include <muster/data/records/writer.hpp>

namespace muster { inline namespace v0 {
namespace detail {

namespace fs = std::filesystem;

inline std::string shard_file_of(int rank, std::uint64_t set) {
  return detail::printed("shard-%05d-%016llx.muster", rank, static_cast<unsigned long long>(set));
}

// Creates the folder if necessary. Returns true if the folder has the manifest of this set of shards, and this rank's
// shard unless that is empty. Throws configuration_error if the folder has other records.
inline bool is_placed(const fs::path& folder, const std::string& own, std::uint64_t set) {
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  const auto entries = data::detail::read_contents(folder.string(), false).entries;
  const std::string end = shard_file_of(0, set).substr(shard_file_of(0, set).rfind('-'));
  for (const data::manifest_entry& entry : entries) {
    if (entry.file.ends_with(end)) continue;
    throw configuration_error("'" + folder.string() +
                              "' has other records already (nothing is overwritten); choose another folder");
  }
  const bool is_empty = std::ranges::find(entries, own, &data::manifest_entry::file) == entries.end();
  return !entries.empty() && (is_empty || fs::exists(folder / own, ignored));
}

// Writes the records of a message.
inline void append(data::record_file_writer& writer, std::string_view message, std::size_t labels_each) {
  detail::wire_reader reader(std::as_bytes(std::span(message)));
  std::vector<float> labels(labels_each);
  while (reader.good() && !reader.rest().empty()) {
    for (float& label : labels) label = reader.number<float>();
    const std::string_view record = reader.text();
    writer.append(std::as_bytes(std::span(record)), labels);
  }
}

// Returns the message for each rank, made of the records of a run that begins with `first`.
inline std::vector<std::string> messages_of(const data::detail::record_run& run, sample_id first,
                                            const data::shard_rule& rule) {
  std::vector<detail::wire_writer> writers(rule.shards());
  const std::size_t labels_each = run.sizes.empty() ? 0 : run.labels.size() / run.sizes.size();
  std::size_t at = 0;
  for (std::size_t k = 0; k < run.sizes.size(); at += run.sizes[k++]) {
    const auto record = std::span(run.bytes).subspan(at, run.sizes[k]);
    const auto labels = std::span(run.labels).subspan(k * labels_each, labels_each);
    detail::wire_writer& writer = writers[rule(first + k, record, labels)];
    for (const float label : labels) writer.add(label);
    writer.add_text({reinterpret_cast<const char*>(record.data()), record.size()});
  }
  std::vector<std::string> messages;
  for (auto& each_writer : writers) messages.push_back(each_writer.take());
  return messages;
}

// Sends each rank its message. Returns false when no messages are left; the root passes none then.
inline bool scatter_messages(group& ranks, const std::vector<std::string>& messages, std::string& mine, int root) {
  const auto world = static_cast<std::size_t>(ranks.size());
  std::vector<std::uint64_t> sizes(world);
  for (std::size_t rank = 0; rank < messages.size(); ++rank) sizes[rank] = messages[rank].size();
  broadcast(ranks, sizes, root);
  const std::uint64_t longest = std::ranges::max(sizes);
  if (longest == 0) return false;
  std::vector<char> all(messages.empty() ? 0 : longest * world);
  for (std::size_t rank = 0; rank < messages.size(); ++rank)
    std::ranges::copy(messages[rank], all.begin() + static_cast<std::ptrdiff_t>(rank * longest));
  mine.resize(longest);
  scatter(ranks, all, mine, root);
  mine.resize(sizes[static_cast<std::size_t>(ranks.rank())]);
  return true;
}

inline void write_manifest(const fs::path& folder, const std::vector<data::manifest_entry>& entries,
                           const std::string& schema, int rank) {
  const fs::path temporary = folder / ("MANIFEST.rank-" + std::to_string(rank));  // ranks may share one folder
  fs::remove(temporary);
  {
    data::detail::manifest_file manifest(temporary.string(), true);
    manifest.append(entries);
    manifest.note(data::detail::schema_note + schema);
  }
  fs::rename(temporary, folder / data::manifest_name);
}

}  // namespace detail

MUSTER_INLINE void place_shards(group& ranks, const std::optional<data::any_record_source>& records,
                                const std::string& folder, const placement_options& options) {
  const bool is_root = ranks.rank() == options.root;
  const auto world = static_cast<std::uint32_t>(ranks.size());
  if (is_root && !records)
    throw configuration_error("rank " + std::to_string(options.root) + " has no data to cut; pass its records");
  std::optional<data::shard_rule> rule;
  if (is_root) rule.emplace(options.rule, world, records->schema(), records->size(), records->columns());
  std::uint64_t set = is_root ? digest().add(records->digest()).add(options.rule).add(std::uint64_t{world}).value() : 0;
  broadcast(ranks, set, options.root);
  const std::string own = detail::shard_file_of(ranks.rank(), set);
  if (allreduce(ranks, std::uint64_t{detail::is_placed(folder, own, set) ? 1u : 0u}, min) == 1) return;

  const std::string schema_text = detail::broadcast_string(
      ranks, is_root ? data::detail::records::schema_to_json(records->schema()) : "", options.root);
  const data::record_schema schema = data::detail::records::schema_from_json(schema_text, folder, 0);
  constexpr std::uint64_t run_bytes = std::uint64_t{2} << 20;
  constexpr std::uint64_t most_of_run = 4096;
  const std::uint64_t each =
      std::clamp<std::uint64_t>(run_bytes / std::max<std::size_t>(schema.record_bytes(), 1024), 1, most_of_run);
  data::record_file_writer writer((detail::fs::path(folder) / own).string(), schema);
  data::detail::record_run run;
  std::string mine;
  std::uint64_t written = 0;
  for (sample_id first = 0;; first += each) {
    std::vector<std::string> messages;
    if (is_root && first < records->size()) {
      run.read(*records, first, std::min(each, records->size() - first), false, false);
      messages = detail::messages_of(run, first, *rule);
    }
    if (!detail::scatter_messages(ranks, messages, mine, options.root)) break;
    detail::append(writer, mine, schema.labels.size());
    written += mine.size();
  }
  const data::record_file_summary summary = written != 0 ? writer.commit() : data::record_file_summary();
  std::vector<std::uint64_t> of_all(3 * std::size_t{world});
  allgather(ranks, std::array{summary.records, summary.bytes, summary.digest}, of_all);
  std::vector<data::manifest_entry> entries;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const auto* const facts = &of_all[3 * rank];
    if (facts[0] != 0)
      entries.push_back({detail::shard_file_of(static_cast<int>(rank), set), facts[0], facts[1], facts[2]});
  }
  detail::write_manifest(folder, entries, schema_text, ranks.rank());
}

}}  // namespace muster::v0
