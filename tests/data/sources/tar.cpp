#include <muster/data/sources/tar.hpp>

#include <cstring>

#include <muster/data/open.hpp>
#include "../files.hpp"
#include "../records.hpp"
#include "catch.hpp"
#include "tar_text.hpp"

namespace {

std::vector<std::byte> text_bytes(const std::string& text) { return bytes_of(std::span<const char>(text)); }

std::string npy(const std::string& shape, const std::vector<float>& values) {
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string text = std::string("\x93NUMPY\1\0", 8) + static_cast<char>(header.size()) + '\0' + header;
  return text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

std::vector<muster::data::detail::tar_member> members_of(const std::string& text) {
  return muster::data::detail::read_tar(std::as_bytes(std::span(text)), "t");
}

}  // namespace

TEST_CASE("the files of a sample in tar archives are a record") {
  const temporary_folder folder;
  using tar::member;
  folder.write("s-08.tar", member("d/", "", '5') + member("d/a.JPG", "first") + member("d/a.cls", " 3\n") +
                               member("d/a.json", "{\"w\": 0.5,\n \"kind\": \"dog\"}") + member("README", "x") +
                               member("d/b.cls", "1") + member("d/b.jpg", std::string(700, 'b')) +
                               member("d/b.json", "{\"kind\":\"cat\",\"w\":2}") + tar::end() + tar::end());
  folder.write("s-09.tar", member("d/c.jpg", "") + member("d/c.cls", "16777217") +
                               member("d/c.json", "{\"kind\":\"dog\",\"w\":1}") + member("d/d.cls", "4") +
                               member("d/d.json", "{\"kind\":\"dog\",\"w\":true}") + member("d/e.jpg", "last") +
                               member("d/e.cls", "-0") + member("d/e.json", "{\"kind\":\"cow\",\"w\":null}") +
                               tar::end());
  const std::string shards = "tar:" + (folder / "s-{08..09}.tar");
  const auto source = muster::open_source(shards + "?label=cls");
  const auto b = text_bytes(std::string(700, 'b'));
  check_source(
      source, {{text_bytes("first"), {3}}, {b, {1}}, {{}, {0}, true}, {{}, {0}, true}, {text_bytes("last"), {0}}}, 101);
  CHECK(muster::data::to_string(source.schema()) == "bytes, label label");
  CHECK(source.notes() == std::vector<std::string>{"1 files without an ending, or hidden files, are left out"});
  std::vector<muster::bad_record> bad;
  std::vector<float> labels(1);
  const auto problem_of = [&](const muster::data::any_record_source& from, muster::sample_id id) {
    bad.clear();
    std::vector<float> into(from.schema().labels.size());
    from.read({&id, 1}, {{}, into}, &bad);
    return bad.empty() ? "" : bad[0].location.to_string() + ": " + bad[0].problem;
  };
  CHECK_THAT(problem_of(source, 2), contains("s-09.tar: byte 512: 'd/c.cls': label '16777217' cannot be used"));
  CHECK_THAT(problem_of(source, 3), contains("s-09.tar: byte 2560: a sample has no .jpg file"));

  const auto by_name = muster::open_source(shards + "?data=jpg&label=json.kind,json.w&classes=cat,dog");
  CHECK(by_name.schema().classes == std::vector<std::string>{"cat", "dog"});
  check_source(by_name,
               {{text_bytes("first"), {1, 0.5f}},
                {b, {0, 2}},
                {{}, {1, 1}},
                {{}, {0, 0}, true},
                {std::vector<std::byte>(4), {0, 0}, true}},
               102);
  CHECK_THAT(problem_of(by_name, 4), contains("'d/e.json': label 'cow' is not a class"));
  CHECK(by_name.digest() != source.digest());
  CHECK(muster::open_source(shards + "?data=jpg&label=json.w").digest() != source.digest());
  CHECK_THAT(problem_of(muster::open_source(shards + "?label=json.w"), 4),
             contains("'d/e.json': has no 'w'; the label is missing"));
  CHECK_THAT(problem_of(muster::open_source(shards + "?label=txt"), 0), contains("its sample has no .txt file"));
  CHECK_THROWS_WITH(muster::open_source(shards + "?label=cls&classes=3&shape=4"),
                    contains("it has a shape and no type"));
  CHECK_THROWS_WITH(muster::open_source(shards + "?classes=3"), contains("it has classes and no label"));
}

TEST_CASE("numbers in tar archives are fixed records") {
  const temporary_folder folder;
  const std::vector<float> first = {1, 2, 3, 4}, second = {5, 6, 7, 8};
  const auto raw = [](const std::vector<float>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  using tar::member;
  const std::string path =
      folder.write("n.tar", member("1.bin", raw(first)) + member("1.npy", npy("(2, 2)", first)) +
                                member("2.bin", raw(second)) + member("2.npy", npy("(2,2)", second)) +
                                member("3.bin", "123") + member("3.npy", npy("(4,)", second)) + tar::end());
  const std::vector<expected_record> expected = {
      {bytes_of(std::span(first)), {}}, {bytes_of(std::span(second)), {}}, {std::vector<std::byte>(16), {}, true}};
  check_source(muster::open_source("tar:" + path + "?data=bin&type=float32&shape=2x2"), expected, 103);
  const auto arrays = muster::open_source("tar:" + path + "?data=npy");
  check_source(arrays, expected, 104);
  CHECK(muster::data::to_string(arrays.schema()) == "npy float32[2x2]");
  CHECK_THROWS_WITH(muster::open_source("tar:" + path),
                    contains("the first sample has 2 files that may be the data (bin, npy); add ?data=ENDING"));
}

TEST_CASE("names and sizes of tar are those of ustar, pax and GNU") {
  const std::string long_name(300, 'n');
  const std::string pax = "312 path=" + long_name + ".a\n";
  REQUIRE(pax.size() == 312);
  const std::string pax_size = "10 size=3\n";
  const std::string big = tar::header("d.x", std::string("\x80\0\0\0\0\0\0\0\0\0\0\2", 12));
  const std::string text = tar::member("x", pax, 'x') + tar::member("short", "1") +
                           tar::member("././@LongLink", long_name + ".b" + '\0', 'L') + tar::member("short", "22") +
                           tar::member("g", "12 global=1\n", 'g') + tar::member("x", pax_size, 'x') +
                           tar::header("b.x", tar::octal(0)) + tar::padded("333") + big + tar::padded("55") +
                           tar::end();
  const auto members = members_of(text);
  REQUIRE(members.size() == 4);
  CHECK(members[0].name == long_name + ".a");
  CHECK(members[0].header == 0);
  CHECK(members[1].name == long_name + ".b");
  CHECK(members[2].name == "b.x");
  CHECK(text.substr(members[2].offset, members[2].size) == "333");
  CHECK(text.substr(members[3].offset, members[3].size) == "55");
}

TEST_CASE("a tar archive that is damaged or cut is refused with byte and member") {
  const temporary_folder folder;
  const auto refused = [](const std::string& text, const std::string& why) {
    CHECK_THROWS_WITH(members_of(text), contains("t: byte ") && contains(why));
  };
  const std::string one = tar::member("a.x", std::string(600, '1'));
  for (std::size_t size = 0; size < one.size() + 512; ++size) {
    const std::string cut = (one + tar::end()).substr(0, size);
    CHECK_THROWS_AS(members_of(cut), muster::data_error);
  }
  refused(one.substr(0, 900), "ends within the member 'a.x' of 600 bytes");
  refused(one, "without the end of an archive");
  refused(one + tar::end() + one + tar::end(), "has data after the end of the archive");
  std::string damaged = one + tar::end();
  damaged[3] = 'y';
  refused(damaged, "does not match its checksum");
  refused(tar::header("a.x", "8") + tar::end(), "has a header whose size is no number");
  refused(tar::header("a.x", std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12)) + tar::end(),
          "ends within the member 'a.x' of 18446744073709551615 bytes");
  refused(tar::member("a.x", "", '2') + tar::end(), "has the member 'a.x', which is a link or a special file");
  for (const char* lines : {"11 path=a\n", "x path=a\n", "10", "2 \n", "99999999999999999999 a\n"}) {
    CAPTURE(lines);
    CHECK_THROWS_AS(members_of(tar::member("x", lines, 'x') + one + tar::end()), muster::data_error);
  }
  refused(tar::member("x", "10 size=x\n", 'x') + one + tar::end(), "has a pax header whose size is no number");
  const auto source_refused = [&](const std::string& text, const std::string& why) {
    const std::string path = folder.write("t.tar", text + tar::end());
    CHECK_THROWS_WITH(muster::open_source("tar:" + path), contains("t.tar") && contains(why));
  };
  using tar::member;
  source_refused(member("a.x", "1") + member("b.x", "1") + member("a.x", "1"), "has the key 'a' twice");
  source_refused(member("a.x", "1") + member("a.X", "1"), "has the file 'a.X' twice in a sample");
  source_refused(member("a", "1"), "has no samples");
  source_refused(member(".a.x", "1"), "has no samples");
  CHECK_THROWS_WITH(muster::open_source("tar:" + (folder / "u-{0..1}.tar")), contains("u-0.tar: cannot be opened"));
  CHECK_THROWS_AS(muster::open_source("tar:" + (folder / "u-{3..1}.tar")), muster::configuration_error);
  CHECK_THROWS_AS(muster::open_source("tar:" + (folder / "u-{1..9999999}.tar")), muster::configuration_error);
  CHECK(muster::data::detail::expand_ranges("a{8..10}b{0..1}") ==
        std::vector<std::string>{"a8b0", "a8b1", "a9b0", "a9b1", "a10b0", "a10b1"});
  CHECK(muster::data::detail::expand_ranges("a{b}c..{") == std::vector<std::string>{"a{b}c..{"});
}
