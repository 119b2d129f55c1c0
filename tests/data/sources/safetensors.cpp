#include <muster/data/sources/safetensors.hpp>

#include <cstring>

#include <muster/core/error.hpp>
#include <muster/data/open.hpp>
#include "../files.hpp"
#include "../records.hpp"
#include "catch.hpp"

namespace {

/// Returns a file with this header and `bytes` bytes of values.
std::string file_of(const std::string& header, std::size_t bytes = 0) {
  std::string text(8, '\0');
  for (std::size_t k = 0; k < 8; ++k) text[k] = static_cast<char>(header.size() >> (8 * k) & 0xff);
  return text + header + std::string(bytes, 'v');
}

std::string entry(const std::string& name, const std::string& shape, std::size_t first, std::size_t last,
                  const std::string& type = "F32") {
  return "\"" + name + R"(":{"dtype":")" + type + R"(","shape":[)" + shape + R"(],"data_offsets":[)" +
         std::to_string(first) + "," + std::to_string(last) + "]}";
}

}  // namespace

TEST_CASE("tensors of every type come back from a safetensors file") {
  const temporary_folder folder;
  muster::random_stream random(71);
  for (int round = 0; round < 50; ++round) {
    CAPTURE(round);
    std::vector<std::vector<std::byte>> values;
    std::vector<muster::data::tensor_view> tensors;
    for (std::size_t count = random.below(6); tensors.size() < count;) {
      muster::data::tensor_view tensor;
      tensor.name = "tensor \"" + std::to_string(tensors.size()) + "\" \xc3\xa4";
      tensor.type = static_cast<muster::dtype>(1 + random.below(13));
      for (auto extents = random.below(4); extents > 0; --extents) tensor.shape.push_back(random.below(5));
      auto& bytes = values.emplace_back(tensor.bytes());
      for (std::byte& each : bytes) each = static_cast<std::byte>(random.below(256));
      tensors.push_back(tensor);
    }
    for (std::size_t k = 0; k < tensors.size(); ++k) tensors[k].values = values[k];
    std::map<std::string, std::string> metadata;
    if (random.below(2) == 0) metadata = {{"format", "pt"}, {"a \"text\"", "\n"}};
    const std::string path = folder / "file.safetensors";
    muster::data::write_safetensors(path, tensors, metadata);

    const muster::data::safetensors_file file(path);
    CHECK(file.metadata() == metadata);
    REQUIRE(file.tensors().size() == tensors.size());
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const muster::data::safetensor& found = file.tensor(tensors[k].name);
      CHECK(static_cast<const muster::data::record_field&>(found) ==
            static_cast<const muster::data::record_field&>(tensors[k]));
      CHECK(std::ranges::equal(file.values(found), values[k]));
      CHECK(found.offset % size_of(found.type) == 0);
    }
  }
}

TEST_CASE("a tensor of a safetensors file is a source, and parameters are floats") {
  const temporary_folder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int64_t> labels = {7, 8, 16777217};
  const std::vector<muster::float16> halves = {muster::float16(0.5f), muster::float16(-2.0f)};
  const std::string path = folder / "a b.safetensors";
  muster::data::write_safetensors(
      path, std::vector<muster::data::tensor_view>{{{"x", muster::dtype::float32, {3, 2}}, bytes_of(std::span(values))},
                                                   {{"y", muster::dtype::int64, {3}}, bytes_of(std::span(labels))}});
  std::vector<expected_record> expected;
  const auto raw = bytes_of(std::span(values));
  for (int k = 0; k < 3; ++k)
    expected.push_back(
        {{raw.begin() + 8 * k, raw.begin() + 8 * (k + 1)}, {static_cast<float>(labels[std::size_t(k)])}});
  expected[2] = {std::vector<std::byte>(8), {0}, true};  // a float32 does not hold the label
  const auto source = muster::open_source("safetensors:" + (folder / "a%20b.safetensors") + "?label=y");
  check_source(source, expected, 72);
  CHECK(muster::data::to_string(source.schema()) == "x float32[2], label label");
  CHECK(source.mapped());
  CHECK(source.digest() == muster::data::open_safetensors(path, "x", "y").digest());
  CHECK(muster::data::open_safetensors(path, "y").schema().labels.empty());

  const auto refused = [&](const std::string& tensor, const std::string& label, const std::string& why) {
    CHECK_THROWS_WITH(muster::data::open_safetensors(path, tensor, label),
                      contains("a b.safetensors") && contains(why));
  };
  refused("", "", "has 2 tensors ('y', 'x'), and it is not clear which has the records; add ?tensor=NAME");
  refused("z", "", "has no tensor 'z' (it has 'y', 'x')");
  CHECK(muster::data::open_safetensors(path, "y", "x").schema().labels.size() == 2);

  const muster::data::safetensors_file file(path);
  std::vector<float> output(6);
  file.read("x", std::vector<std::uint64_t>{3, 2}, output);
  CHECK(output == values);
  CHECK_THROWS_WITH(file.read("x", std::vector<std::uint64_t>{2, 3}, output),
                    contains("tensor 'x' has the shape [3x2] (the shape [2x3] is required)"));
  CHECK_THROWS_WITH(file.read("y", std::vector<std::uint64_t>{3}, std::span(output).first(3)),
                    contains("tensor 'y' has elements of I64"));
  CHECK_THROWS_WITH(file.read("xx", std::vector<std::uint64_t>{3}, output), contains("did you mean 'x'?"));
  muster::data::write_safetensors(path, std::vector<muster::data::tensor_view>{
                                            {{"h", muster::dtype::float16, {2}}, std::as_bytes(std::span(halves))}});
  muster::data::safetensors_file(path).read("h", std::vector<std::uint64_t>{2}, std::span(output).first(2));
  CHECK(output[0] == 0.5f);
  CHECK(output[1] == -2.0f);
}

