#pragma once

#include <muster/data/records/writer.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <utility>

#include <muster/core/atomic_file.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>
#include <muster/data/records/layout.hpp>
#include <muster/data/records/manifest_file.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace format = detail::records;

struct record_file_writer::state {
  state(std::string file_path, record_schema record_type, const record_file_options& chosen)
      : path(std::move(file_path)), schema(std::move(record_type)), options(chosen), out(path) {
    format::require_little_endian(path);
    if (options.alignment == 0) options.alignment = schema.record_bytes() >= 1024 ? 64 : 8;
    if (!std::has_single_bit(options.alignment) || options.alignment > format::page) {
      refuse("an alignment of " + std::to_string(options.alignment) + " is not possible",
             "choose a power of two up to 4096");
    }
    if (options.block_bytes > format::most_raw_bytes) {
      refuse("blocks of " + std::to_string(options.block_bytes) + " bytes are too large", "use at most 1 GiB");
    }
    if ((schema.form == record_form::fixed) != (schema.record_bytes() != 0)) {
      refuse("the schema '" + to_string(schema) + "' is not possible",
             "give fixed records fields, and other forms none");
    }
    if (options.block_bytes != 0) codec = &format::require_block_codec(path);
    write_header();
  }

  [[noreturn]] void refuse(const std::string& problem, const std::string& suggestion) const {
    throw configuration_error("cannot write records to '" + path + "' (" + problem + "); " + suggestion);
  }

  void pad_to(std::uint64_t alignment) {
    static constexpr std::byte zeros[format::page]{};
    out.write(std::span(zeros).first(muster::detail::round_up(out.size(), alignment) - out.size()));
  }

  void write_header() {
    const std::string json = format::schema_to_json(schema);
    format::file_header header{};
    std::memcpy(header.magic, format::header_magic, sizeof header.magic);
    header.version = format::format_version;
    header.flags = codec != nullptr ? format::zstd_blocks : 0;
    header.alignment = options.alignment;
    header.schema_bytes = static_cast<std::uint32_t>(json.size());
    header.crc = crc32c(std::as_bytes(std::span(json)), crc32c(std::as_bytes(std::span(&header, 1))));
    out.write(std::as_bytes(std::span(&header, 1)));
    out.write(json);
    pad_to(format::page);
    payload_offset = out.size();
  }

  void append(std::span<const std::byte> record, std::span<const float> record_labels) {
    if (schema.form == record_form::fixed && record.size() != schema.record_bytes()) {
      refuse("record " + std::to_string(crcs.size()) + " has " + std::to_string(record.size()) +
                 " bytes, and the schema " + std::to_string(schema.record_bytes()),
             "append records of this schema");
    }
    if (record_labels.size() != schema.labels.size()) {
      refuse("record " + std::to_string(crcs.size()) + " has " + std::to_string(record_labels.size()) +
                 " labels, and the schema " + std::to_string(schema.labels.size()),
             "append records of this schema");
    }
    if (codec != nullptr) {
      if (record.size() > format::most_raw_bytes)
        refuse("a record exceeds the maximum block size", "do not compress it");
      const std::uint64_t begin = muster::detail::round_up(block.size(), options.alignment);
      if (!block.empty() && begin + record.size() > options.block_bytes) end_block();
      block.resize(muster::detail::round_up(block.size(), options.alignment));
      block.insert(block.end(), record.begin(), record.end());
      if (schema.form != record_form::fixed) ends.push_back(block.size());
    } else {
      pad_to(options.alignment);
      out.write(record);
      if (schema.form != record_form::fixed) ends.push_back(out.size() - payload_offset);
    }
    const std::uint32_t crc = crc32c(std::as_bytes(record_labels), crc32c(record));
    digest += format::digest_term(crcs.size(), crc);
    crcs.push_back(crc);
    labels.insert(labels.end(), record_labels.begin(), record_labels.end());
    bytes += record.size();
  }

  void end_block() {
    const auto compressed = codec->compress(block, options.level);
    out.write(compressed);
    blocks.push_back({first_of_block, out.size() - payload_offset, block.size()});
    first_of_block = crcs.size();
    block.clear();
  }

