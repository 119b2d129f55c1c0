// Tests of the labels of every source. A label is never invented, rounded or truncated, and a record without a valid
// label is bad.
#include <muster/data/open.hpp>

#include <cmath>
#include <functional>
#include <limits>

#include <muster/core/error.hpp>
#include <muster/data/bad_records.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/source_statistics.hpp>
#include "catch.hpp"
#include "files.hpp"
#include "records.hpp"
#include "sources/example_messages.hpp"

namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

template <class T>
std::string npy(const std::string& descr, const std::string& shape, const std::vector<T>& values) {
  const std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string text = "\x93NUMPY";
  text += {'\1', '\0', static_cast<char>(header.size()), '\0'};
  return text + header + std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// Returns the second of three labels, or nothing if its record is bad; the other two are right.
std::optional<float> second_label(const std::string& specification) {
  const auto source = muster::open_source(specification, {.keep_bad_records = true});
  REQUIRE(source.size() == 3);
  const std::vector<muster::sample_id> ids = {0, 1, 2};
  std::vector<std::byte> bytes(3 * source.schema().record_bytes());
  std::vector<float> labels(3, -77.0f);
  std::vector<muster::bad_record> bad;
  source.read(ids, {bytes, labels}, &bad);
  CHECK(labels[0] == 1);
  CHECK(labels[2] == 2);
  const auto loaded = muster::open_dataset(specification, {.keep_bad_records = true});
  CHECK(loaded.bad().size() == bad.size());
  const auto found = muster::statistics(source);
  CHECK(found.left_out == bad.size());
  CHECK(found.label.count == 3 - bad.size());
  if (bad.empty()) {
    CHECK_FALSE((labels[1] == 0 && std::signbit(labels[1])));
    CHECK(loaded.label(1) == labels[1]);
    CHECK(muster::open_dataset(specification).size() == 3);
    return labels[1];
  }
  REQUIRE(bad.size() == 1);
  CHECK(bad[0].id == 1);
  CHECK_FALSE(bad[0].location.file.empty());
  CHECK_FALSE(bad[0].problem.empty());
  CHECK(labels[1] == 0);
  CHECK_THROWS_AS(muster::open_dataset(specification), muster::data_error);
  CHECK_THROWS_AS(muster::open_source(specification).read(ids, {bytes, labels}), muster::data_error);
  auto loader = muster::open_source(specification, {.keep_bad_records = true}) | muster::batch(3) |
                muster::on_bad_records({.policy = muster::bad_record_policy::skip});
  const auto batch = loader.next({0, 1});
  CHECK(std::vector<muster::sample_id>(batch.samples.begin(), batch.samples.end()) ==
        std::vector<muster::sample_id>{0, 2});
  CHECK(std::vector<float>(batch.labels.begin(), batch.labels.end()) == std::vector<float>{1, 2});
  return std::nullopt;
}

}  // namespace

