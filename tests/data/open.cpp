#include <muster/data/open.hpp>

#include <muster/core/error.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/source_statistics.hpp>
#include <muster/data/sources/libsvm.hpp>
#include "catch.hpp"
#include "files.hpp"
#include "test_records.hpp"

TEST_CASE("a source is opened by its specification, with the options passed on") {
  const temporary_folder folder;
  const std::string path = folder.write("with:colon,comma", "+1 1:1 2:1\n-1 2:3\n");
  const auto opened = muster::open_dataset("libsvm:" + path, {.layout = muster::layout::sparse, .min_features = 9});
  CHECK(opened.size() == 2);
  CHECK(opened.features() == 9);
  CHECK(opened.is_sparse());
  CHECK(opened.name() == "libsvm:" + path);
  CHECK_THROWS_AS(muster::open_dataset("libsvm:" + (folder / "missing")), muster::data_error);
}

TEST_CASE("a specification that is none, or of an unknown kind, is refused with what would do") {
  for (const char* wrong :
       {"", "a9a", "/data/a9a", ":a9a", "libsvm:", "csw:a9a", "libsvn:a9a", "idx:a,b,c", "idx:a,", "raw:,"}) {
    CAPTURE(std::string(wrong));
    CHECK_THROWS_AS(muster::open_dataset(wrong), muster::configuration_error);
  }
  CHECK_THROWS_WITH(muster::open_dataset("a9a"), contains("write libsvm:a9a"));
  CHECK_THROWS_WITH(muster::open_dataset(":a9a"), contains("write libsvm:a9a"));
  CHECK_THROWS_WITH(muster::open_dataset("libsvm:"), contains("write libsvm:PATH"));
  CHECK_THROWS_WITH(muster::open_dataset("mat:a9a"),
                    contains("source 'mat:a9a' cannot be used (scheme 'mat' is not one of libsvm, csv, "));
  CHECK_THROWS_WITH(muster::open_dataset("libsvn:a9a"), contains("did you mean 'libsvm'?"));
}

TEST_CASE("MNIST is opened by its folder, under the names of its files") {
  const temporary_folder folder;
  const auto images = [](char count) {
    std::string text("\0\0\x08\x03\0\0\0", 7);
    text += count;
    return text.append("\0\0\0\x02\0\0\0\x01", 8);
  };
  const auto labels = [](char count) { return std::string("\0\0\x08\x01\0\0\0", 7) + count; };
  folder.write("train-images-idx3-ubyte", images(3) + "abcdef");
  folder.write("train-labels-idx1-ubyte", labels(3) + "\x05\x06\x07");
  folder.write("t10k-images-idx3-ubyte", images(1) + "xy");
  CHECK(muster::open_source("mnist:" + (folder / "")).size() == 3);
  CHECK(muster::open_dataset("mnist:" + (folder / "")).label(2) == 7);
  CHECK_THROWS_WITH(muster::open_source("mnist:" + (folder / "") + "?split=test"), contains("t10k-labels-idx1-ubyte"));
  folder.write("t10k-labels-idx1-ubyte.gz", "no zlib stream");
  CHECK_THROWS_WITH(muster::open_source("mnist:" + (folder / "") + "?split=test"),
                    contains("t10k-labels-idx1-ubyte.gz"));
}

TEST_CASE("IDX files may have a test set beside them, whole and there") {
  const temporary_folder folder;
  const std::string images = folder.write("images", std::string("\0\0\x08\x02\0\0\0\x03\0\0\0\x02", 12) + "abcdef");
  const std::string labels = folder.write("labels", std::string("\0\0\x08\x01\0\0\0\x03\5\6\7", 11));
  const std::string test_images = folder.write("test", std::string("\0\0\x08\x02\0\0\0\x01\0\0\0\x02", 12) + "xy");
  const std::string test_labels = folder.write("of_test", std::string("\0\0\x08\x01\0\0\0\x01\4", 9));
  const std::string train = "idx:" + images + "," + labels;
  const std::string both = train + "?test-images=" + test_images + "&test-labels=" + test_labels;
  CHECK(muster::open_source(both).size() == 3);
  CHECK(muster::open_dataset(both + "&split=train").label(2) == 7);
  CHECK(muster::open_source(both + "&split=test").size() == 1);
  CHECK(muster::open_dataset(both + "&split=test").label(0) == 4);
  CHECK_THROWS_WITH(muster::open_source(train + "?test-images=" + test_images),
                    contains("test-images and test-labels belong together, and test-labels is not given"));
  CHECK_THROWS_WITH(muster::open_source(train + "?test-labels=" + test_labels), contains("test-images is not given"));
  CHECK_THROWS_WITH(muster::open_source(train + "?split=test"), contains("it has no test set"));
  CHECK_THROWS_WITH(muster::open_source(train + "?test-images=/missing&test-labels=" + test_labels + "&split=test"),
                    contains("/missing"));
}

