// The framing of TFRecord files (https://www.tensorflow.org/tutorials/load_data/tfrecord): lengths, checksums, bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/data/record_source.hpp>
#include <muster/data/sources/mapped_file.hpp>  // also so that a program with muster::zlib reads .gz

namespace muster { inline namespace v0 {

/// How TFRecord files are read.
struct tfrecord_options {
  /// Whether files are TFRecord files compressed as a whole, with gzip or Zstandard; decompressed into memory then.
  bool compressed = false;
  /// Whether reading a record compares it with its checksum.
  bool check = true;
  /// Threads to open files with, one a file; 0 means as many as this process may use.
  int threads = 0;
  /// Of files on a server.
  http_options http = {};
};

/// The payloads of one or more TFRecord files, record after record and file after file; a mapped_record_source of
/// record_form::bytes without labels. What is in a payload is the user's to read; of a tf.train.Example or
/// SequenceExample, tfrecord_examples reads it.
///
/// Opening walks over the lengths, which it checks, and keeps 8 bytes a record; a payload is compared with its checksum
/// when it is read, and is a bad record if it differs. The digest is of the bytes of the files: all of them up to
/// 256 MiB a file, beyond that 64 MiB spread evenly over it.
class tfrecord_files : public detail::source_with_facts {
 public:
  /// Throws data_error with the byte at which a file stops being one of TFRecord.
  explicit tfrecord_files(const std::vector<std::string>& paths, const tfrecord_options& options = {});

  /// As mapped_record_source has them.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  [[nodiscard]] static constexpr bool mapped() noexcept { return true; }
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const;
  [[nodiscard]] data_location where(sample_id id) const;
  /// As any_record_source has them.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};
static_assert(mapped_record_source<tfrecord_files>);

namespace detail {

/// Where the frame of each record of a file begins. Throws data_error naming `path`.
[[nodiscard]] std::vector<std::uint64_t> tfrecord_offsets(std::span<const std::byte> bytes, const std::string& path);

}  // namespace detail

}}  // namespace muster::v0
