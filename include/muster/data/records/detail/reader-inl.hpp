#pragma once

#include <muster/data/records/reader.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/data/cache/lru_cache.hpp>
#include <muster/data/order/proportions.hpp>
#include <muster/data/parallel.hpp>
#include <muster/data/records/layout.hpp>
#include <muster/data/records/manifest.hpp>
#include <muster/data/records/manifest_file.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace format = detail::records;

struct record_files::state : detail::source_facts {
  using blocks = detail::lru_cache<std::vector<std::byte>>;
  struct opened {
    std::shared_ptr<const format::shard> shard;
    sample_id first = 0;
  };

  // Opens the files of a manifest (an empty manifest: the file at `path`). Files that `before` has open are shared with
  // `before`.
  state(const std::string& where, const record_read_options& chosen, std::shared_ptr<detail::remote_folder> server,
        detail::manifest_content content, const state* before = nullptr)
      : path(where),
        options(chosen),
        remote(std::move(server)),
        statistics(std::move(content.statistics)),
        cache(chosen.block_cache_bytes) {
    name = (options.shards ? "shards:" : remote ? "" : "records:") + where;
    const std::vector<manifest_entry>& entries = content.entries;
    for (const auto& entry : entries) paths.push_back((std::filesystem::path(path) / entry.file).string());
    if (paths.empty()) paths.push_back(path);
    shards.resize(paths.size());
    open_shards(entries, before);
    list_shards(content);
    if (!options.shards) digest = digest_of_records();
  }

  // Opens the files that are present. Files on a server are opened through it.
  void open_shards(const std::vector<manifest_entry>& entries, const state* before) {
    const std::vector<std::size_t> numbers = expect_ends(entries, before);
    const auto open = [&](std::size_t i) -> std::shared_ptr<const format::shard> {
      if (before != nullptr && i < before->shards.size() && before->shards[i].shard != nullptr)
        return before->shards[i].shard;
      if (remote) return std::make_shared<const format::shard>(paths[i], remote, numbers[i], entries[i].bytes);
      std::error_code ignored;
      if (options.local && !std::filesystem::exists(paths[i], ignored)) return nullptr;
      return std::make_shared<const format::shard>(paths[i]);
    };
    detail::parallel_for(paths.size(), options.threads, [&](std::size_t i) {
      shards[i].shard = open(i);
      if (shards[i].shard) shards[i].shard->file.forget();  // opening reads all tables, which need not remain mapped
    });
  }

