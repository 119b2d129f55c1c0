#include <muster/data/sources/npz.hpp>

#include <cstring>

#include <muster/core/error.hpp>
#include <muster/data/open.hpp>
#include "../files.hpp"
#include "../records.hpp"
#include "catch.hpp"
#include "zip_text.hpp"

namespace {

using zip::archive;
using zip::member;

std::string npy(const std::string& descr, const std::string& shape, const std::string& numbers) {
  const std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  return "\x93NUMPY\1" + std::string(1, '\0') + zip::number(header.size(), 2) + header + numbers;
}

}  // namespace

TEST_CASE("the arrays of an NPZ file are sources") {
  const temporary_folder folder;
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> y = {7, 8, 9};
  const auto text = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]);
  };
  const std::vector<member> members = {
      {"x.npy", npy("<f4", "(3, 2)", text(x))}, {"note.txt", "no array"}, {"y.npy", npy("<i4", "(3,)", text(y))}};
  std::vector<expected_record> expected;
  for (std::size_t k = 0; k < 3; ++k)
    expected.push_back({bytes_of(std::span<const float>(x).subspan(2 * k, 2)), {static_cast<float>(y[k])}});
  for (const bool zip64 : {false, true}) {
    const std::string path = folder.write("a.npz", archive(members, {.zip64 = zip64}));
    const auto source = muster::open_source("npz:" + path + "?label=y");
    check_source(source, expected, 91);
    CHECK(source.mapped());
    CHECK(muster::data::to_string(source.schema()) == "x float32[2], label label");
    CHECK(muster::data::open_npz(path, "y").schema().labels.empty());
    CHECK_THROWS_WITH(muster::data::open_npz(path),
                      contains("a.npz: has 2 arrays ('x', 'y')") && contains("add ?array=NAME"));
    CHECK_THROWS_WITH(muster::data::open_npz(path, "note"), contains("has no array 'note'"));
  }
  const std::string whole = archive(members);
  const std::size_t first = whole.find(members[0].content);
  for (std::size_t k = 0; k < members[0].content.size(); ++k) {
    CAPTURE(k);
    std::string flipped = whole;
    flipped[first + k] = static_cast<char>(flipped[first + k] ^ 1 << k % 8);
    const std::string path = folder.write("flipped.npz", flipped);
    CHECK_THROWS_WITH(muster::data::open_npz(path, "x"), contains("flipped.npz/x.npy: has a wrong checksum"));
    CHECK(muster::data::open_npz(path, "y").size() == 3);
  }
#ifdef MUSTER_HAS_ZLIB
  std::vector<member> packed = members;
  for (member& each : packed) each.deflated = zip::deflated(each.content);
  check_source(muster::data::open_npz(folder.write("b.npz", archive(packed)), "x", "y"), expected, 92);
  const auto refused = [&](const std::function<void(member&)>& change, const std::string& why) {
    auto changed = packed;
    change(changed[0]);
    CHECK_THROWS_WITH(muster::data::open_npz(folder.write("c.npz", archive(changed)), "x"),
                      contains("c.npz/x.npy: ") && contains(why));
  };
  refused([](member& each) { each.crc ^= 1; }, "is not valid gzip data");
  refused([](member& each) { each.size += 1; }, "is not valid gzip data");
  const std::string large = zip::deflated(std::string(std::size_t{1} << 20, 'x'));
  refused(
      [&](member& each) {
        each.deflated = large;
        each.size = 1000;
      },
      "has more than 1000 bytes once decompressed");
  refused([](member& each) { each.deflated.resize(each.deflated.size() / 2); }, "c.npz");
  refused([](member& each) { each.deflated[0] = '\xff'; }, "is not valid gzip data");
#endif
  const auto odd = [&](const member& array, const std::string& why) {
    CHECK_THROWS_WITH(muster::data::open_npz(folder.write("odd.npz", archive({array}))),
                      contains("odd.npz/x.npy") && contains(why));
  };
  odd({"x.npy", npy("<f4", "(3, 2)", text(x)) + "1"}, "has 25 bytes of numbers where its header promises 24");
  odd({"x.npy", npy("|O", "(3, 2)", text(x))}, "has elements that are not plain numbers");
  odd({"x.npy", "text"}, "is not an NPY file");
}

TEST_CASE("an archive that is no ZIP, or a hostile one, is refused with byte and member") {
  const std::vector<member> members = {{"a", "first"}, {"b", "second"}};
  const std::string good = archive(members);
  REQUIRE(muster::data::detail::read_zip(std::as_bytes(std::span(good)), "t").size() == 2);
  CHECK(muster::data::detail::read_zip(std::as_bytes(std::span(good)), "t")[1].size == 6);
  const auto refused = [](const std::string& text, const std::string& why) {
    CHECK_THROWS_WITH(muster::data::detail::read_zip(std::as_bytes(std::span(text)), "t"),
                      contains("t: byte ") && contains(why));
  };
  refused("", "is not a ZIP archive");
  refused("PK", "has no directory at its end");
  refused(good + "x", "has no directory at its end");
  for (std::size_t size = 2; size < good.size(); ++size) {
    CAPTURE(size);
    const std::string cut = good.substr(0, size);
    CHECK_THROWS_AS(muster::data::detail::read_zip(std::as_bytes(std::span(cut)), "t"), muster::data_error);
  }
  const auto changed = [&](const std::function<void(std::vector<member>&)>& change, const std::string& why,
                           const zip::layout& layout = {}) {
    auto wrong = members;
    change(wrong);
    refused(archive(wrong, layout), why);
  };
  changed([](auto& all) { all[1].name = "a"; }, "has the member 'a' twice");
  changed([](auto& all) { all[1].flags = 1; }, "has the member 'b', which is encrypted");
  changed([](auto& all) { all[1].method = 12; }, "has the member 'b', which is compressed by method 12");
  changed([](auto& all) { all[1].size = 7; }, "has the member 'b' with two sizes");
  changed([](auto& all) { all[1].local_name = "c"; }, "has the member 'b' without a header of this name");
  changed([](auto& all) { all[1].place = 0; }, "has the member 'b' without a header of this name");
  changed([](auto& all) { all[1].place = 0xfffffff0; }, "without a header");
  changed([](auto& all) { all[0].packed = all[0].size = 30; }, "has members that overlap");
  changed([](auto& all) { all[1].packed = all[1].size = 3000; }, "has the member 'b', which ends beyond the data");
  changed([](auto&) {}, "has no directory at its end", {.comment = 5});
  changed([](auto&) {}, "has a directory that is too short for its members", {.count = 900});
  changed([](auto&) {}, "has a directory with more than its 1 members", {.count = 1});
  changed([](auto&) {}, "has a directory whose size does not fit its place", {.begin = 1});
  changed([](auto&) {}, "has no ZIP64 directory where it is required", {.begin = 0xffffffff});
}