TEST_CASE("errors say what is wrong with a connection or an address, and never its password or signature") {
  const std::string url = "postgresql://me:secret@db/x";
  const std::pair<std::string, std::string> wrong[] = {
      {"postgres:" + url, "it has no query"},
      {"postgres:host=db password=secret", "it has no query"},
      {"postgres:password = 'a secret' host=db?query=SELECT 1&missing=maybe", "missing 'maybe' is not one of"},
      {"postgres:" + url + "?query=SELECT 1&timeout=soon", "timeout 'soon' is not a number"},
      {"postgres:" + url + "?query=SELECT 1&bad=bury", "bad 'bury' is not one of"},
      {"postgres:" + url + "?query=SELECT 1&keys=id", "did you mean 'key'?"},
      {"postgres:" + url + "?query=SELECT 1&2", "'2' is not KEY=VALUE"},
      {"postgres:postgresql://db/x?password=secret&query=SELECT 1", "'password' is not one of"},
      {url + "?query=SELECT 1", "did you mean 'postgres'?"},
      {"host=db password=secret", "does not name the kind of data"},
      {"csv:https://server/x.csv?sv=1&sig=secret", "is not one of"},
      {"csv:https://server/x.csv?X-Amz-Credential=secret&X-Amz-Signature=secret", "is not one of"},
      {"mix:postgres:" + url + "?query=SELECT 1,records:/a=0.5", "has no weight"}};
  for (const auto& [source, problem] : wrong)
    CHECK_THROWS_WITH(muster::open_source(source), contains(problem) && !contains("secret"));
}

TEST_CASE("every source of the table is known") {
  for (const auto& source : muster::source_table()) {
    CHECK_THROWS_AS(muster::open_source(std::string(source.scheme) + ":/missing?shape=1"), muster::error);
    CHECK_FALSE(source.help.empty());
  }
}

TEST_CASE("a registered source is opened by its scheme, as records or as samples") {
  muster::register_source(
      {"count", "NUMBER", "from=N", "so many whole numbers"},
      [](muster::spec_reader& reader, const muster::read_options& options) -> muster::opened_source {
        const auto size = reader.read_whole("number", reader.value("number"), 1, 100);
        auto builder = muster::data::dataset_builder::dense(reader.text(), size, 1 + options.min_features);
        for (std::size_t i = 0; i < size; ++i) builder.labels()[i] = static_cast<float>(i + reader.whole_of("from", 0));
        return builder.finish();
      });
  muster::register_source(
      {"ids", "NUMBER", "", "their own ids"},
      [](muster::spec_reader& reader, const muster::read_options&) -> muster::opened_source {
        return test_records({.size = reader.read_whole("number", reader.value("number"), 1, 100), .shape = {2}});
      });
  const auto samples = muster::open_dataset("count:5?from=3", {.min_features = 2});
  CHECK(samples.size() == 5);
  CHECK(samples.features() == 3);
  CHECK(muster::open_source("count:5").digest() == muster::open_dataset("count:5").digest());
  CHECK(muster::open_source("ids:7").size() == 7);
  CHECK(muster::open_dataset("ids:7").label(6) == 6);
  CHECK(muster::source_table().back().scheme == "ids");

  CHECK_THROWS_WITH(muster::open_source("count:x"), contains("number 'x' is not a whole number"));
  CHECK_THROWS_WITH(muster::open_source("count:5?form=3"), contains("did you mean 'from'?"));
  CHECK_THROWS_WITH(muster::open_source("ids:5?a=3"),
                    contains("'a' is one too many") && contains("such as ids:NUMBER"));
  CHECK_THROWS_WITH(muster::open_source("cuont:5"), contains("postgres, count, ids") && contains("mean 'count'?"));

  const auto open = [](muster::spec_reader&, const muster::read_options&) -> muster::opened_source {
    return test_records({});
  };
  for (const char* const name : {"count", "csv", "", "Count", "a:b"})
    CHECK_THROWS_WITH(muster::register_source({name, "", "", ""}, open), contains("cannot be registered"));
  CHECK_THROWS_AS(muster::register_source({"nothing", "", "", ""}, nullptr), muster::configuration_error);
}

