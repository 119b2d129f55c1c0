// Temporary files and public data sets for tests.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

/// A temporary folder, which is removed with this object.
class temporary_folder {
 public:
  temporary_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "muster-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  /// Returns the path of `name` in the folder.
  [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  /// Writes a file and returns its path.
  std::string write(const std::string& name, std::string_view text) const {
    const std::string path = *this / name;
    std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
    return path;
  }

 private:
  std::filesystem::path path_;
};

/// Returns the path of a file of the public data sets, in the folder MUSTER_TEST_DATA or next to the repository.
/// Returns nothing if the file does not exist.
inline std::optional<std::string> public_data(const std::string& name) {
  const char* folder = std::getenv("MUSTER_TEST_DATA");
  const auto path = std::filesystem::path(folder != nullptr ? folder : MUSTER_SOURCE_DIR "/../shared/data") / name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path.string();
}