  record_file_summary commit() {
    if (crcs.empty()) refuse("there are no records", "append at least one");
    if (codec != nullptr && first_of_block != crcs.size()) end_block();
    format::file_footer footer{};
    footer.records = crcs.size();
    footer.payload_offset = payload_offset;
    footer.payload_bytes = out.size() - payload_offset;
    footer.blocks = blocks.size();
    footer.digest = format::digest_of(digest, crcs.size(), schema);
    pad_to(format::table_alignment);
    std::uint32_t crc = 0;
    const auto table = [&](const auto& values) {
      const auto content = std::as_bytes(std::span(values));
      crc = crc32c(content, crc);
      out.write(content);
    };
    table(labels);
    table(crcs);
    table(std::string(muster::detail::round_up(out.size(), 8) - out.size(), '\0'));
    table(ends);
    table(blocks);
    footer.tables_crc = crc;
    footer.file_bytes = out.size() + sizeof footer;
    std::memcpy(footer.magic, format::footer_magic, sizeof footer.magic);
    footer.crc = crc32c(std::as_bytes(std::span(&footer, 1)).first(offsetof(format::file_footer, crc)));
    out.write(std::as_bytes(std::span(&footer, 1)));
    out.commit();
    return {footer.records, footer.file_bytes, footer.digest};
  }

  std::string path;
  record_schema schema;
  record_file_options options;
  atomic_file out;
  const format::block_codec* codec = nullptr;
  std::uint64_t payload_offset = 0;
  std::uint64_t digest = 0;
  std::uint64_t bytes = 0;
  std::vector<float> labels;
  std::vector<std::uint32_t> crcs;
  std::vector<std::uint64_t> ends;
  std::vector<format::block_entry> blocks;
  std::vector<std::byte> block;  // uncompressed records that are not yet written
  std::uint64_t first_of_block = 0;
};

MUSTER_INLINE record_file_writer::record_file_writer(std::string path, record_schema schema,
                                                     const record_file_options& options)
    : state_(std::make_unique<state>(std::move(path), std::move(schema), options)) {}
MUSTER_INLINE record_file_writer::~record_file_writer() = default;
MUSTER_INLINE record_file_writer::record_file_writer(record_file_writer&&) noexcept = default;

MUSTER_INLINE void record_file_writer::append(std::span<const std::byte> record, std::span<const float> labels) {
  state_->append(record, labels);
}
MUSTER_INLINE std::uint64_t record_file_writer::uncompressed_bytes() const noexcept { return state_->bytes; }
MUSTER_INLINE std::uint64_t record_file_writer::table_bytes() const noexcept {
  return state_->labels.size() * sizeof(float) + state_->crcs.size() * sizeof(std::uint32_t) +
         state_->ends.size() * sizeof(std::uint64_t);
}
MUSTER_INLINE record_file_summary record_file_writer::commit() { return state_->commit(); }

namespace detail {

// Returns the part of a file name that is common to all files of a work. A writer uses it to find files that a killed
// writer has not noted.
inline std::string mark_of(const std::string& notes) {
  return "-" + muster::detail::hex(digest().add(std::filesystem::path(notes).filename().string()).value(), 8);
}

// Returns a file name that no other writer in the folder has chosen, on any host.
inline std::string fresh_name(std::optional<std::uint32_t> shard, const std::string& notes) {
  std::random_device random;
  const auto kind = shard ? muster::detail::printed("shard-%05u", *shard) : "records";
  return kind + (notes.empty() ? "-" : mark_of(notes)) + muster::detail::printed("%08x%08x.muster", random(), random());
}

// Removes the files of a work, except the files in the manifest and the pending files.
inline void remove_files_of(const std::string& notes, const std::vector<manifest_entry>& listed,
                            const std::vector<manifest_entry>& pending) {
  std::error_code trouble;
  const auto is_in = [](const std::string& name, const std::vector<manifest_entry>& all) {
    return std::ranges::find(all, name, &manifest_entry::file) != all.end();
  };
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(notes).parent_path(), trouble)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".muster") || name.find(mark_of(notes)) == std::string::npos) continue;
    if (!is_in(name, listed) && !is_in(name, pending)) std::filesystem::remove(entry.path(), trouble);
  }
}