TEST_CASE("options are taken, and what is no option is part of the path or refused") {
  const temporary_folder folder;
  const std::string table = folder.write("table", "a;b\n1;?\nx;3\n");
  const auto read =
      muster::open_dataset("csv:" + table + "?delimiter=semicolon&label=b&missing=zero&bad=keep&features=3");
  CHECK(read.size() == 2);
  CHECK(read.features() == 3);
  CHECK(read.bad().size() == 2);  // `missing` applies to features: a row without label is bad
  CHECK(muster::open_dataset("csv:" + table + "?delimiter=%3b&label=1&missing=nan&bad=keep").label(1) == 0);
  CHECK_THROWS_WITH(muster::open_dataset("csv:" + table + "?lable=b"), contains("did you mean 'label'?"));
  CHECK_THROWS_WITH(muster::open_dataset("csv:" + table + "?header=2"),
                    contains("header '2' is not one of automatic, 1, 0"));
  CHECK_THROWS_WITH(muster::open_dataset("csv:" + table + "?bad=keep&bad=fail"), contains("'bad' is given twice"));
  CHECK_THROWS_WITH(muster::open_dataset("idx:a,b,c"), contains("a comma in a path is %2C"));
  CHECK_THROWS_WITH(muster::open_dataset("npy:" + table + "?a=b"), contains("('a' is one too many: it takes no keys)"));
  CHECK_THROWS_WITH(muster::open_dataset("libsvm:" + table + "?features=-1"), contains("is not a whole number"));
  // Text without '=' is not an option, but part of a path.
  CHECK_THROWS_WITH(muster::open_dataset("libsvm:" + table + "?features"), contains("table?features"));
  CHECK(muster::open_dataset("libsvm:" + folder.write("what?", "1 2:3\n")).size() == 1);

  const std::string raw = folder.write("raw,1", "\1abcd\2efgh");
  CHECK_THROWS_AS(muster::open_source("raw:" + raw + "?shape=2x2"), muster::data_error);  // two files that do not exist
  const std::string escaped = (folder / "raw") + "%2C1";
  const auto source = muster::open_source("raw:" + escaped + "," + escaped + "?shape=2x2&offset=1&label=uint8@0");
  CHECK(source.size() == 4);
  CHECK(source.schema().fields.front().shape == std::vector<std::uint64_t>{2, 2});
  for (const char* wrong : {"shape=2x", "shape=x2", "shape=2y2", "shape=99999999999999999999", "type=int",
                            "shape=2&label=uint8", "shape=2&label=uint8@", "shape=2&label=uint8@x", "shape=0"}) {
    CAPTURE(std::string(wrong));
    CHECK_THROWS_AS(muster::open_source("raw:" + escaped + "?" + wrong), muster::configuration_error);
  }
}

