#include <muster/core/atomic_file.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <muster/core/error.hpp>

#include "catch.hpp"

namespace fs = std::filesystem;

namespace {

/// A folder that exists during the test.
struct folder {
  folder() {
    std::string name = (fs::temp_directory_path() / "muster-test-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { fs::remove_all(path); }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
  }
  fs::path path;
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("a file is replaced as a whole and nothing is left beside it") {
  const folder test_folder;
  const auto file = (test_folder.path / "out.json").string();
  muster::require_writable(file);
  CHECK(test_folder.entries() == 0);
  muster::write_atomically(file, "first, and longer than what follows");
  muster::write_atomically(file, "second");
  muster::require_writable(file);
  CHECK(read(file) == "second");
  CHECK(test_folder.entries() == 1);
}

TEST_CASE("a place that cannot be written is refused before and at the writing") {
  const folder test_folder;
  for (const auto& path :
       {(test_folder.path / "none" / "out.json").string(), test_folder.path.string(), std::string()}) {
    CAPTURE(path);
    CHECK_THROWS_AS(muster::require_writable(path), muster::configuration_error);
    CHECK_THROWS_AS(muster::write_atomically(path, "text"), muster::configuration_error);
  }
  CHECK(test_folder.entries() == 0);
}

TEST_CASE("a device is written to and stays one") {
  muster::require_writable("/dev/null");
  muster::write_atomically("/dev/null", "text");
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("a file written in pieces is there once committed, and not before") {
  const folder test_folder;
  const auto file = (test_folder.path / "out.bin").string();
  muster::write_atomically(file, "before");
  std::string all;
  {
    muster::atomic_file out(file);
    for (int i = 0; i < 40; ++i) {
      const std::string piece(static_cast<std::size_t>(i) * 9999, static_cast<char>('a' + i % 26));
      out.write(piece);
      all += piece;
    }
    out.write(
        std::span<const std::byte>());  // a null pointer: UndefinedBehaviorSanitizer detects whether fwrite gets it
    CHECK(out.size() == all.size());
    CHECK(read(file) == "before");
    muster::atomic_file moved(std::move(out));
    moved.commit();
  }
  CHECK(read(file) == all);
  CHECK(test_folder.entries() == 1);
  { muster::atomic_file(file).write("never committed"); }
  CHECK(read(file) == all);
  CHECK(test_folder.entries() == 1);
  CHECK_THROWS_AS(muster::atomic_file((test_folder.path / "none" / "file").string()), muster::configuration_error);
  CHECK_THROWS_AS(muster::atomic_file(test_folder.path.string()), muster::configuration_error);
}

TEST_CASE("a folder for temporary files that is not there is refused in words") {
  const char* const before = std::getenv("TMPDIR");
  const std::string former = before == nullptr ? "" : before;
  ::setenv("TMPDIR", "/nowhere/at-all", 1);
  CHECK_THROWS_WITH(muster::temporary_folder(), contains("TMPDIR is '/nowhere/at-all'") && contains("unset it"));
  if (before == nullptr)
    ::unsetenv("TMPDIR");
  else
    ::setenv("TMPDIR", former.c_str(), 1);
  CHECK_FALSE(muster::temporary_folder().empty());
}