  // Sets the places, schema and codec of the records. With shards also sets the order and the digest, which depend on
  // the manifest alone.
  void list_shards(const detail::manifest_content& content) {
    const std::vector<manifest_entry>& entries = content.entries;
    const format::shard* first = nullptr;
    muster::digest digest_of_entries;
    std::vector<std::uint64_t> counts;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      shards[i].first = size;
      if (options.shards) {
        digest_of_entries.add(entries[i].digest).add(entries[i].records);
        counts.push_back(entries[i].records);
      }
      if (shards[i].shard == nullptr) {
        size += entries[i].records;
        continue;
      }
      const format::shard& shard = *shards[i].shard;
      if (first == nullptr) first = &shard;
      if (!entries.empty()) check_entry(entries[i], shard);
      if (!(shard.schema == first->schema)) {
        throw data_error({shard.path}, "has records of another schema (" + to_string(shard.schema) + ") than " +
                                           first->path + " (" + to_string(first->schema) + "); convert the records");
      }
      size += shard.footer.records;
      compressed = compressed || shard.compressed();
      if (shard.compressed()) codec = &format::require_block_codec(shard.path);
    }
    if (first != nullptr) schema = first->schema;
    if (!options.shards) return;
    if (first == nullptr) schema = schema_of_manifest(content, path);
    digest = digest_of_entries.value();
    order = std::make_shared<const detail::proportions>(counts, counts);
  }

  // Returns the digest of all records in their order, from their checksums in the files' tables.
  std::uint64_t digest_of_records() const {
    std::vector<std::uint64_t> sums(shards.size());
    detail::parallel_for(shards.size(), options.threads, [&](std::size_t i) {
      const format::shard& shard = *shards[i].shard;
      for (std::uint64_t k = 0; k < shard.footer.records; ++k) {
        sums[i] += format::digest_term(shards[i].first + k, shard.crcs[k]);
      }
      shard.file.forget();
    });
    std::uint64_t total = 0;
    for (const std::uint64_t part : sums) total += part;
    return format::digest_of(total, size, schema);
  }

  // Returns the number of each file, for a folder on a server. Announces the reads of the starts and ends of the files
  // that will be opened.
  std::vector<std::size_t> expect_ends(const std::vector<manifest_entry>& entries, const state* before) const {
    std::vector<std::size_t> numbers;
    std::vector<detail::remote_part> parts;
    for (const auto& entry : entries) {
      if (!remote) break;
      numbers.push_back(remote->add(entry.file, entry.bytes, digest_of(entry)));
      if (before != nullptr && numbers.size() <= before->shards.size()) continue;
      parts.push_back({numbers.back(), 0, 1});
      parts.push_back({numbers.back(), std::max<std::uint64_t>(entry.bytes, 1) - 1, 1});
    }
    if (remote) remote->expect(parts);
    return numbers;
  }
  static std::uint64_t digest_of(const manifest_entry& entry) {
    return muster::digest().add(entry.digest).add(entry.records).value();
  }

  detail::manifest_content contents() const { return contents(path, remote); }
  static detail::manifest_content contents(const std::string& path,
                                           const std::shared_ptr<detail::remote_folder>& remote) {
    const std::string manifest = detail::path_of_manifest(path);
    auto found =
        remote ? detail::contents_of(remote->text(std::string(manifest_name)), manifest) : detail::read_contents(path);
    if (found.entries.empty()) throw data_error({manifest}, "lists no files yet; write records into the folder");
    return found;
  }

  static void check_entry(const manifest_entry& entry, const format::shard& shard) {
    const format::file_footer& footer = shard.footer;
    if (entry.records == footer.records && entry.bytes == footer.file_bytes && entry.digest == footer.digest) return;
    throw data_error({shard.path}, "does not match the manifest (the file has " + std::to_string(footer.records) +
                                       " records and " + std::to_string(footer.file_bytes) +
                                       " bytes, and the manifest lists " + std::to_string(entry.records) + " and " +
                                       std::to_string(entry.bytes) + "); restore it from a copy");
  }

  // Returns the schema for a rank that has none of the files.
  static record_schema schema_of_manifest(const detail::manifest_content& content, const std::string& path) {
    if (!content.schema.empty()) return format::schema_from_json(content.schema, path, 0);
    throw data_error({path}, "has none of the files in its manifest (a file is required for the schema); copy a file");
  }

  const opened& shard_of(sample_id id) const {
    const opened& at =
        shards.size() == 1 ? shards.front() : *(std::ranges::upper_bound(shards, id, {}, &opened::first) - 1);
    if (at.shard != nullptr) return at;
    throw data_error(
        {paths[static_cast<std::size_t>(&at - shards.data())]},
        "is missing at this rank (other ranks read its records); copy it, or read the records at another rank");
  }

  // A record, and the owner of its memory. A null pointer means that the record cannot be used.
  struct found {
    const std::byte* data = nullptr;
    std::size_t size = 0;
    blocks::block block{};
  };
  found find(const opened& file, std::uint64_t record) const {
    const format::shard& shard = *file.shard;
    found result;
    if (!shard.compressed()) {
      const auto place = shard.place(record, 0);
      result.data = shard.bytes(place.begin, place.size, result.block).data();
      result.size = place.size;
    } else {
      const std::size_t block = shard.block_of(record);
      const auto place = shard.place(record, shard.blocks[block].first_record);
      const auto number = static_cast<std::uint64_t>(&file - shards.data());
      const std::uint64_t key = number << 40 | block;
      result.size = place.size;
      result.block = cache.get(key, [&] { return decompress(shard, block); });
      if (result.block != nullptr) result.data = result.block->data() + place.begin;
    }
    return result;
  }
  // Returns true if `bytes` match the record's checksum, or if checks are disabled.
  bool matches_checksum(const format::shard& shard, std::uint64_t record, std::span<const std::byte> bytes) const {
    return options.checks == record_checks::never || shard.crc_of(record, bytes) == shard.crcs[record];
  }
  void prefetch(sample_id id) const {
    if (remote) return;
    const auto& at = shard_of(id);
    const auto place = at.shard->place(id - at.first, 0);
    detail::fetch_ahead(at.shard->payload.subspan(place.begin, place.size));
  }

  blocks::block decompress(const format::shard& shard, std::size_t block) const {
    const auto place = shard.place_in_payload(shard.blocks[block].first_record);
    auto raw = std::make_shared<std::vector<std::byte>>(shard.blocks[block].raw_bytes);
    raw->reserve(1);  // not null even if all records are empty: null means that the block cannot be used
    blocks::block held;
    if (!codec->decompress(shard.bytes(place.begin, place.size, held), *raw)) return nullptr;
    return raw;
  }

  static data_error damage(const opened& file, std::uint64_t record) {
    const format::shard& shard = *file.shard;
    const std::uint64_t offset = shard.footer.payload_offset + shard.place_in_payload(record).begin;
    return data_error({shard.path, 0, 0, offset},
                      "record " + std::to_string(record) +
                          " does not match its checksum (it was damaged on the disk or in transfer); restore the file "
                          "from a copy");
  }

  std::string path;
  record_read_options options;
  std::shared_ptr<detail::remote_folder> remote;  // null for local files
  std::vector<std::string> paths;
  std::vector<opened> shards;  // null: the file is missing at this rank
  std::shared_ptr<const detail::proportions> order;
  std::string statistics;  // the manifest's statistics note
  bool compressed = false;
  const format::block_codec* codec = nullptr;
  mutable blocks cache;
};