TEST_CASE("records of any form become samples, unless they are bytes") {
  const temporary_folder folder;
  const std::string raw = folder.write("raw", std::string("\1\0\x80\2\xff\7", 6));
  const auto dense = muster::open_dataset("raw:" + raw + "?shape=2&offset=1&label=uint8@0", {.min_features = 3});
  CHECK(dense.features() == 3);
  CHECK(std::vector<float>(dense.row(1).begin(), dense.row(1).end()) == std::vector<float>{255, 7, 0});
  CHECK(std::vector<float>(dense.labels().begin(), dense.labels().end()) == std::vector<float>{1, 2});
  CHECK_THROWS_AS(muster::open_dataset("raw:" + raw + "?shape=3", {.layout = muster::layout::sparse}),
                  muster::configuration_error);

  const auto sparse = muster::data::parse_libsvm("3 1:5 7:8\n4\n5 2:1\n", "s", {.layout = muster::layout::sparse});
  {
    muster::data::record_file_writer writer(folder / "file", sparse.schema());
    for (muster::sample_id id = 0; id < sparse.size(); ++id) {
      std::uint64_t size = 0;
      sparse.sizes({&id, 1}, {&size, 1});
      std::vector<std::byte> bytes(size);
      float label = 0;
      sparse.read({&id, 1}, {bytes, {&label, 1}});
      writer.append(bytes, {&label, 1});
    }
    writer.commit();
  }
  const auto back = muster::open_dataset("records:" + (folder / "file"));
  CHECK(back.digest() == sparse.digest());
  muster::data::record_file_writer bytes(folder / "bytes", {muster::data::record_form::bytes, {}, 0, {}});
  bytes.append({}, {});
  bytes.commit();
  CHECK_THROWS_AS(muster::open_dataset("records:" + (folder / "bytes")), muster::configuration_error);
}

TEST_CASE("sparse records that cannot be are bad, or refuse the file, whatever made it") {
  const temporary_folder folder;
  const auto open = [&](const std::string& name, const std::vector<std::vector<std::byte>>& records) {
    muster::data::record_file_writer writer(folder / name, {muster::data::record_form::sparse, {}, 10, {"label"}});
    const float label = 1;
    for (const auto& record : records) writer.append(record, {&label, 1});
    writer.commit();
    return muster::open_source("records:" + (folder / name));
  };
  const auto record_of = [](const std::vector<muster::data::sparse_entry>& entries) {
    const auto bytes = std::as_bytes(std::span(entries));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  // A record with one and a half entries. If each record were counted as one entry, 256 records would exceed their
  // memory.
  const auto cut = open("cut", std::vector(256, std::vector<std::byte>(12)));
  for (const bool keep : {false, true}) {
    CHECK_THROWS_AS(muster::load(cut, {.keep_bad_records = keep}), muster::data_error);
  }
  CHECK_THROWS_AS(muster::statistics(cut), muster::data_error);

  const std::vector<std::vector<muster::data::sparse_entry>> wrong = {
      {{4'000'000'000, 5}}, {{10, 5}}, {{3, 5}, {3, 5}}, {{1, 5}, {7, 5}, {2, 5}}};
  for (std::size_t k = 0; k < wrong.size(); ++k) {
    CAPTURE(k);
    const auto source =
        open("wrong" + std::to_string(k), {record_of({{0, 2}, {9, 2}}), record_of(wrong[k]), record_of({{4, 8}})});
    CHECK_THROWS_AS(muster::load(source), muster::data_error);
    CHECK_THROWS_WITH(muster::load(source), contains("record 1: has indices"));
    const auto data = muster::load(source, {.keep_bad_records = true});
    REQUIRE(data.bad().size() == 1);
    CHECK(data.bad().front().id == 1);
    CHECK(data.label(0) == 1);
    CHECK(data.label(1) == 0);
    CHECK(data.sparse(2).values.front() == 8);
    for (const float value : data.sparse(1).values) CHECK(value == 0);
    const auto found = muster::statistics(source);
    CHECK(found.records == 2);
    CHECK(found.left_out == 1);
    REQUIRE(found.columns.size() == 10);
    CHECK(found.columns[9].greatest == 2);
    CHECK(found.columns[4].greatest == 8);
    CHECK(found.columns[7].greatest == 0);
  }
  // More entries than features. If they were stored as zeros, they would have no indices.
  const auto many = open("many", {record_of(std::vector<muster::data::sparse_entry>(11, {3, 5}))});
  CHECK_THROWS_AS(muster::load(many, {.keep_bad_records = true}), muster::data_error);
  CHECK_THROWS_AS(muster::statistics(many), muster::data_error);
}
