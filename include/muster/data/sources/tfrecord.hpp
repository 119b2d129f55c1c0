// The framing of TFRecord files (https://www.tensorflow.org/tutorials/load_data/tfrecord): lengths, checksums, bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/data/record_source.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data {

/// Options of reading TFRecord files.
struct tfrecord_options {
  /// Set if the files are TFRecord files compressed as a whole, with gzip or Zstandard. They are decompressed as by
  /// mapped_file.
  bool compressed = false;
  /// Set if a record is compared with its checksum when it is read.
  bool check = true;
  /// Number of threads for opening files, one thread a file. 0: as many as this process may use.
  int threads = 0;
  /// Options for files on a server.
  http_options http = {};
};

/// The payloads of one or more TFRecord files, record after record and file after file. A mapped_record_source of
/// record_form::bytes without labels. The user's code interprets the payloads. tfrecord_examples interprets payloads
/// that are a tf.train.Example or SequenceExample.
///
/// Opening reads and checks the lengths and holds 8 bytes a record. A payload is compared with its checksum when it is
/// read, and is a bad record if it differs. The digest covers the contents of the files: all bytes of files up to 256
/// MiB, and 64 MiB in evenly spaced parts of larger files.
class tfrecord_files : public detail::source_with_facts {
 public:
  /// Throws data_error with the first byte that violates the TFRecord format.
  explicit tfrecord_files(const std::vector<std::string>& paths, const tfrecord_options& options = {});

  /// The functions of mapped_record_source.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  [[nodiscard]] static constexpr bool mapped() noexcept { return true; }
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const;
  [[nodiscard]] data_location location_of(sample_id id) const;
  /// Returns the state of the files on this host. See any_record_source.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};
static_assert(mapped_record_source<tfrecord_files>);

namespace detail {

/// Returns the position of every record's frame in a file. Throws data_error naming `path`.
[[nodiscard]] std::vector<std::uint64_t> tfrecord_offsets(std::span<const std::byte> bytes, const std::string& path);

/// Returns the frame of a record: its length, the length's checksum, the payload, and the payload's checksum.
[[nodiscard]] std::string tfrecord_frame(std::string_view payload);

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
