// The interface of a folder of files on a server. Private to muster's own sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/data/sources/http.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// The bytes [begin, begin + size) of a file that was added to a folder.
struct remote_part {
  std::size_t file;
  std::uint64_t begin;
  std::uint64_t size;
};

/// A file on the server.
struct remote_file {
  std::size_t number;
  std::uint64_t size;
  /// Digest of the server's version of the file; nothing: the server reports no reliable version.
  std::optional<std::uint64_t> version;
};

/// A folder of files on a server. Any thread may call any function. Functions that wait for the server throw data_error
/// with the file's address at once if the server refuses the request, and source_error after http_options::timeout if
/// the server does not reply. Other ranks may wait meanwhile, so a job of several ranks shortens that time.
class remote_folder {
 public:
  using bytes = std::shared_ptr<const std::vector<std::byte>>;

  virtual ~remote_folder() = default;
  /// Returns the current contents of a small file.
  [[nodiscard]] virtual std::string text(const std::string& name) = 0;
  /// Adds a file of `size` bytes and returns its number. `content` identifies the file's contents in the cache.
  [[nodiscard]] virtual std::size_t add(const std::string& name, std::uint64_t size, std::uint64_t content) = 0;
  /// Looks up a file on the server and adds it. Its version on the server identifies its contents in the cache. Without
  /// a reliable version the file is fetched each time and is cached for this process alone. Disk space is reserved for
  /// the whole file, so that its parts are contiguous. Throws data_error if the file does not exist, is empty, or does
  /// not fit on the disk.
  [[nodiscard]] virtual remote_file find(const std::string& name) = 0;
  /// Returns the names in a folder below this one ("" for this one), without their subfolders' contents: the names of
  /// S3's list of objects, or of the links of the page that a web server shows for a folder.
  [[nodiscard]] virtual std::vector<std::string> list(const std::string& folder) = 0;
  /// Returns the server's version of a file (its ETag, or Last-Modified), without adding the file.
  [[nodiscard]] virtual std::string version(const std::string& name) = 0;
  /// Announces that these parts will be read soon. They are fetched in the background.
  virtual void expect(std::span<const remote_part> sections) = 0;
  /// Waits for a part and returns it. It remains valid as long as this folder and `held`, which owns the part if it is
  /// not cached on disk.
  [[nodiscard]] virtual const std::byte* view(const remote_part& section, bytes& held) = 0;
};

using remote_opener = std::shared_ptr<remote_folder> (*)(const std::string& address, const http_options& options);
/// Sets the function that opens addresses, if muster::http is linked. Thread safe.
void set_remote_opener(remote_opener opener) noexcept;
/// Opens the folder at an address. Returns null for a path that is not an address. A folder that is already open is
/// shared, with its requests and its disk space. Throws configuration_error for an address if muster::http is not
/// linked.
[[nodiscard]] std::shared_ptr<remote_folder> open_remote_folder(const std::string& path, const http_options& options);

}}}}  // namespace muster::v0::data::detail
