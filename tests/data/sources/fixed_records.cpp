#include <muster/data/sources/cifar.hpp>
#include <muster/data/sources/idx.hpp>
#include <muster/data/sources/npy.hpp>
#include <muster/data/sources/raw.hpp>

#include <filesystem>
#include <numeric>

#include <muster/core/error.hpp>
#include "../files.hpp"
#include "../records.hpp"
#include "catch.hpp"

namespace {

std::string random_text(muster::random_stream& random, std::size_t size) {
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random.below(256));
  return text;
}

std::vector<std::byte> slice_of(const std::string& text, std::size_t offset, std::size_t size) {
  return bytes_of(std::span<const char>(text.data() + offset, size));
}

template <class T>
std::string big_endian(const std::vector<T>& values) {
  std::string text;
  for (const T value : values) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof value);
    std::reverse(std::begin(bytes), std::end(bytes));
    text.append(bytes, sizeof value);
  }
  return text;
}

std::string idx_header(char type, const std::vector<std::uint32_t>& shape) {
  return std::string(2, '\0') + type + static_cast<char>(shape.size()) + big_endian(shape);
}

std::string npy_text(const std::string& header, const std::string& numbers, char version = 1) {
  std::string text = std::string("\x93NUMPY") + version + '\0';
  const std::size_t length = header.size();
  for (int k = 0; k < (version == 1 ? 2 : 4); ++k) text += static_cast<char>(length >> (8 * k) & 0xff);
  return text + header + numbers;
}

// Writes CIFAR files with random pixels. Each image has `label_bytes` labels in front of it, each below its number of
// classes.
std::string cifar_text(muster::random_stream& random, std::size_t count, const std::vector<unsigned>& classes) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    for (const unsigned most : classes) text += static_cast<char>(random.below(most));
    text += random_text(random, 3072);
  }
  return text;
}

void expect_cifar(std::vector<expected_record>& records, const std::string& text, std::size_t label_bytes,
                  const std::vector<std::size_t>& labels) {
  for (std::size_t at = 0; at < text.size(); at += label_bytes + 3072) {
    expected_record record{slice_of(text, at + label_bytes, 3072), {}};
    for (const std::size_t which : labels) record.labels.push_back(static_cast<unsigned char>(text[at + which]));
    records.push_back(record);
  }
}

}  // namespace

TEST_CASE("CIFAR-10 is read from a folder, from what its archive unpacks to, and from one file") {
  const temporary_folder folder;
  muster::random_stream random(41);
  std::filesystem::create_directory(folder / "cifar-10-batches-bin");
  std::vector<expected_record> train, test, one_batch;
  for (char number = '1'; number <= '6'; ++number) {
    const std::string text = cifar_text(random, 1 + random.below(5), {10});
    const std::string name = number == '6' ? "test_batch.bin" : std::string("data_batch_") + number + ".bin";
    folder.write("cifar-10-batches-bin/" + name, text);
    expect_cifar(number == '6' ? test : train, text, 1, {0});
    if (number == '3') expect_cifar(one_batch, text, 1, {0});
  }
  const std::string inner = folder / "cifar-10-batches-bin";
  check_source(muster::data::open_cifar10(folder / ""), train, 1);
  check_source(muster::data::open_cifar10(inner), train, 2);
  check_source(muster::data::open_cifar10(inner, muster::data::cifar_split::test), test, 3);
  check_source(muster::data::open_cifar10(inner + "/data_batch_3.bin"), one_batch, 4);
  CHECK(muster::data::open_cifar10(inner).schema().fields.front() ==
        muster::data::record_field{"image", muster::dtype::uint8, {3, 32, 32}});
  CHECK(muster::data::open_cifar10(inner).digest() == muster::data::open_cifar10(folder / "").digest());
  CHECK(muster::data::open_cifar10(inner).digest() !=
        muster::data::open_cifar10(inner, muster::data::cifar_split::test).digest());
  CHECK(muster::data::to_string(muster::data::open_cifar10(inner).schema()) == "image uint8[3x32x32], label label");
}

