#include <muster/data/classes.hpp>

#include <cmath>
#include <filesystem>
#include <map>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/data/cache.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/open.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/sources/image_folder.hpp>
#include "catch.hpp"
#include "files.hpp"

namespace {

void make_images(const temporary_folder& folder, const std::string& set, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    std::filesystem::create_directories(std::filesystem::path(folder / (set + "/" + file)).parent_path());
    folder.write(set + "/" + file, file);
  }
}

// Returns a label for each record. The key is the record's bytes, which are the name of its file.
std::map<std::string, float> labels_by_file(const muster::data::any_record_source& source) {
  std::map<std::string, float> found;
  for (muster::sample_id id = 0; id < source.size(); ++id) {
    std::uint64_t size = 0;
    source.sizes({&id, 1}, {&size, 1});
    std::string text(size, '\0');
    float label = -1;
    source.read({&id, 1}, {std::as_writable_bytes(std::span(text)), {&label, 1}});
    found[text] = label;
  }
  return found;
}

muster::data::any_record_source labelled(const std::vector<float>& labels) {
  auto builder = muster::data::dataset_builder::dense("made", labels.size(), 1);
  for (std::size_t k = 0; k < labels.size(); ++k) {
    builder.labels()[k] = labels[k];
    builder.row(k)[0] = static_cast<float>(k + 1);
  }
  return builder.finish();
}

}  // namespace

