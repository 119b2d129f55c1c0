#include <muster/data/sources/tfrecord.hpp>

#include <algorithm>
#include <bit>

#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include "../../core/wire.hpp"
#include "../cache/content_digest.hpp"
#include "../parallel.hpp"

// A frame: the length of the payload (8 bytes, little-endian), its masked CRC32C (4), the payload, its masked CRC32C
// (4).

namespace muster { inline namespace v0 {
namespace {

constexpr std::uint64_t before_payload = 12;
constexpr std::uint64_t behind_payload = 4;

// Checksums of data that holds checksums are weak, and so they are stored changed.
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

template <class T>
T number_at(std::span<const std::byte> bytes, std::uint64_t offset) noexcept {
  return detail::wire_reader(bytes.subspan(offset)).number<T>();
}

}  // namespace

std::vector<std::uint64_t> detail::tfrecord_offsets(std::span<const std::byte> bytes, const std::string& path) {
  std::vector<std::uint64_t> offsets;
  const auto refuse = [&](std::uint64_t offset, const std::string& problem, const char* suggestion) {
    throw data_error({path, 0, 0, offset},
                     problem + " at record " + std::to_string(offsets.size()) + "; " + suggestion);
  };
  for (std::uint64_t at = 0; at != bytes.size();) {
    const std::uint64_t left = bytes.size() - at;
    if (left < before_payload) refuse(at, "the file ends within a length", "copy or download it again");
    const std::uint64_t length = number_at<std::uint64_t>(bytes, at);
    if (number_at<std::uint32_t>(bytes, at + 8) != masked(crc32c(bytes.subspan(at, 8)))) {
      refuse(at, "a length does not match its checksum (it is damaged, or this is no TFRecord file)",
             "check the path, and whether the file is compressed");
    }
    if (left - before_payload < behind_payload || length > left - before_payload - behind_payload) {
      refuse(at, "the file ends within a payload of " + std::to_string(length) + " bytes", "copy or download it again");
    }
    offsets.push_back(at);
    at += before_payload + length + behind_payload;
  }
  return offsets;
}

struct tfrecord_files::state : detail::source_facts {
  struct opened {
    std::string path;
    std::unique_ptr<const mapped_file> file;
    std::vector<std::uint64_t> offsets;  // of the frame of each record
    sample_id first = 0;
  };
  struct place {
    const opened& in;
    std::uint64_t offset;
    std::span<const std::byte> payload;
  };
  [[nodiscard]] place find(sample_id id) const noexcept {
    const opened& in = *(std::ranges::upper_bound(files, id, {}, &opened::first) - 1);
    const std::uint64_t offset = in.offsets[id - in.first];
    const auto bytes = in.file->bytes();
    return {in, offset, bytes.subspan(offset + before_payload, number_at<std::uint64_t>(bytes, offset))};
  }

  bool check = true;
  std::vector<opened> files;
};

tfrecord_files::tfrecord_files(const std::vector<std::string>& paths, const tfrecord_options& options) {
  if (paths.empty()) throw configuration_error("there are no TFRecord files to open; name at least one");
  auto made = std::make_shared<state>();
  made->name = "tfrecord:";
  made->schema.form = record_form::bytes;
  made->check = options.check;
  made->files.resize(paths.size());
  detail::parallel_for(paths.size(), options.threads, [&](std::size_t i) {
    state::opened& one = made->files[i];
    one.path = paths[i];
    one.file = std::make_unique<const mapped_file>(
        paths[i], options.compressed ? compressed_files::decoded : compressed_files::as_they_are, options.http);
    one.offsets = detail::tfrecord_offsets(one.file->bytes(), one.path);
  });
  muster::digest all;
  for (state::opened& one : made->files) {
    made->name += (made->size != 0 ? "," : "") + detail::without_secrets(one.path);
    one.first = made->size;
    made->size += one.offsets.size();
    detail::add_sampled_content(all, one.file->bytes(), options.threads);
  }
  made->digest = all.add(made->size).value();
  state_ = std::move(made);
  facts_ = state_.get();
}

std::optional<std::uint64_t> tfrecord_files::host_state() const {
  return detail::states_of(state_->files, [](const auto& each) { return each.file->host_state(); });
}
std::optional<std::uint64_t> tfrecord_files::host_state_now() const {
  return detail::states_of(state_->files, [](const auto& each) { return each.file->host_state_now(); });
}

void tfrecord_files::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept {
  for (std::size_t k = 0; k < ids.size(); ++k) out[k] = state_->find(ids[k]).payload.size();
}

void tfrecord_files::read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad) const {
  if (rows.bytes.empty()) return;
  std::byte* to = rows.bytes.data();
  for (const sample_id id : ids) {
    try {
      to = std::ranges::copy(view(id), to).out;
    } catch (const data_error& error) {
      if (bad == nullptr) throw;
      bad->push_back({id, error.where(), error.problem()});
      to = std::fill_n(to, state_->find(id).payload.size(), std::byte{0});
    }
  }
}

data_location tfrecord_files::where(sample_id id) const {
  const auto& [in, offset, payload] = state_->find(id);
  return {in.path, 0, 0, offset};
}

std::span<const std::byte> tfrecord_files::view(sample_id id) const {
  const auto& [in, offset, payload] = state_->find(id);
  const std::uint64_t behind = offset + before_payload + payload.size();
  if (!state_->check || number_at<std::uint32_t>(in.file->bytes(), behind) == masked(crc32c(payload))) return payload;
  throw data_error(
      where(id),
      "record " + std::to_string(id - in.first) +
          " does not match its checksum (it was damaged on the disk or on the way); copy or download the file again");
}

}}  // namespace muster::v0