TEST_CASE("CIFAR-100 has either label or both") {
  const temporary_folder folder;
  muster::random_stream random(42);
  const std::string text = cifar_text(random, 7, {20, 100});
  folder.write("train.bin", text);
  using muster::data::cifar100_labels;
  const std::pair<muster::data::cifar100_labels, std::vector<std::size_t>> cases[] = {
      {muster::data::cifar100_labels::fine, {1}},
      {muster::data::cifar100_labels::coarse, {0}},
      {muster::data::cifar100_labels::both, {1, 0}}};
  for (const auto& [labels, places] : cases) {
    std::vector<expected_record> expected;
    expect_cifar(expected, text, 2, places);
    check_source(muster::data::open_cifar100(folder / "", muster::data::cifar_split::train, labels), expected, 5);
  }
  CHECK_THROWS_AS(muster::data::open_cifar100(folder / "", muster::data::cifar_split::test), muster::data_error);
}

TEST_CASE("a CIFAR file that is none is refused with the byte") {
  const temporary_folder folder;
  muster::random_stream random(43);
  std::string text = cifar_text(random, 3, {10});
  const std::string path = folder.write("cut.bin", text.substr(0, 2 * 3073 + 100));
  CHECK_THROWS_WITH(muster::data::open_cifar10(path), contains("cut.bin: byte 6146: ends in the middle of a record"));
  text[3073] = 10;
  CHECK_THROWS_WITH(muster::data::open_cifar10(folder.write("label.bin", text)),
                    contains("label.bin: byte 3073: label 10 of record 1 is not below 10"));
  CHECK_THROWS_AS(muster::data::open_cifar10(folder / "missing.bin"), muster::data_error);
  CHECK_THROWS_AS(muster::data::open_cifar10(folder / ""), muster::data_error);
}

TEST_CASE("IDX files of every type are read, with and without labels") {
  const temporary_folder folder;
  muster::random_stream random(44);
  const std::string bytes = random_text(random, 5 * 4 * 3);
  const std::string images = folder.write("images", idx_header(8, {5, 4, 3}) + bytes);
  const std::string labels = folder.write("labels", idx_header(8, {5}) + std::string("\3\0\xff\1\2", 5));
  std::vector<expected_record> expected;
  const float values[] = {3, 0, 255, 1, 2};
  for (std::size_t i = 0; i < 5; ++i) expected.push_back({slice_of(bytes, 12 * i, 12), {values[i]}});
  check_source(muster::data::open_idx(images, labels), expected, 6);
  CHECK(muster::data::open_idx(images).schema().labels.empty());
  CHECK(muster::data::open_idx(images).schema().fields.front().name == "image");

  const std::vector<std::int32_t> numbers = {-1, 70000, 3, -4, 5, 6};
  const std::vector<double> targets = {0.5, -2};
  const std::string wide = folder.write("wide", idx_header(0x0c, {2, 3}) + big_endian(numbers));
  const std::string doubles = folder.write("doubles", idx_header(0x0e, {2}) + big_endian(targets));
  expected = {{bytes_of(std::span<const std::int32_t>(numbers).first(3)), {0.5}},
              {bytes_of(std::span<const std::int32_t>(numbers).subspan(3)), {-2}}};
  check_source(muster::data::open_idx(wide, doubles), expected, 7);
}

TEST_CASE("an IDX file that is none, or not whole, is refused with the byte") {
  const temporary_folder folder;
  const auto refused = [&](const std::string& text, const std::string& why) {
    CHECK_THROWS_WITH(muster::data::open_idx(folder.write("file", text)), contains("file: byte ") && contains(why));
  };
  refused("text", "byte 0: is not an IDX file");
  refused(std::string("\0\0", 2), "byte 2: ends within the header");
  refused(std::string("\0\0\7\1\0\0\0\1x", 9), "byte 2: has numbers of an unknown type (code 7");
  refused(std::string("\0\0\10\0", 4), "byte 3: has no extents");
  refused(std::string("\0\0\10\2\0\0\0\1\0\0", 10), "byte 10: ends within the header");
  refused(idx_header(8, {2, 3}) + "12345", "byte 12: has 5 bytes of numbers where its header promises 6");
  refused(idx_header(8, {2, 3}) + "1234567", "promises 6");
  refused(idx_header(8, {0xffffffff, 0xffffffff, 0xffffffff}) + "1", "promises more than there can be");
  refused(idx_header(8, {0, 3}), "has no records");
  const std::string images = folder.write("images", idx_header(8, {2, 1}) + "12");
  CHECK_THROWS_WITH(muster::data::open_idx(images, folder.write("three", idx_header(8, {3}) + "123")),
                    contains("has 3 labels where") && contains("has 2 records"));
  const std::string cubes = folder.write("cubes", idx_header(8, {2, 1, 1}) + "12");
  CHECK_THROWS_WITH(muster::data::open_idx(images, cubes), contains("has 3 extents"));
}