// Notes of a work that can be resumed. They have the format of a manifest: each file is followed by an entry whose
// `records` field holds the position that the files reach.
inline constexpr const char* notes_prefix = ".unfinished-";
inline constexpr const char* place_entry = "place";

inline std::string name_of_notes(std::uint64_t work) { return notes_prefix + muster::detail::hex(work); }

inline std::string path_in(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

}  // namespace detail

MUSTER_INLINE record_set_writer::record_set_writer(std::string folder, record_schema schema,
                                                   const record_file_options& options, std::uint64_t file_bytes)
    : folder_(std::move(folder)), schema_(std::move(schema)), options_(options), file_bytes_(file_bytes) {
  std::error_code code;
  std::filesystem::create_directories(folder_, code);
  if (!std::filesystem::is_directory(folder_)) {
    throw configuration_error("cannot create the folder '" + folder_ + "' (" +
                              (code ? code.message() : "a file with this name exists") + "); choose another folder");
  }
  muster::detail::remove_abandoned_files(folder_);
  const auto entries = detail::read_contents(folder_, false).entries;
  if (entries.empty()) return;
  const format::shard existing(detail::path_in(folder_, entries.front().file));
  if (existing.schema == schema_) return;
  throw data_error({folder_}, "has records of another schema (" + to_string(existing.schema) +
                                  ", and the new records are " + to_string(schema_) +
                                  "); write the new records into another folder");
}
MUSTER_INLINE record_set_writer::~record_set_writer() {
  std::error_code ignored;
  if (!notes_ || !resumable_) {
    discard();
  } else if (pending_.empty()) {  // otherwise the next writer of the same work continues with the files
    std::filesystem::remove(notes_->path(), ignored);
  }
}

MUSTER_INLINE void record_set_writer::discard() noexcept {
  std::error_code ignored;
  for (const manifest_entry& entry : pending_) std::filesystem::remove(detail::path_in(folder_, entry.file), ignored);
  pending_.clear();
  if (notes_) std::filesystem::remove(notes_->path(), ignored);
  notes_.reset();
}

MUSTER_INLINE void record_set_writer::require_alone() {
  alone_ = true;
  require_no_others(detail::read_contents(folder_, false).entries);
}

MUSTER_INLINE void record_set_writer::require_no_others(const std::vector<manifest_entry>& existing) {
  if (!alone_ || existing.empty() || existing == committed_) return;
  discard();
  throw configuration_error("'" + folder_ +
                            "' has records already (another writer has added them meanwhile, and nothing is "
                            "overwritten); choose another folder, or add to it with --append");
}
MUSTER_INLINE void record_set_writer::require_division(const std::string& rule_and_shards) {
  division_ = rule_and_shards;
  require_same_division(detail::read_contents(folder_, false));
}

MUSTER_INLINE void record_set_writer::require_same_division(const detail::manifest_content& existing) {
  if (!division_ || existing.entries.empty()) return;
  const bool has_shards = existing.entries.front().file.starts_with("shard-");
  const bool is_unknown = existing.division.empty() && has_shards;  // of a muster that noted no division
  if (is_unknown ? !division_->empty() : existing.division == *division_) return;
  discard();
  const auto described = [](const std::string& rule, bool in_shards) {
    const auto blank = rule.rfind(' ');
    if (rule.empty()) return std::string(in_shards ? "in shards" : "in no shards");
    return "in " + rule.substr(blank + 1) + " shards by " + rule.substr(0, blank);
  };
  throw configuration_error("cannot add to '" + folder_ + "' (its records are " +
                            described(existing.division, has_shards) + ", and the new records " +
                            described(*division_, false) +
                            "); divide the new records in the same way, or write all into another folder");
}
MUSTER_INLINE record_set_writer::record_set_writer(record_set_writer&&) noexcept = default;

MUSTER_INLINE bool record_set_writer::is_unfinished(const std::string& folder, std::uint64_t work) {
  std::error_code ignored;
  return std::filesystem::exists(detail::path_in(folder, detail::name_of_notes(work)), ignored);
}

