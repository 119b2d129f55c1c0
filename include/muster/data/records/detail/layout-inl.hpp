#pragma once

#include <muster/data/records/layout.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail::records {
inline constinit std::atomic<const block_codec*> codec{nullptr};

inline constexpr const char* copy_again = "copy it again or write it again";

inline constexpr const char* form_names[] = {"fixed", "bytes", "sparse"};

inline void set_block_codec(const block_codec* functions) noexcept { codec = functions; }

inline const block_codec& require_block_codec(const std::string& path) {
  const block_codec* const functions = codec;
  if (functions == nullptr) {
    throw configuration_error("'" + path + "' has compressed blocks (" + muster::detail::linked_without("zstd") +
                              "); link muster::zstd");
  }
  return *functions;
}

inline void require_little_endian(const std::string& path) {
  if constexpr (std::endian::native != std::endian::little) {
    throw configuration_error("'" + path +
                              "' cannot be used on this machine (the format is little-endian, and muster does not "
                              "convert the byte order); use a little-endian machine");
  }
}

inline std::string schema_to_json(const record_schema& schema) {
  nlohmann::ordered_json json;
  json["form"] = form_names[static_cast<std::size_t>(schema.form)];
  json["fields"] = nlohmann::ordered_json::array();
  for (const record_field& field : schema.fields) {
    json["fields"].push_back({{"name", field.name}, {"type", to_string(field.type)}, {"shape", field.shape}});
  }
  json["features"] = schema.features;
  json["labels"] = schema.labels;
  if (!schema.classes.empty()) json["classes"] = schema.classes;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

inline record_schema schema_from_json(std::string_view text, const std::string& path, std::uint64_t offset) {
  const auto fail = [&](const std::string& reason) {
    throw data_error({path, 0, 0, offset}, "has a schema that cannot be used (" + reason + "); " + copy_again);
  };
  record_schema schema;
  try {
    const auto json = nlohmann::json::parse(text);
    const auto form = std::find(std::begin(form_names), std::end(form_names), json.at("form").get<std::string>());
    if (form == std::end(form_names)) fail("its form is unknown");
    schema.form = static_cast<record_form>(form - std::begin(form_names));
    for (const auto& entry : json.at("fields")) {
      record_field field;
      field.name = entry.at("name").get<std::string>();
      const auto type = dtype_named(entry.at("type").get<std::string>());
      if (type == dtype::none) fail("the type of a field is unknown");
      field.type = type;
      field.shape = entry.at("shape").get<std::vector<std::uint64_t>>();
      schema.fields.push_back(std::move(field));
    }
    schema.features = json.at("features").get<std::uint64_t>();
    schema.labels = json.at("labels").get<std::vector<std::string>>();
    if (json.contains("classes")) schema.classes = json["classes"].get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    fail("its JSON is invalid");
  }
  std::uint64_t sum = 0;
  for (const record_field& field : schema.fields) {
    const auto bytes = checked_product(size_of(field.type), field.shape);
    if (!bytes || __builtin_add_overflow(sum, *bytes, &sum)) fail("its fields are too large");
  }
  if ((schema.form == record_form::fixed) != (sum != 0)) fail("its fields do not match its form");
  return schema;
}

inline std::uint64_t digest_term(std::uint64_t index, std::uint32_t crc) noexcept {
  return mix(mix(index + 0x9e3779b97f4a7c15ULL) ^ crc);
}

inline std::uint64_t digest_of(std::uint64_t sum, std::uint64_t records, const record_schema& schema) {
  return digest().add(std::string_view(schema_to_json(schema))).add(records).add(sum).value();
}

inline table_places place_tables(const file_footer& footer, const record_schema& schema, const std::string& path) {
  const bool ends = schema.form != record_form::fixed;
  __extension__ using wide = unsigned __int128;
  const auto up = [](wide value, std::uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; };
  const wide labels = up(wide{footer.payload_offset} + footer.payload_bytes, table_alignment);
  const wide crcs = labels + wide{footer.records} * schema.labels.size() * sizeof(float);
  const wide ends_at = up(crcs + wide{footer.records} * sizeof(std::uint32_t), 8);
  const wide blocks = ends_at + (ends ? wide{footer.records} * sizeof(std::uint64_t) : 0);
  const wide end = blocks + wide{footer.blocks} * sizeof(block_entry);
  if (end + sizeof(file_footer) != footer.file_bytes) {
    throw data_error({path, 0, 0, footer.file_bytes - sizeof(file_footer)},
                     std::string("has a footer with inconsistent sizes; ") + copy_again);
  }
  return {static_cast<std::uint64_t>(labels), static_cast<std::uint64_t>(crcs), static_cast<std::uint64_t>(ends_at),
          static_cast<std::uint64_t>(blocks), static_cast<std::uint64_t>(end)};
}

inline void shard::refuse(std::uint64_t offset, const std::string& problem) const {
  throw data_error({path, 0, 0, offset}, problem + "; " + copy_again);
}

inline shard::shard(const std::string& file_path) : path(file_path), file(file_path, compressed_files::as_they_are) {
  open(file.bytes().size());
  payload = file.bytes().subspan(footer.payload_offset, footer.payload_bytes);
}

inline shard::shard(const std::string& file_path, std::shared_ptr<remote_folder> folder, std::size_t file_number,
                    std::uint64_t size)
    : path(file_path), file(std::vector<char>()), remote(std::move(folder)), number(file_number) {
  open(size);
}

inline std::span<const std::byte> shard::part(std::uint64_t begin, std::uint64_t size) {
  if (remote == nullptr) return file.bytes().subspan(begin, size);
  const std::byte* const at = remote->view({number, begin, size}, held_.emplace_back());
  return {at, size};
}

inline std::span<const std::byte> shard::bytes(std::uint64_t begin, std::uint64_t size,
                                               remote_folder::bytes& held) const {
  if (remote == nullptr) return payload.subspan(begin, size);
  return {remote->view({number, footer.payload_offset + begin, size}, held), size};
}

inline void shard::open(std::uint64_t size) {
  require_little_endian(path);
  const auto magic = part(0, std::min<std::uint64_t>(size, sizeof header_magic - 1));
  if (!std::ranges::equal(magic, std::as_bytes(std::span(header_magic).first(sizeof header_magic - 1)))) {
    throw data_error({path, 0, 0, 0}, "is not a file of muster's records (its first bytes differ); check the path");
  }
  if (size < page + sizeof(file_footer)) refuse(size, "is truncated");
  header = muster::detail::wire_reader(part(0, sizeof header)).number<file_header>();
  if (header.version != format_version) {
    throw data_error({path, 0, 0, 8}, "has version " + std::to_string(header.version) +
                                          " of the format (this program supports " + std::to_string(format_version) +
                                          "); use a newer muster or convert the file");
  }
  if (header.schema_bytes > size - sizeof header) refuse(20, "has a schema longer than the file");
  file_header blank = header;
  blank.crc = 0;
  const auto schema_bytes = part(sizeof header, header.schema_bytes);
  if (crc32c(schema_bytes, crc32c(std::as_bytes(std::span(&blank, 1)))) != header.crc) {
    refuse(28, "has a header that does not match its checksum");
  }
  if (!std::has_single_bit(header.alignment) || header.alignment > page || (header.flags & ~zstd_blocks) != 0) {
    refuse(12, "has a header with unknown flags or an unknown alignment");
  }

  const std::uint64_t footer_at = size - sizeof(file_footer);
  const auto footer_bytes = part(footer_at, sizeof footer);
  footer = muster::detail::wire_reader(footer_bytes).number<file_footer>();
  if (std::memcmp(footer.magic, footer_magic, sizeof footer.magic) != 0 || footer.file_bytes != size ||
      crc32c(footer_bytes.first(offsetof(file_footer, crc))) != footer.crc) {
    refuse(footer_at, "has no valid footer (it was truncated, or damaged at its end)");
  }
  const std::string_view schema_text(reinterpret_cast<const char*>(schema_bytes.data()), schema_bytes.size());
  schema = schema_from_json(schema_text, path, sizeof header);
  const table_places places = place_tables(footer, schema, path);
  if (footer.payload_offset % page != 0 || footer.payload_offset < sizeof header + header.schema_bytes ||
      footer.records == 0) {
    refuse(footer_at, "has an invalid footer (no records, or a payload at an invalid offset)");
  }
  const auto tables = part(places.labels, places.footer - places.labels);
  if (crc32c(tables) != footer.tables_crc) refuse(places.labels, "has tables that do not match their checksum");

  record_bytes = schema.record_bytes();
  stride = muster::detail::round_up(record_bytes, header.alignment);
  const auto at = [&](std::uint64_t place) { return tables.data() + (place - places.labels); };
  labels = reinterpret_cast<const float*>(tables.data());
  crcs = reinterpret_cast<const std::uint32_t*>(at(places.crcs));
  ends = schema.form == record_form::fixed ? nullptr : reinterpret_cast<const std::uint64_t*>(at(places.ends));
  blocks = {reinterpret_cast<const block_entry*>(at(places.blocks)), footer.blocks};
  if (compressed() != (footer.blocks != 0)) refuse(footer_at, "has blocks that contradict its header");
  compressed() ? check_blocks() : check_records(0, footer.records, footer.payload_bytes);
}

inline void shard::check_blocks() const {
  std::uint64_t end = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::uint64_t first = blocks[b].first_record;
    const std::uint64_t behind = b + 1 < blocks.size() ? blocks[b + 1].first_record : footer.records;
    if ((b == 0 && first != 0) || first >= behind || behind > footer.records || blocks[b].end < end ||
        blocks[b].end > footer.payload_bytes || blocks[b].raw_bytes > most_raw_bytes) {
      refuse(footer.payload_offset + end, "has blocks that do not follow each other");
    }
    end = blocks[b].end;
    check_records(first, behind, blocks[b].raw_bytes);
  }
}