TEST_CASE("NPY arrays are read: every version, one extent or several, labels of any type") {
  const temporary_folder folder;
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::string text(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  const std::vector<std::int64_t> classes = {7, -1, 3};
  const std::string label_text(reinterpret_cast<const char*>(classes.data()), classes.size() * 8);
  const std::string labels =
      folder.write("labels.npy", npy_text("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }\n", label_text));
  std::vector<expected_record> expected;
  for (std::size_t i = 0; i < 3; ++i) {
    expected.push_back({bytes_of(std::span<const float>(numbers).subspan(4 * i, 4)), {static_cast<float>(classes[i])}});
  }
  for (const char version : {'\1', '\2', '\3'}) {
    const std::string path = folder.write(
        "data.npy", npy_text("{'shape': (3, 2, 2), \"fortran_order\": False , 'descr': '<f4'}    \n", text, version));
    check_source(muster::data::open_npy(path, labels), expected, 8);
    CHECK(muster::data::open_npy(path).schema().fields.front().shape == std::vector<std::uint64_t>{2, 2});
  }
  const std::string flat =
      folder.write("flat.npy", npy_text("{'descr': '<f4', 'fortran_order': True, 'shape': (12,)}", text));
  CHECK(muster::data::open_npy(flat).size() == 12);
  CHECK(muster::data::open_npy(flat).schema().record_bytes() == 4);
  const std::string pairs =
      folder.write("pairs.npy", npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}", text));
  for (std::size_t i = 0; i < 3; ++i) expected[i].labels.assign(&numbers[4 * i], &numbers[4 * i] + 4);
  check_source(muster::data::open_npy(pairs, pairs), expected, 9);
}

TEST_CASE("an NPY file that cannot be taken is refused with the byte and a way out") {
  const temporary_folder folder;
  const auto refused = [&](const std::string& text, const std::string& why) {
    CHECK_THROWS_WITH(muster::data::open_npy(folder.write("file", text)), contains("file: byte ") && contains(why));
  };
  const std::string four(16, 'x');
  refused("not one", "is not an NPY file");
  refused(std::string("\x93NUMPY", 6), "unknown version");
  refused(std::string("\x93NUMPY\4\0\0\0", 10), "byte 6: has an unknown version");
  refused(std::string("\x93NUMPY\1\0\xff\xff{", 11), "byte 11: ends within its header");
  refused(npy_text("{'descr': '>f4', 'fortran_order': False, 'shape': (4,)}", four), "byte order");
  refused(npy_text("{'descr': '<c8', 'fortran_order': False, 'shape': (2,)}", four), "not plain numbers");
  refused(npy_text("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", four), "not plain numbers");
  refused(npy_text("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,)}", four), "structured");
  refused(npy_text("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", four), "ascontiguousarray");
  refused(npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", four.substr(0, 4)), "single number");
  refused(npy_text("{'descr': '<f4', 'shape': (4,)}", four), "lacks one of");
  refused(npy_text("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", four), "repeated");
  refused(npy_text("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (4,)}", four), "not a Python dictionary");
  refused(npy_text("{'descr': '<f4', 'fortran_order': 0, 'shape': (4,)}", four), "neither True nor False");
  refused(npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (4", four), "not a Python dictionary");
  refused(npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}", four), "whole numbers");
  refused(npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", four), "promises 20");
  refused(npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", four), "more than");
  refused(npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4)}", ""), "has no records");
}

TEST_CASE("raw files of random layouts give what a naive walk gives, and digests tell them apart") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const temporary_folder folder;
    muster::random_stream random(seed);
    muster::data::raw_layout layout{.type = muster::dtype::uint16, .shape = {1 + random.below(3), 1 + random.below(4)}};
    layout.skip = random.below(20);
    layout.offset = random.below(6);
    layout.labels = {{"a", muster::dtype::int16, random.below(30)}, {"b", muster::dtype::uint8, random.below(30)}};
    const std::size_t size = 2 * layout.shape[0] * layout.shape[1];
    layout.record_bytes = 40 + random.below(10);
    std::vector<std::string> paths;
    std::vector<expected_record> expected;
    for (std::uint64_t file = 0; file <= random.below(4); ++file) {
      const std::size_t count = seed % 2 == 0 ? 1 + random.below(5) : 1 + seed % 5;  // the same in all files, if given
      layout.count = seed % 2 == 0 ? 0 : count;
      const std::size_t behind = layout.count == 0 ? 0 : random.below(200);
      const std::string text = random_text(random, layout.skip + count * layout.record_bytes + behind);
      paths.push_back(folder.write(std::to_string(file), text));
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = layout.skip + i * layout.record_bytes;
        std::int16_t a;
        std::memcpy(&a, text.data() + at + layout.labels[0].offset, 2);
        const auto b = static_cast<unsigned char>(text[at + layout.labels[1].offset]);
        expected.push_back({slice_of(text, at + layout.offset, size), {float(a), float(b)}});
      }
    }
    const auto source = muster::data::open_raw(paths, layout);
    check_source(source, expected, seed);
    CHECK(source.digest() == muster::data::open_raw(paths, layout).digest());
    ++layout.labels[0].offset;
    CHECK(source.digest() != muster::data::open_raw(paths, layout).digest());
  }
}

TEST_CASE("a raw layout that cannot be is refused") {
  const temporary_folder folder;
  const std::string path = folder.write("file", "0123456789");
  using layout = muster::data::raw_layout;
  CHECK(muster::data::open_raw({path}, layout{.shape = {5}}).size() == 2);
  CHECK_THROWS_WITH(muster::data::open_raw({path}, layout{.shape = {3}}), contains("file: byte 9: ends in the middle"));
  CHECK_THROWS_AS(muster::data::open_raw({path}, layout{.shape = {5}, .skip = 11}), muster::data_error);
  CHECK(muster::data::open_raw({path}, layout{.shape = {3}, .count = 3}).size() == 3);
  CHECK(muster::data::open_raw({path}, layout{.shape = {3}, .skip = 4, .count = 2}).view(1).data()[2] ==
        std::byte{'9'});
  CHECK_THROWS_WITH(
      muster::data::open_raw({path}, layout{.shape = {3}, .count = 4}),
      contains("file: byte 10: ends before its last record (after 0 bytes it has 3 of 4 records of 3 bytes)"));
  CHECK_THROWS_WITH(muster::data::open_raw({path}, layout{.shape = {3}, .skip = 11, .count = 1}),
                    contains("it has 0 of 1 records"));
  CHECK_THROWS_AS(muster::data::open_raw({path}, layout{.shape = {3}, .count = ~std::uint64_t{0}}), muster::data_error);
  CHECK_THROWS_AS(muster::data::open_raw({path}, layout{.shape = {5}, .skip = 10}), muster::data_error);
  CHECK_THROWS_AS(muster::data::open_raw({path}, layout{.shape = {5}, .record_bytes = 4}), muster::configuration_error);
  CHECK_THROWS_AS(muster::data::open_raw({path}, layout{.shape = {0}}), muster::configuration_error);
  const std::uint64_t huge = std::uint64_t{1} << 63;
  CHECK_THROWS_AS(muster::data::open_raw({path}, layout{.shape = {huge, 2}}), muster::configuration_error);
  CHECK_THROWS_AS(muster::data::open_raw({path}, layout{.shape = {huge}, .offset = huge}), muster::configuration_error);
  CHECK_THROWS_AS(muster::data::open_raw({path}, layout{.shape = {huge}}), muster::data_error);
}