TEST_CASE("a cache of a source with classes knows files that take the place of others of the same size") {
  const temporary_folder folder;
  make_images(folder, "a", {"cat/x.jpg", "dog/y.jpg"});
  const auto open = [&] {
    return muster::with_classes(muster::open_source("images:" + folder / "a"), std::vector<std::string>{"cat", "dog"});
  };
  const auto first_bytes = [&] {
    auto loader = open() | muster::batch(1) | muster::cache(folder / "cache");
    const auto bytes = loader.next({0, 1}).bytes;
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const auto before = open();
  CHECK(before.host_state() == muster::open_source("images:" + folder / "a").host_state());
  CHECK(before.host_state() == before.host_state_now());
  CHECK(first_bytes() == "cat/x.jpg");
  CHECK(first_bytes() == "cat/x.jpg");
  folder.write("a/cat/x.jpg", "CAT/X.JPG");
  CHECK(before.host_state() != before.host_state_now());
  CHECK(open().digest() == before.digest());
  CHECK(first_bytes() == "CAT/X.JPG");
}

TEST_CASE("the classes of a folder are those of its images, in the order of numbers and names, and the rest is told") {
  const temporary_folder folder;
  make_images(folder, "a",
              {"10/x.jpg", "2/x.jpg", "0/x.jpg", "007/x.jpg", "cat/x.JPEG", "Dog/y.jpg", "Dog/b.jpeg",
               ".ipynb_checkpoints/x.jpg", "cat/._x.jpg", "cat/x.PNG", "cat/x.gif", "readme.txt", "cat/deep/x.jpg"});
  std::filesystem::create_directories(folder / "a/empty");
  std::vector<std::string> messages;
  muster::set_log_callback([&](const muster::log_message& message) { messages.emplace_back(message.text); });
  const auto source = muster::open_source("images:" + folder / "a");
  muster::set_log_callback({});
  CHECK(source.schema().classes == std::vector<std::string>{"0", "2", "007", "10", "Dog", "cat"});
  CHECK(labels_by_file(source) == std::map<std::string, float>{{"0/x.jpg", 0},
                                                               {"2/x.jpg", 1},
                                                               {"007/x.jpg", 2},
                                                               {"10/x.jpg", 3},
                                                               {"Dog/b.jpeg", 4},
                                                               {"Dog/y.jpg", 4},
                                                               {"cat/x.JPEG", 5},
                                                               {"cat/x.PNG", 5}});
  REQUIRE(source.notes().size() == 1);
  CHECK(messages == source.notes());
  CHECK_THAT(messages[0], contains("2 folders") && contains(".ipynb_checkpoints") && contains("empty") &&
                              contains("4 entries") && contains("readme.txt"));
  CHECK(to_string(source.schema()) == "bytes, label label of 6 classes (0, 2, 007, ...)");
  make_images(folder, "b", {"x/1.jpg"});
  CHECK(muster::open_source("images:" + folder / "b").notes().empty());
}

TEST_CASE("classes are matched by name, wherever the records lie") {
  const temporary_folder folder;
  make_images(folder, "train", {"ant/1.jpg", "cat/2.jpg", "dog/3.jpg"});
  make_images(folder, "val", {"cat/4.jpg", "dog/5.jpg"});
  make_images(folder, "more", {"cat/4.jpg", "eel/5.jpg"});
  const auto train = muster::open_source("images:" + folder / "train");
  const auto val = muster::open_source("images:" + folder / "val");
  const std::map<std::string, float> right = {{"cat/4.jpg", 1}, {"dog/5.jpg", 2}};
  CHECK(labels_by_file(val) == std::map<std::string, float>{{"cat/4.jpg", 0}, {"dog/5.jpg", 1}});
  const auto matched = muster::with_classes(val, train.schema().classes);
  CHECK(labels_by_file(matched) == right);
  CHECK(matched.schema().classes == train.schema().classes);
  CHECK(matched.digest() != val.digest());
  CHECK(muster::with_classes(train, train.schema().classes).digest() == train.digest());
  const auto more = muster::open_source("images:" + folder / "more");
  CHECK_THROWS_WITH(muster::with_classes(more, train.schema().classes),
                    contains("more: has the class 'eel' (the expected classes are ant, cat, dog)"));

  // The names are stored with the records, and then matched with the stored names.
  const std::string path = folder / "val.muster";
  {
    muster::data::record_file_writer writer(path, val.schema(), {});
    for (const auto& [text, label] : labels_by_file(val)) writer.append(std::as_bytes(std::span(text)), {&label, 1});
    (void)writer.commit();
  }
  const auto records = muster::open_source("records:" + path);
  CHECK(records.schema() == val.schema());
  CHECK(labels_by_file(muster::with_classes(records, train.schema().classes)) == right);

  const auto mixed = muster::open_source("mix:images:" + folder / "train" + "=1,records:" + path + "=1");
  CHECK(labels_by_file(mixed) ==
        std::map<std::string, float>{
            {"ant/1.jpg", 0}, {"cat/2.jpg", 1}, {"dog/3.jpg", 2}, {"cat/4.jpg", 1}, {"dog/5.jpg", 2}});
  CHECK_THROWS_WITH(muster::open_source("mix:images:" + folder / "train" + "=1,images:" + folder / "more" + "=1"),
                    contains("has the class 'eel'"));
}

TEST_CASE("a label that is not a class is a bad record, with its place") {
  const float wrong[] = {2.5f, -1, 10, 16777216, std::nextafter(10.0f, 0.0f)};
  for (const float label : wrong) {
    CAPTURE(label);
    const auto source = muster::with_classes(labelled({9, label, 0}), 10);
    CHECK(source.mapped());
    std::vector<float> labels(3);
    std::vector<std::byte> bytes(12);
    const std::vector<muster::sample_id> ids = {2, 1, 0, 1};
    CHECK_THROWS_WITH(source.read(ids, {{}, labels}), contains("made, record 1: label ") && contains("is not a class"));
    std::vector<muster::bad_record> bad;
    labels.resize(4);
    bytes.resize(16);
    source.read(ids, {bytes, labels}, &bad);
    CHECK(bad.size() == 2);
    CHECK(labels == std::vector<float>{0, 0, 9, 0});
    std::span<const std::byte> view;
    CHECK_THROWS_AS(source.views({&ids[1], 1}, {&view, 1}), muster::data_error);
    CHECK_THROWS_WITH(muster::class_of(label, 10),
                      contains("label ") && contains("is not a class") && !contains(": :"));
  }
  CHECK(muster::class_of(9, 10) == 9);
  CHECK_THROWS_AS(muster::class_of(std::nanf(""), 10), muster::data_error);
}
