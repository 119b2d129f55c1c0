// Samples in tar archives, as WebDataset writes them (https://github.com/webdataset/webdataset): the files of a sample
// have the same name up to the first dot, and different endings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/sources/http.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The files of a sample that make a record, and the treatment of their content.
struct tar_options {
  /// Ending of the files with the data, "jpg". Empty: the ending of the only file in the first sample
  /// whose ending is not in `labels` and is not cls, txt, json or id.
  std::string data = {};
  /// Type of the numbers in the files. dtype::none: a record is the bytes of a file, or, for the ending npy, the array
  dtype type = dtype::none;
  std::vector<std::uint64_t> shape = {};  ///< shape of the numbers in each file, if there is a type
  /// Labels: each is the ending of files with a number as text, "cls", or "json.KEY", a key in the objects of JSON
  /// files.
  std::vector<std::string> labels = {};
  /// Names of the classes, if the first label is a text: a label is the number of its name in this list.
  std::vector<std::string> classes = {};
  int threads = 0;  ///< number of threads that index files while the source is opened; 0: as many as available
  http_options http = {};
};

namespace detail {

/// A file in a tar archive.
struct tar_member {
  std::string name = {};
  std::uint64_t header = 0;  ///< byte of the archive at which its header begins
  std::uint64_t offset = 0;  ///< byte of the archive at which its content begins
  std::uint64_t size = 0;
};

/// Reads the headers of a tar archive (POSIX ustar and pax, GNU's long names) from the bytes of the archive. Leaves out
/// folders. Throws data_error, which names `path`, the byte and the member, for an archive that is damaged or cut off,
/// and for links and other special files.
[[nodiscard]] std::vector<tar_member> read_tar(std::span<const std::byte> bytes, const std::string& path);

/// Returns the paths that a path with ranges stands for: "a-{08..10}.tar" are a-08.tar, a-09.tar and a-10.tar. Throws
/// configuration_error for a range that does not ascend, and for more than a million paths.
[[nodiscard]] std::vector<std::string> expand_ranges(const std::string& path);

}  // namespace detail

/// The samples in tar archives, in the order of the archives. A record_source of record_form::bytes, or of fixed
/// records for numbers.
///
/// Opening reads the headers of all members and the labels. A sample is a bad record if it lacks the file of the data
/// or of a label, if its label is no number, or if its data has another size, type or shape than the schema. Hidden
/// files and files without an ending are left out and counted in notes(). The digest covers the contents as in
/// fixed_records.
class tar_samples : public detail::source_with_facts {
 public:
  /// Throws data_error for an archive that read_tar() refuses, that has a key twice, or that has no samples.
  tar_samples(const std::vector<std::string>& paths, const tar_options& options);

  /// The functions of record_source.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  [[nodiscard]] static constexpr bool mapped() noexcept { return true; }
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const;
  /// Returns the state of the files on this host. See any_record_source.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;
  /// Returns the archive of a record and the byte at which its first member begins.
  [[nodiscard]] data_location location_of(sample_id id) const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};
static_assert(mapped_record_source<tar_samples>);

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