TEST_CASE("labels of binary arrays are kept exactly, or their records are bad") {
  const temporary_folder folder;
  folder.write("x.npy", npy<float>("<f4", "(3, 1)", {5, 6, 7}));
  const auto of_npy = [&]<class T>(const std::string& descr, T second) {
    folder.write("y.npy", npy<T>(descr, "(3,)", {T{1}, second, T{2}}));
    return second_label("npy:" + folder / "x.npy" + "," + folder / "y.npy");
  };
  CHECK(of_npy("<f4", 2.5f) == 2.5f);
  CHECK(of_npy("<f4", -0.0f) == 0.0f);
  CHECK(of_npy("<f4", 3e38f) == 3e38f);
  CHECK(of_npy("<f4", not_a_number) == std::nullopt);
  CHECK(of_npy("<f4", infinite) == std::nullopt);
  CHECK(of_npy("<f4", -infinite) == std::nullopt);
  CHECK(of_npy("<f8", 0.1) == 0.1f);
  CHECK(of_npy("<f8", -0.0) == 0.0f);
  CHECK(of_npy("<f8", 16777216.0) == 16777216.0f);
  CHECK(of_npy("<f8", 16777217.0) == std::nullopt);
  CHECK(of_npy("<f8", 16777216.5) == std::nullopt);
  CHECK(of_npy("<f8", 1.99999999999) == std::nullopt);
  CHECK(of_npy("<f8", 1e-60) == std::nullopt);
  CHECK(of_npy("<f8", 1e300) == std::nullopt);
  CHECK(of_npy("<f8", double{not_a_number}) == std::nullopt);
  CHECK(of_npy("<i8", std::int64_t{-1}) == -1.0f);
  CHECK(of_npy("<i8", std::int64_t{16777218}) == 16777218.0f);
  CHECK(of_npy("<i8", std::int64_t{16777217}) == std::nullopt);
  CHECK(of_npy("<i8", std::numeric_limits<std::int64_t>::max()) == std::nullopt);
  CHECK(of_npy("<i8", std::numeric_limits<std::int64_t>::min()) == -9223372036854775808.0f);
  CHECK(of_npy("<u8", std::numeric_limits<std::uint64_t>::max()) == std::nullopt);
  CHECK(of_npy("<i4", std::int32_t{16777217}) == std::nullopt);
  CHECK(of_npy("<u4", std::uint32_t{4294967295}) == std::nullopt);
  CHECK(of_npy("<u2", std::uint16_t{65535}) == 65535.0f);
  folder.write("y.npy", npy<std::int64_t>("<i8", "(3,)", {1, 16777217, 2}));
  const auto source = muster::open_source("npy:" + folder / "x.npy" + "," + folder / "y.npy");
  std::vector<float> labels(3);
  CHECK_THROWS_WITH(source.read(std::vector<muster::sample_id>{0, 1, 2}, {{}, labels}),
                    contains("y.npy: byte ") && contains("label 16777217 of record 1"));
  // The same record is bad if it is read without labels, and if it is read by a view.
  check_source(source,
               {{bytes_of(std::span<const float>({5.0f})), {1}},
                {std::vector<std::byte>(4), {0}, true},
                {bytes_of(std::span<const float>({7.0f})), {2}}},
               1);
}

TEST_CASE("labels within raw records are kept exactly, or the record is bad") {
  const temporary_folder folder;
  const auto of_raw = [&]<class T>(const std::string& type, T second) {
    std::string text;
    for (const T label : {T{1}, second, T{2}}) {
      text += std::string(reinterpret_cast<const char*>(&label), sizeof label) + "ab";
    }
    folder.write("r.bin", text);
    return second_label("raw:" + folder / "r.bin" + "?shape=2&offset=" + std::to_string(sizeof(T)) + "&label=" + type +
                        "@0");
  };
  CHECK(of_raw("uint8", std::uint8_t{255}) == 255.0f);
  CHECK(of_raw("int64", std::int64_t{16777217}) == std::nullopt);
  CHECK(of_raw("float32", not_a_number) == std::nullopt);
  CHECK(of_raw("float64", 1e39) == std::nullopt);
}

TEST_CASE("labels of messages are kept exactly, or the message is bad") {
  using namespace messages;
  const temporary_folder folder;
  const auto of_messages = [&](const std::string& second) {
    std::string file;
    for (const std::string& label : {whole_numbers({1}), second, whole_numbers({2})})
      file += frame(example(entry("x", floats({5})) + entry("y", label)));
    return second_label("tfrecord:" + folder.write("t", file) + "?features=x:float32&label=y");
  };
  CHECK(of_messages(whole_numbers({-3})) == -3.0f);
  CHECK(of_messages(whole_numbers({16777217})) == std::nullopt);
  CHECK(of_messages(whole_numbers({9007199254740993})) == std::nullopt);
  CHECK(of_messages(floats({0.5f})) == 0.5f);
  CHECK(of_messages(floats({-0.0f})) == 0.0f);
  CHECK(of_messages(floats({not_a_number})) == std::nullopt);
  CHECK(of_messages(floats({infinite})) == std::nullopt);
  CHECK(of_messages(floats({})) == std::nullopt);
}

