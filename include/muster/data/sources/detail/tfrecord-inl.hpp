#pragma once

#include <muster/data/sources/tfrecord.hpp>

#include <algorithm>
#include <bit>

#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>
#include <muster/data/cache/content_digest.hpp>
#include <muster/data/parallel.hpp>

// A frame has the length of the payload (8 bytes, little-endian), the length's masked CRC32C (4 bytes), the payload,
// and the payload's masked CRC32C (4 bytes).

namespace muster { inline namespace v0 { namespace data {
namespace detail {

inline constexpr std::uint64_t before_payload = 12;
inline constexpr std::uint64_t after_payload = 4;

// Masks a checksum before it is stored, because a checksum of data that has checksums is weak.
inline std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

template <class T>
T number_at(std::span<const std::byte> bytes, std::uint64_t offset) noexcept {
  return muster::detail::wire_reader(bytes.subspan(offset)).number<T>();
}

}  // namespace detail

MUSTER_INLINE std::vector<std::uint64_t> detail::tfrecord_offsets(std::span<const std::byte> bytes,
                                                                  const std::string& path) {
  std::vector<std::uint64_t> offsets;
  const auto refuse = [&](std::uint64_t offset, const std::string& problem, const char* suggestion) {
    throw data_error({path, 0, 0, offset},
                     problem + " at record " + std::to_string(offsets.size()) + "; " + suggestion);
  };
  for (std::uint64_t at = 0; at != bytes.size();) {
    const std::uint64_t remaining = bytes.size() - at;
    if (remaining < detail::before_payload) refuse(at, "the file ends within a length", "copy or download it again");
    const std::uint64_t length = detail::number_at<std::uint64_t>(bytes, at);
    if (detail::number_at<std::uint32_t>(bytes, at + 8) != detail::masked(crc32c(bytes.subspan(at, 8)))) {
      refuse(at, "a length does not match its checksum (it is damaged, or this is not a TFRecord file)",
             "check the path, and whether the file is compressed");
    }
    if (remaining - detail::before_payload < detail::after_payload ||
        length > remaining - detail::before_payload - detail::after_payload) {
      refuse(at, "the file ends within a payload of " + std::to_string(length) + " bytes", "copy or download it again");
    }
    offsets.push_back(at);
    at += detail::before_payload + length + detail::after_payload;
  }
  return offsets;
}

MUSTER_INLINE std::string detail::tfrecord_frame(std::string_view payload) {
  const auto masked_crc_of = [](std::string_view bytes) { return masked(crc32c(std::as_bytes(std::span(bytes)))); };
  muster::detail::wire_writer length;
  length.add(std::uint64_t{payload.size()});
  const std::string prefix = length.take();
  muster::detail::wire_writer frame(prefix);
  frame.add(masked_crc_of(prefix));
  frame.add_bytes(std::as_bytes(std::span(payload)));
  frame.add(masked_crc_of(payload));
  return frame.take();
}

struct tfrecord_files::state : detail::source_facts {
  struct opened {
    std::string path;
    std::unique_ptr<const mapped_file> file;
    std::vector<std::uint64_t> offsets;  // each record's frame offset
    sample_id first = 0;
  };
  struct place {
    const opened& file;
    std::uint64_t offset;
    std::span<const std::byte> payload;
  };
  [[nodiscard]] place find(sample_id id) const noexcept {
    const opened& file = *(std::ranges::upper_bound(files, id, {}, &opened::first) - 1);
    const std::uint64_t offset = file.offsets[id - file.first];
    const auto bytes = file.file->bytes();
    return {file, offset,
            bytes.subspan(offset + detail::before_payload, detail::number_at<std::uint64_t>(bytes, offset))};
  }

  bool check = true;
  std::vector<opened> files;
};

MUSTER_INLINE tfrecord_files::tfrecord_files(const std::vector<std::string>& paths, const tfrecord_options& options) {
  if (paths.empty()) throw configuration_error("there are no TFRecord files to open; name at least one");
  auto new_state = std::make_shared<state>();
  new_state->name = "tfrecord:";
  new_state->schema.form = record_form::bytes;
  new_state->check = options.check;
  new_state->files.resize(paths.size());
  detail::parallel_for(paths.size(), options.threads, [&](std::size_t i) {
    state::opened& file = new_state->files[i];
    file.path = paths[i];
    file.file = std::make_unique<const mapped_file>(
        paths[i], options.compressed ? compressed_files::decoded : compressed_files::as_they_are, options.http);
    file.offsets = detail::tfrecord_offsets(file.file->bytes(), file.path);
  });
  muster::digest all;
  for (state::opened& file : new_state->files) {
    new_state->name += (new_state->size != 0 ? "," : "") + muster::detail::without_secrets(file.path);
    file.first = new_state->size;
    new_state->size += file.offsets.size();
    detail::add_sampled_content(all, file.file->bytes(), options.threads);
  }
  new_state->digest = all.add(new_state->size).value();
  state_ = std::move(new_state);
  facts_ = state_.get();
}

MUSTER_INLINE std::optional<std::uint64_t> tfrecord_files::host_state() const {
  return detail::states_of(state_->files, [](const auto& each) { return each.file->host_state(); });
}
MUSTER_INLINE std::optional<std::uint64_t> tfrecord_files::host_state_now() const {
  return detail::states_of(state_->files, [](const auto& each) { return each.file->host_state_now(); });
}

MUSTER_INLINE void tfrecord_files::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept {
  for (std::size_t k = 0; k < ids.size(); ++k) out[k] = state_->find(ids[k]).payload.size();
}

MUSTER_INLINE void tfrecord_files::read(std::span<const sample_id> ids, const record_rows& rows,
                                        std::vector<bad_record>* bad) const {
  if (rows.bytes.empty()) return;
  std::byte* output = rows.bytes.data();
  for (const sample_id id : ids) {
    try {
      output = std::ranges::copy(view(id), output).out;
    } catch (const data_error& error) {
      if (bad == nullptr) throw;
      bad->push_back({id, error.where(), error.problem()});
      output = std::fill_n(output, state_->find(id).payload.size(), std::byte{0});
    }
  }
}

MUSTER_INLINE data_location tfrecord_files::location_of(sample_id id) const {
  const auto& [file, offset, payload] = state_->find(id);
  return {file.path, 0, 0, offset};
}

MUSTER_INLINE std::span<const std::byte> tfrecord_files::view(sample_id id) const {
  const auto& [file, offset, payload] = state_->find(id);
  const std::uint64_t checksum_offset = offset + detail::before_payload + payload.size();
  if (!state_->check ||
      detail::number_at<std::uint32_t>(file.file->bytes(), checksum_offset) == detail::masked(crc32c(payload)))
    return payload;
  throw data_error(
      location_of(id),
      "record " + std::to_string(id - file.first) +
          " does not match its checksum (it was damaged on the disk or on the way); copy or download the file again");
}

}}}  // namespace muster::v0::data