// Checks that every record is within the payload or its block, so that reading needs no checks.
inline void shard::check_records(std::uint64_t first, std::uint64_t end, std::uint64_t raw_bytes) const {
  if (ends == nullptr) {
    __extension__ using wide = unsigned __int128;
    if (wide{end - first - 1} * stride + record_bytes <= raw_bytes) return;
    refuse(footer.payload_offset,
           std::string("has ") + (compressed() ? "a block with " : "") + "fewer bytes than its records need");
  }
  for (std::uint64_t i = first; i < end; ++i) {
    const range at = place(i, first);
    if (at.begin <= raw_bytes && at.size <= raw_bytes - at.begin) continue;
    refuse(footer.payload_offset, std::string("has records that extend beyond their ") +
                                      (compressed() ? "block" : "payload") + ", the first is record " +
                                      std::to_string(i));
  }
}

inline std::size_t shard::block_of(std::uint64_t record) const noexcept {
  const auto end = std::ranges::upper_bound(blocks, record, {}, &block_entry::first_record);
  return static_cast<std::size_t>(end - blocks.begin()) - 1;
}

inline std::uint32_t shard::crc_of(std::uint64_t record, std::span<const std::byte> bytes) const noexcept {
  const std::size_t count = schema.labels.size();
  const std::uint32_t crc = crc32c(bytes);
  return count == 0 ? crc : crc32c(std::as_bytes(std::span(labels + record * count, count)), crc);
}

}}}}  // namespace muster::v0::data::detail::records