MUSTER_INLINE record_files::record_files(std::shared_ptr<const state> opened) noexcept : state_(std::move(opened)) {
  facts_ = state_.get();
}

MUSTER_INLINE record_files::record_files(const std::string& path, const record_read_options& options) {
  std::error_code ignored;
  auto remote = detail::open_remote_folder(path, options.http);
  const bool folder = remote != nullptr || std::filesystem::is_directory(path, ignored);
  if ((options.follow || options.shards) && !folder) {
    throw configuration_error("'" + path + "' cannot be " + (options.follow ? "followed" : "read by shards") +
                              " (it is not a folder of records); name a folder, or use records:FILE");
  }
  const std::string shown =
      remote ? path.substr(0, path.find('?')) : path;  // without a query, which may be a signature
  auto content = folder ? state::contents(shown, remote) : detail::manifest_content();
  *this = record_files(std::make_shared<const state>(shown, options, std::move(remote), std::move(content)));
}

MUSTER_INLINE held_shards record_files::available_shards() const {
  held_shards held{.weight = state_->options.weight};
  if (!state_->options.shards) return held;
  for (std::size_t i = 0; i < state_->shards.size(); ++i) {
    held.names.push_back(std::filesystem::path(state_->paths[i]).filename().string());
    held.available.push_back(state_->shards[i].shard != nullptr ? 1 : 0);
  }
  return held;
}
MUSTER_INLINE const std::shared_ptr<const detail::proportions>& record_files::mixture_order() const noexcept {
  return state_->order;
}

MUSTER_INLINE std::uint64_t record_files::follows_every() const noexcept { return state_->options.every; }

MUSTER_INLINE std::uint64_t record_files::newest() const {
  if (!state_->options.follow) return 0;
  std::uint64_t records = 0;
  for (const manifest_entry& entry : state_->contents().entries) records += entry.records;
  return records;
}

MUSTER_INLINE record_files record_files::version(std::uint64_t records) const {
  constexpr seconds patience{10};
  constexpr std::chrono::milliseconds between_looks{100};
  const auto start = clock::now();
  for (;;) {
    detail::manifest_content content = state_->contents();
    std::uint64_t total = 0;
    std::size_t count = 0;
    while (count < content.entries.size() && total < records) total += content.entries[count++].records;
    if (total == records) {
      content.entries.resize(count);
      return record_files(std::make_shared<const state>(state_->path, state_->options, state_->remote,
                                                        std::move(content), state_.get()));
    }
    if (total > records || seconds_since(start) > patience.count()) {
      throw data_error({state_->path}, "has no version of " + std::to_string(records) + " records (its first " +
                                           std::to_string(count) + " files have " + std::to_string(total) +
                                           "); it is another folder, or was truncated: restore it from a copy");
    }
    std::this_thread::sleep_for(between_looks);
  }
}

