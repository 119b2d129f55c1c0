// Files on a server, through the cache of remote files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <muster/data/sources/http.hpp>

namespace muster { inline namespace v0 { namespace data {

namespace detail {
class remote_folder;
}

/// A folder of files on an HTTP or S3 server. Thread safe. Its functions throw source_error if the server is away, and
/// data_error if it refuses the request.
class remote_files {
 public:
  /// Opens an address such as https://server/folder or s3://bucket/folder. Throws configuration_error for any other
  /// text, and in a program without muster::http.
  explicit remote_files(const std::string& address, const http_options& options = {});

  /// Returns the names in a folder below the address ("" for the address itself). A web server must show a page of
  /// links for a folder (nginx: autoindex).
  [[nodiscard]] std::vector<std::string> list(const std::string& folder = "") const;
  /// Returns the server's version of a file: its ETag, or Last-Modified.
  [[nodiscard]] std::string version(const std::string& name) const;
  /// Copies a file to a path. Blocks in the cache are not fetched again. Throws configuration_error if the copy cannot
  /// be written.
  void copy(const std::string& name, const std::string& path) const;

 private:
  std::shared_ptr<detail::remote_folder> folder_;
};

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
