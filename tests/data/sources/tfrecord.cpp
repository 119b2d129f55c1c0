#include <muster/data/sources/tfrecord.hpp>

#include <muster/core/error.hpp>
#include "../files.hpp"
#include "../records.hpp"
#include "catch.hpp"
#include "example_messages.hpp"

using messages::frame;

TEST_CASE("TFRecord files are read in order, and what is damaged is a bad record") {
  const temporary_folder folder;
  muster::random_stream random(51);
  std::vector<std::string> paths;
  std::vector<expected_record> expected;
  std::vector<std::pair<std::string, std::size_t>> damaged;
  for (int file = 0; file < 3; ++file) {
    std::string text;
    for (std::uint64_t k = 0; k < 20; ++k) {
      std::string payload(random.below(5) == 0 ? 0 : random.below(5000), '\0');
      for (char& c : payload) c = static_cast<char>(random.below(256));
      expected_record record{bytes_of(std::span<const char>(payload)), {}};
      std::string framed = frame(payload);
      if (!payload.empty() && k % 7 == 3) {
        framed[12 + random.below(payload.size())] ^= 1;
        record.bad = true;
        std::fill(record.bytes.begin(), record.bytes.end(), std::byte{0});
      }
      expected.push_back(record);
      text += framed;
    }
    paths.push_back(folder.write(std::to_string(file), text));
  }
  check_source(muster::data::tfrecord_files(paths), expected, 52);
  CHECK(muster::data::tfrecord_files(paths).digest() == muster::data::tfrecord_files(paths, {.threads = 1}).digest());
  CHECK(muster::data::tfrecord_files(paths).digest() != muster::data::tfrecord_files({paths[0]}).digest());
  for (auto& record : expected) record.bad = false;
  CHECK_NOTHROW(muster::data::tfrecord_files(paths, {.check = false}).view(3));
}

TEST_CASE("a file that is no TFRecord file, or not whole, is refused with the byte") {
  const temporary_folder folder;
  const std::string good = frame("abc") + frame("de");
  const auto refused = [&](const std::string& text, const std::string& why) {
    CHECK_THROWS_WITH(muster::data::tfrecord_files({folder.write("file", text)}),
                      contains("file: byte ") && contains(why));
  };
  refused(good.substr(0, good.size() - 1), "byte 19: the file ends within a payload of 2 bytes at record 1");
  refused(good.substr(0, 25), "byte 19: the file ends within a length at record 1");
  refused("no such file at all", "byte 0: a length does not match");
  std::string damaged = good;
  damaged[20] ^= 1;
  refused(damaged, "byte 19: a length does not match its checksum");
  CHECK_THROWS_AS(muster::data::tfrecord_files(std::vector<std::string>{}), muster::configuration_error);
  CHECK_THROWS_AS(muster::data::tfrecord_files({folder / "missing"}), muster::data_error);
}