MUSTER_INLINE std::uint64_t record_set_writer::resume(std::optional<std::uint64_t> work) {
  namespace fs = std::filesystem;
  resumable_ = work.has_value();
  std::random_device random;
  const std::string name = detail::name_of_notes(work.value_or((std::uint64_t{random()} << 32U) + random()));
  notes_ = std::make_unique<detail::manifest_file>(detail::path_in(folder_, name), false);
  const auto committed = detail::read_contents(folder_, false).entries;
  std::error_code ignored;
  for (const fs::directory_entry& candidate : fs::directory_iterator(folder_, ignored)) {
    const std::string candidate_name = candidate.path().filename().string();
    if (!muster::detail::matches_name_pattern(candidate_name, std::string(detail::notes_prefix) + "%") ||
        candidate_name == name)
      continue;
    try {
      const detail::manifest_file other_notes(candidate.path().string(), false);
      // Read here, because the other writer may just have committed.
      const auto listed = detail::read_contents(folder_, false).entries;
      for (const manifest_entry& entry : other_notes.entries()) {
        const bool is_listed = std::ranges::find(listed, entry.file, &manifest_entry::file) != listed.end();
        if (entry.file == detail::place_entry || is_listed) continue;
        fs::remove(detail::path_in(folder_, entry.file), ignored);
      }
      detail::remove_files_of(candidate.path().string(), listed, {});
      fs::remove(candidate.path(), ignored);
    } catch (const error&) {  // another process has this work open, or its notes are damaged: leave it unchanged
    }
  }
  for (const manifest_entry& entry : notes_->entries()) {
    if (entry.file == detail::place_entry) {
      place_ = entry.records;
    } else {
      pending_.push_back(entry);
      resumed_ += entry.records;
    }
  }
  detail::remove_files_of(notes_->path(), committed, pending_);
  // The previous writer was killed between writing the manifest and removing the notes: the work is complete.
  if (!pending_.empty() && std::ranges::find(committed, pending_.front()) != committed.end()) {
    committed_ = std::exchange(pending_, {});
  }
  return place_;
}

MUSTER_INLINE void record_set_writer::append(std::span<const std::byte> record, std::span<const float> labels,
                                             std::optional<std::uint32_t> shard) {
  constexpr std::uint64_t most_table_bytes = std::uint64_t{16} << 20;
  const bool by_size = file_bytes_ != std::numeric_limits<std::uint64_t>::max();
  auto& [name, writer] = open_files_[shard];
  if (writer && by_size && (writer->uncompressed_bytes() >= file_bytes_ || writer->table_bytes() >= most_table_bytes))
    finish(open_files_[shard]);
  if (!writer) {
    name = detail::fresh_name(shard, notes_ ? notes_->path() : "");
    writer.emplace(detail::path_in(folder_, name), schema_, options_);
  }
  writer->append(record, labels);
}
MUSTER_INLINE void record_set_writer::finish(open_file& file) {
  if (!file.writer) return;
  const record_file_summary summary = file.writer->commit();
  file.writer.reset();
  pending_.push_back({file.name, summary.records, summary.bytes, summary.digest});
  if (notes_) notes_->append(std::array{pending_.back(), manifest_entry{detail::place_entry, place_}});
}
MUSTER_INLINE void record_set_writer::next_file() {
  for (auto& [shard, file] : open_files_) finish(file);
}
MUSTER_INLINE void record_set_writer::commit() {
  next_file();
  if (!pending_.empty()) {
    detail::manifest_file manifest(detail::path_of_manifest(folder_), true);
    require_no_others(manifest.entries());
    const auto existing = detail::read_contents(folder_, false);
    require_same_division(existing);
    manifest.append(pending_);
    const bool in_shards = !open_files_.empty() && open_files_.rbegin()->first.has_value();
    if (in_shards && existing.schema.empty())  // required by ranks that have none of the files
      manifest.note(detail::schema_note + format::schema_to_json(schema_));
    if (in_shards && division_ && existing.entries.empty()) manifest.note(detail::division_note + *division_);
    committed_ = std::exchange(pending_, {});
  } else if (!notes_) {
    committed_.clear();
  }
  if (!notes_) return;
  std::error_code ignored;
  std::filesystem::remove(notes_->path(), ignored);
  notes_.reset();
}

}}}  // namespace muster::v0::data