TEST_CASE("labels of text are kept exactly, or the row is bad") {
  const temporary_folder folder;
  const auto of_csv = [&](const std::string& second, const std::string& missing) {
    const auto path = folder.write("t.csv", "x,y\n5,1\n6," + second + "\n7,2\n");
    return second_label("csv:" + path + "?label=y&missing=" + missing);
  };
  const auto of_libsvm = [&](const std::string& second) {
    return second_label("libsvm:" + folder.write("t", "1 1:5\n" + second + " 1:6\n2 1:7\n") + "?layout=dense");
  };
  for (const std::string missing : {"fail", "zero", "nan"}) {
    for (const std::string word : {"", "\"\"", "NA", "nan", "NULL", "?"}) CHECK(of_csv(word, missing) == std::nullopt);
  }
  const std::pair<std::string, std::optional<float>> words[] = {{"-1", -1.0f},
                                                                {"+1", 1.0f},
                                                                {"-0", 0.0f},
                                                                {"-0.0", 0.0f},
                                                                {"3.000", 3.0f},
                                                                {"2.5", 2.5f},
                                                                {"0.1", 0.1f},
                                                                {"1e2", 100.0f},
                                                                {"1.0e+1", 10.0f},
                                                                {"100e-1", 10.0f},
                                                                {"16777216", 16777216.0f},
                                                                {"16777217", std::nullopt},
                                                                {"16777218.0", 16777218.0f},
                                                                {"1.6777216e7", 16777216.0f},
                                                                {"9007199254740993", std::nullopt},
                                                                {"9007199254740992", 9007199254740992.0f},
                                                                {"18446744073709551617", std::nullopt},
                                                                {"1.99999999999", std::nullopt},
                                                                {"0.99999999999999999999", std::nullopt},
                                                                {"1e-60", std::nullopt},
                                                                {"1e39", std::nullopt},
                                                                {"inf", std::nullopt},
                                                                {"cat", std::nullopt}};
  for (const auto& [word, expected] : words) {
    CAPTURE(word);
    CHECK(of_csv(word, "fail") == expected);
    CHECK(of_libsvm(word) == expected);
  }
  CHECK(of_libsvm("nan") == std::nullopt);
  // A policy for missing features does not apply to labels.
  const auto path = folder.write("m.csv", "x,y\n,1\n6,\n7,2\n");
  const auto read = muster::open_dataset("csv:" + path + "?label=y&missing=zero&bad=keep");
  REQUIRE(read.bad().size() == 1);
  CHECK(read.bad()[0].location.to_string() == path + ":3:3");
  CHECK_THAT(read.bad()[0].problem, contains("the label is missing") && !contains("choose missing=zero"));
}

TEST_CASE("labels that are not finite are bad in records and in sources of programs") {
  const temporary_folder folder;
  const std::string path = folder / "r.muster";
  {
    muster::data::record_file_writer writer(
        path, {muster::data::record_form::fixed, {{"x", muster::dtype::uint8, {1}}}, 0, {"y"}}, {});
    for (const float label : {1.0f, not_a_number, 2.0f})
      writer.append(bytes_of(std::span<const char>("a", 1)), {&label, 1});
    (void)writer.commit();
  }
  CHECK(second_label("records:" + path) == std::nullopt);
  CHECK(second_label("mix:records:" + path + "=1") == std::nullopt);
}

TEST_CASE("numbers beyond float32 are no features, and say so with their record") {
  const temporary_folder folder;
  const auto with = [&]<class T>(const std::string& descr, T second) {
    folder.write("x.npy", npy<T>(descr, "(3, 2)", {T{1}, T{2}, T{3}, second, T{5}, T{6}}));
    return "npy:" + folder / "x.npy";
  };
  for (const double value : {1e300, -1e39, double{infinite}}) {
    const std::string source = with("<f8", value);
    CHECK_THROWS_WITH(muster::open_dataset(source), contains("x.npy, record 1: has the number ") && contains("values"));
    const auto data = muster::open_dataset(source, {.keep_bad_records = true});
    REQUIRE(data.bad().size() == 1);
    CHECK(data.bad()[0].id == 1);
    CHECK(data.row(1)[0] == 0);
    CHECK(data.row(2)[1] == 6);
    const auto found = muster::statistics(muster::open_source(source));
    CHECK(found.records == 2);
    CHECK(found.left_out == 1);
  }
  CHECK_THROWS_AS(muster::open_dataset(with("<f4", infinite)), muster::data_error);
  CHECK(std::isnan(muster::open_dataset(with("<f8", double{not_a_number})).row(1)[1]));
}
