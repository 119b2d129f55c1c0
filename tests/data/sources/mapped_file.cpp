#include <muster/data/sources/mapped_file.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/sources/libsvm.hpp>
#include "../files.hpp"
#include "catch.hpp"

#ifdef MUSTER_HAS_ZLIB
#include <zlib.h>
#endif

namespace {

std::string long_text(std::size_t lines) {
  std::string text;
  muster::random_stream random(4);
  for (std::size_t i = 0; i < lines; ++i) text += "1 1:" + std::to_string(random.uniform()) + " 2:1\n";
  return text;
}

#ifdef MUSTER_HAS_ZLIB
std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, static_cast<uLong>(text.size())), '\0');
  std::string input = text;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}
#endif

}  // namespace

TEST_CASE("a plain file is what it is, whatever its name") {
  const temporary_folder folder;
  const std::string text = long_text(1000);
  muster::data::mapped_file file(folder.write("a.gz", text));
  CHECK(file.text() == text);
  const muster::data::mapped_file moved = std::move(file);
  CHECK(moved.text() == text);
}

TEST_CASE("a pipe is read to its end") {
  const temporary_folder folder;
  const std::string path = folder / "pipe";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const std::string text = long_text(20000);
  const std::jthread writer([&] { std::ofstream(path) << text; });
  CHECK(muster::data::mapped_file(path).text() == text);
}

TEST_CASE("what is no readable file is refused by name") {
  const temporary_folder folder;
  const std::string missing = folder / "missing";
  CHECK_THROWS_AS(muster::data::mapped_file(missing), muster::data_error);
  CHECK_THROWS_WITH(muster::data::mapped_file(missing),
                    contains(missing + ": cannot be opened (No such file or directory)"));
  CHECK_THROWS_WITH(muster::data::mapped_file(folder / "."), contains("is a directory"));
  CHECK_THROWS_WITH(muster::data::mapped_file(folder.write("empty", "")), contains("is empty"));
  CHECK_THROWS_WITH(muster::data::mapped_file("/dev/null"), contains("/dev/null: is empty"));
  CHECK_THROWS_WITH(muster::data::mapped_file(folder.write("file", "1 1:1\n") + "/below"),
                    contains("(Not a directory)"));
  if (::geteuid() != 0) {  // root may read everything
    const std::string locked = folder.write("locked", "1 1:1\n");
    REQUIRE(::chmod(locked.c_str(), 0) == 0);
    CHECK_THROWS_WITH(muster::data::mapped_file(locked), contains("cannot be opened (Permission denied)"));
  }
}

TEST_CASE("gzip without its component is refused by the component's name") {
  const temporary_folder folder;
  const std::string path = folder.write("text", "\x1f\x8b\x08 and more");
  const auto decoder = muster::data::detail::set_gzip_decoder(nullptr);
  CHECK_THROWS_WITH(muster::data::mapped_file(path), contains("linked without muster::zlib); link muster::zlib"));
  muster::data::detail::set_gzip_decoder(decoder);
}

#ifdef MUSTER_HAS_ZLIB
TEST_CASE("gzip is read, whatever the name, in one member or several") {
  const temporary_folder folder;
  const std::string text = long_text(30000);
  CHECK(muster::data::mapped_file(folder.write("a", gzip(text))).text() == text);
  CHECK(muster::data::mapped_file(folder.write("b", gzip(text) + gzip("x") + gzip(text))).text() == text + "x" + text);
  CHECK(muster::data::mapped_file(folder.write("c", gzip(text) + std::string(512, '\0'))).text() == text);
  CHECK(muster::data::mapped_file(folder.write("d", gzip("1"))).text() == "1");
  const std::string flat(10'000'000, ' ');  // compresses to a thousandth
  CHECK(muster::data::mapped_file(folder.write("e", gzip(flat))).text() == flat);

  const auto plain = muster::data::parse_libsvm(text, "text");
  const auto packed = muster::data::read_libsvm(folder / "a");
  CHECK(packed.digest() == plain.digest());
  CHECK(packed.name() == "libsvm:" + (folder / "a"));
}

TEST_CASE("gzip that was cut short, damaged or followed by something else is refused") {
  const temporary_folder folder;
  const std::string packed = gzip(long_text(30000));
  for (const std::size_t size : {std::size_t{2}, std::size_t{10}, std::size_t{17}, std::size_t{18}, packed.size() / 2,
                                 packed.size() - 8, packed.size() - 1}) {
    CAPTURE(size);
    CHECK_THROWS_WITH(muster::data::mapped_file(folder.write("cut", packed.substr(0, size))),
                      contains("ends in the middle of its gzip data"));
  }
  std::string damaged = packed;
  damaged[damaged.size() - 6] ^= 1;  // part of the checksum
  CHECK_THROWS_WITH(muster::data::mapped_file(folder.write("sum", damaged)),
                    contains("is not valid gzip data (incorrect data"));
  damaged = packed;
  damaged[3] = '\xe0';  // reserved flags
  CHECK_THROWS_WITH(muster::data::mapped_file(folder.write("head", damaged)), contains("is not valid gzip data ("));
  CHECK_THROWS_AS(muster::data::mapped_file(folder.write("more", packed + "rest")), muster::data_error);
  CHECK_THROWS_WITH(muster::data::mapped_file(folder.write("none", gzip(""))), contains("is empty once decompressed"));

  muster::random_stream random(8);
  const std::string small = gzip(long_text(50));
  for (int i = 0; i < 300; ++i) {  // a damaged file may give any result except a crash
    damaged = small;
    for (auto n = 1 + random.below(3); n > 0; --n) damaged[random.below(damaged.size())] = static_cast<char>(random());
    try {
      (void)muster::data::mapped_file(folder.write("random", damaged));
    } catch (const muster::data_error& refused) {
      REQUIRE(refused.file() == folder / "random");
    }
  }
}
#endif

#ifdef MUSTER_HAS_ZSTD
TEST_CASE("Zstandard is read, also behind a frame to be skipped, with which pzstd begins") {
  using namespace std::string_literals;
  const temporary_folder folder;
  const std::string frame = "\x28\xb5\x2f\xfd\x20\x06\x31\0\0"s + "1 1:2\n";  // a single uncompressed block
  const std::string skipped = "\x5f\x2a\x4d\x18\x04\0\0\0"s + "size";
  CHECK(muster::data::mapped_file(folder.write("a", frame)).text() == "1 1:2\n");
  CHECK(muster::data::mapped_file(folder.write("b", skipped + frame + skipped + frame)).text() == "1 1:2\n1 1:2\n");
}
#endif

TEST_CASE("the state of a file is another one after each change, and the same without") {
  const temporary_folder folder;
  const std::string path = folder.write("file", "1");
  for (int k = 0; k < 20; ++k) {
    const muster::data::mapped_file file(path);
    CHECK(file.host_state() == file.host_state_now());
    CHECK(muster::data::mapped_file(path).host_state() == file.host_state());
    folder.write("file", k % 2 == 0 ? "2" : "1");  // immediately, in place, and with the same size
    CHECK(file.host_state() != file.host_state_now());
  }
  const muster::data::mapped_file file(path);
  std::filesystem::copy_file(path, folder / "copy");
  CHECK(muster::data::mapped_file(folder / "copy").host_state() != file.host_state());
  std::filesystem::remove(path);
  CHECK(file.host_state_now() == std::nullopt);
}