TEST_CASE("a hostile safetensors file is refused with file, byte and tensor") {
  const temporary_folder folder;
  const auto refused = [&](const std::string& text, const std::string& why) {
    const std::string path = folder.write("file", text);
    CHECK_THROWS_WITH(muster::data::safetensors_file(path), contains("file: byte ") && contains(why));
  };
  CHECK(muster::data::safetensors_file(folder.write("good", file_of("{" + entry("a", "2", 0, 8) + "}   ", 8)))
            .tensors()
            .size() == 1);
  CHECK(muster::data::safetensors_file(folder.write("none", file_of("{}"))).tensors().empty());
  refused("short", "ends within the length of its header");
  refused(std::string(8, '\xff') + "{}", "has a header of 18446744073709551615 bytes (at most 100000000 are allowed");
  refused(file_of("{}").substr(0, 9), "ends within its header of 2 bytes");
  refused(file_of("[]"), "does not begin with a brace");
  refused(file_of("{"), "is not a safetensors file");
  refused(file_of("{\"a\":"), "has a header that is not JSON");
  refused(file_of("{" + entry("a", "2", 0, 8) + "}x", 8), "has a header that is not JSON");
  refused(file_of("{\"a\":[]}"), "tensor 'a' has an array");
  refused(file_of("{\"a\":3}"), "tensor 'a' has a number");
  refused(file_of("{\"a\":{}}"), "tensor 'a' lacks one of dtype, shape and data_offsets");
  refused(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})", 8),
          "has the unknown key 'more'");
  refused(file_of(R"({"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}})", 8), "has 'shape' twice");
  refused(file_of(R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", 8), "tensor 'a' has an array");
  refused(file_of(R"({"a":{"dtype":"F32","shape":[{}],"data_offsets":[0,8]}})", 8), "tensor 'a' has an object");
  refused(file_of("{" + entry("a", "-2", 0, 8) + "}", 8), "tensor 'a' has a negative number");
  refused(file_of("{" + entry("a", "2.0", 0, 8) + "}", 8), "tensor 'a' has a number that is not whole");
  refused(file_of("{" + entry("a", "99999999999999999999", 0, 8) + "}", 8),
          "tensor 'a' has a number that is not whole");
  refused(file_of("{" + entry("a", "2", 0, 8, "F33") + "}", 8), "tensor 'a' has elements of the unknown type 'F33'");
  refused(file_of("{" + entry("a", "2", 0, 8, "F64") + "}", 8),
          "tensor 'a' has 8 bytes where its shape and type need 16");
  refused(file_of("{" + entry("a", "4294967296,4294967296", 0, 8) + "}", 8), "need more than there can be");
  refused(file_of("{" + entry("a", "2", 8, 0) + "}", 8), "tensor 'a' has data_offsets that are no range");
  refused(file_of("{" + entry("a", "2", 0, 8) + "," + entry("a", "2", 8, 16) + "}", 16),
          "tensor 'a' is in the header twice");
  refused(file_of("{" + entry("a", "2", 0, 8) + "," + entry("b", "2", 4, 12) + "}", 12),
          "tensor 'b' begins at byte 4 of the values within the tensor before it");
  refused(file_of("{" + entry("a", "2", 0, 8) + "," + entry("b", "2", 9, 17) + "}", 17), "after a gap");
  refused(file_of("{" + entry("a", "2", 4, 12) + "}", 12), "tensor 'a' begins at byte 4 of the values after a gap");
  refused(file_of("{" + entry("a", "2", 0, 8) + "," + entry("b", "2", 8, 16) + "}", 12),
          "tensor 'b' ends beyond the file (it has 8 bytes, and 4 are left)");
  refused(file_of("{" + entry("a", "2", 0, 8) + "}", 9), "has 1 bytes after its last tensor");
  refused(file_of(R"({"__metadata__":{"a":3}})"), "tensor '__metadata__' has a number");
  refused(file_of(R"({"__metadata__":{"a":"b","a":"c"}})"), "tensor '__metadata__' has 'a' twice");
  refused(file_of("{\"a\":" + std::string(1'000'000, '[')), "tensor 'a' has an array");
  refused(file_of(R"({"a\nb":1})"), R"(tensor 'a\x0ab' has a number)");
  CHECK_THROWS_WITH(
      muster::data::open_safetensors(folder.write("f8", file_of("{" + entry("a", "8", 0, 8, "F8_E4M3") + "}", 8))),
      contains("tensor 'a' has elements that are not numbers of this machine"));
  CHECK_THROWS_WITH(muster::data::open_safetensors(folder.write("one", file_of("{" + entry("a", "", 0, 4) + "}", 4))),
                    contains("tensor 'a' has no records (its shape has no extents)"));
  CHECK_THROWS_WITH(muster::data::open_safetensors(folder.write("zero", file_of("{" + entry("a", "3,0", 0, 0) + "}"))),
                    contains("tensor 'a' has no records (its shape has an extent of 0)"));
  const std::byte bytes[4] = {};
  const auto unwritten = [&](std::vector<muster::data::tensor_view> tensors, const std::string& why) {
    CHECK_THROWS_WITH(muster::data::write_safetensors(folder / "out", tensors), contains(why));
    CHECK_FALSE(std::filesystem::exists(folder / "out"));
  };
  unwritten({{{"a", muster::dtype::float32, {2}}, bytes}}, "tensor 'a' cannot be written");
  unwritten({{{"a", muster::dtype::none, {}}, {}}}, "the format has no type none");
  unwritten({{{"a", muster::dtype::float32, {}}, bytes}, {{"a", muster::dtype::float32, {}}, bytes}},
            "the name is taken");
}