MUSTER_INLINE std::optional<source_statistics> record_files::known_statistics() const {
  if (state_->statistics.empty()) return std::nullopt;
  auto found = detail::statistics_from_text(state_->statistics, state_->name);
  return found.records + found.left_out <= size() ? std::optional(std::move(found)) : std::nullopt;
}
MUSTER_INLINE bool record_files::mapped() const noexcept { return !state_->compressed && !state_->remote; }

MUSTER_INLINE std::uint64_t record_files::block_records() const noexcept {
  if (!state_->remote) return 0;
  constexpr std::uint64_t together = std::uint64_t{4} << 20;
  std::uint64_t bytes = 0;
  for (const auto& at : state_->shards) bytes += at.shard->footer.payload_bytes;
  return std::max<std::uint64_t>(together / std::max<std::uint64_t>(bytes / size(), 1), 1);
}

MUSTER_INLINE void record_files::expect(std::span<const sample_id> ids) const {
  if (!state_->remote) return;
  std::vector<detail::remote_part> parts;
  for (const sample_id id : ids) {
    const auto& at = state_->shard_of(id);
    const auto place = at.shard->place_in_payload(id - at.first);
    parts.push_back({at.shard->number, at.shard->footer.payload_offset + place.begin, place.size});
  }
  state_->remote->expect(parts);
}

MUSTER_INLINE void record_files::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto& at = state_->shard_of(ids[k]);
    const format::shard& shard = *at.shard;
    const std::uint64_t record = ids[k] - at.first;
    const std::uint64_t first = shard.compressed() ? shard.blocks[shard.block_of(record)].first_record : 0;
    out[k] = shard.place(record, first).size;
  }
}

MUSTER_INLINE void record_files::read(std::span<const sample_id> ids, const record_rows& rows,
                                      std::vector<bad_record>* bad) const {
  const std::size_t labels = schema().labels.size();
  std::byte* output = rows.bytes.data();
  if (!rows.bytes.empty()) expect(ids);
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto& at = state_->shard_of(ids[k]);
    const std::uint64_t record = ids[k] - at.first;
    bool usable = true;
    if (!rows.bytes.empty()) {
      if (!state_->compressed && k + 1 < ids.size() && ids[k + 1] != ids[k] + 1) state_->prefetch(ids[k + 1]);
      const state::found found = state_->find(at, record);
      // The copy is checked: it is in the processor's cache, and the caller receives exactly the checked bytes.
      if (found.data != nullptr && found.size != 0) std::memcpy(output, found.data, found.size);
      usable = found.data != nullptr && state_->matches_checksum(*at.shard, record, {output, found.size});
      if (!usable) {
        const data_error damage = state::damage(at, record);
        if (bad == nullptr) throw damage;
        bad->push_back({ids[k], damage.where(), damage.problem()});
        std::memset(output, 0, found.size);
      }
      output += found.size;
    }
    if (rows.labels.empty()) continue;
    const auto stored = std::span(at.shard->labels + record * labels, labels);
    const auto into = rows.labels.subspan(k * labels, labels);
    usable ? static_cast<void>(std::copy(stored.begin(), stored.end(), into.begin()))
           : std::fill(into.begin(), into.end(), 0.0f);
  }
}

MUSTER_INLINE std::span<const std::byte> record_files::view(sample_id id) const {
  const auto& at = state_->shard_of(id);
  const state::found found = state_->find(at, id - at.first);
  if (found.data == nullptr || !state_->matches_checksum(*at.shard, id - at.first, {found.data, found.size}))
    throw state::damage(at, id - at.first);
  return {found.data, found.size};
}

MUSTER_INLINE std::vector<record_file_info> record_files::files() const {
  std::vector<record_file_info> list;
  for (const auto& [shard, first] : state_->shards) {
    if (shard == nullptr) continue;
    list.push_back({shard->path, first, shard->footer.records, shard->footer.file_bytes, shard->footer.payload_bytes,
                    shard->footer.blocks, shard->header.alignment});
  }
  return list;
}

}}}  // namespace muster::v0::data
