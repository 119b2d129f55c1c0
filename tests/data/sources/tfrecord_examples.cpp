#include <muster/data/sources/tfrecord_examples.hpp>

#include <muster/core/error.hpp>
#include <muster/data/open.hpp>
#include "../files.hpp"
#include "../records.hpp"
#include "catch.hpp"
#include "example_messages.hpp"

using namespace messages;

namespace {

template <class T>
void append(std::vector<std::byte>& output, const std::vector<T>& values) {
  const auto more = bytes_of(std::span<const T>(values));
  output.insert(output.end(), more.begin(), more.end());
}

}  // namespace

TEST_CASE("features of Examples become columns, whatever their order and however they are packed") {
  const temporary_folder folder;
  muster::random_stream random(61);
  std::string file;
  std::vector<expected_record> expected;
  for (int k = 0; k < 200; ++k) {
    std::vector<float> rgb(8);
    for (float& value : rgb) value = static_cast<float>(random.below(1000)) / 7;
    std::vector<std::int64_t> tags(random.below(6));
    for (auto& tag : tags) tag = static_cast<std::int64_t>(random.below(4000)) - 2;
    std::string pixels(6, '\0');
    for (char& pixel : pixels) pixel = static_cast<char>(random.below(256));
    const auto weight = static_cast<float>(k) / 4;
    const bool packed = random.below(2) == 0;
    std::vector<std::string> entries = {entry("rgb", floats(rgb, packed)),
                                        entry("tags", whole_numbers(tags, packed)),
                                        entry("pixels", bytes({pixels.substr(0, 2), "", pixels.substr(2)})),
                                        entry("weight", floats({weight})),
                                        entry("class", whole_numbers({k})),
                                        entry("not asked for", bytes({"xyz"}))};
    if (tags.empty() && packed) entries[1].clear();  // proto3 omits empty fields
    std::string all;
    while (!entries.empty()) {
      const auto at = random.below(entries.size());
      all += entries[at];
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(at));
    }
    file += frame(example(all));
    expected_record record{{}, {static_cast<float>(k), weight}};
    append(record.bytes, rgb);
    tags.resize(5, -1);
    append(record.bytes, tags);
    append(record.bytes, std::vector<char>(pixels.begin(), pixels.end()));
    expected.push_back(record);
  }
  const std::string path = folder.write("examples", file);
  const std::string columns = "?features=rgb:float32[2x4],tags:int64[..5],pixels:uint8[6]&label=class,weight";
  const auto source = muster::open_source("tfrecord:" + path + columns);
  CHECK(to_string(source.schema()) == "rgb float32[2x4], tags int64[5], pixels uint8[6], label class, label weight");
  check_source(source, expected, 62);
  CHECK(source.digest() != muster::open_source("tfrecord:" + path).digest());
}

TEST_CASE("of a SequenceExample the steps of a list follow each other, and what is not there is padded") {
  const temporary_folder folder;
  std::string file;
  std::vector<expected_record> expected;
  for (const std::size_t frames : {0, 1, 3}) {
    std::vector<std::string> rgb, levels;
    expected_record record{{}, {static_cast<float>(frames)}};
    std::vector<std::uint8_t> all;
    std::vector<float> numbers;
    for (std::size_t k = 0; k < frames; ++k) {
      const std::string step = {static_cast<char>(k), static_cast<char>(200 + k)};
      all.insert(all.end(), step.begin(), step.end());
      rgb.push_back(bytes({step}));
      numbers.push_back(static_cast<float>(k) + 0.5f);
      levels.push_back(floats({numbers.back()}));
    }
    file += frame(example(entry("id", bytes({"abcd"})) + entry("count", whole_numbers({std::int64_t(frames)}))) +
                  feature_lists(entry("rgb", steps(rgb)) + entry("level", steps(levels))));
    all.resize(6);
    numbers.resize(4);
    append(record.bytes, all);
    append(record.bytes, numbers);
    append(record.bytes, std::vector<char>{'a', 'b', 'c', 'd'});
    expected.push_back(record);
  }
  const std::string path = folder.write("sequences", file);
  check_source(
      muster::open_source("tfrecord:" + path + "?features=rgb:uint8[..3x2],level:float32[..4],id:uint8[4]&label=count"),
      expected, 63);
}

TEST_CASE("bytes of any length are records of their own, and bad messages are bad records with their place") {
  const temporary_folder folder;
  const std::string good =
      example(entry("image/encoded", bytes({"a jpeg"})) + entry("image/class/label", whole_numbers({7})));
  const std::string second =
      example(entry("image/encoded", bytes({"longer bytes"})) + entry("image/class/label", whole_numbers({-3})));
  const std::vector<std::pair<std::string, std::string>> bad = {
      {good.substr(0, good.size() - 1), "the message is not a tf.train.Example"},
      {example(entry("image/class/label", whole_numbers({7}))), "'image/encoded' of the message has 0 values, not 1"},
      {example(entry("image/encoded", bytes({"a", "b"})) + entry("image/class/label", whole_numbers({7}))),
       "more than 1 value"},
      {example(entry("image/encoded", floats({1})) + entry("image/class/label", whole_numbers({7}))),
       "has floats (bytes x 1"},
      {example(entry("image/encoded", bytes({"a"})) + entry("image/class/label", bytes({"7"}))),
       "has bytes (float32 x 1"},
  };
  std::string file = frame(good);
  std::vector<expected_record> expected = {{bytes_of(std::span<const char>(std::string_view("a jpeg"))), {7}}};
  std::vector<std::uint64_t> places;
  for (const auto& [message, problem] : bad) {
    places.push_back(file.size());
    file += frame(message);
    expected.push_back({{}, {0}, true});
  }
  file += frame(second);
  expected.push_back({bytes_of(std::span<const char>(std::string_view("longer bytes"))), {-3}});
  const std::string path = folder.write("file", file);
  const auto source = muster::open_source("tfrecord:" + path + "?features=image/encoded:bytes&label=image/class/label");
  check_source(source, expected, 64);
  for (std::size_t k = 0; k < bad.size(); ++k) {
    const muster::sample_id id = k + 1;
    std::vector<muster::bad_record> found;
    std::vector<float> label(1);
    source.read({&id, 1}, {{}, label}, &found);
    REQUIRE(found.size() == 1);
    CHECK(found[0].location.file == path);
    CHECK(found[0].location.offset == places[k]);
    CHECK_THAT(found[0].problem, contains(bad[k].second));
  }
  const auto refused = [&](const std::string& message, const std::string& features, const std::string& why) {
    const std::string message_path = folder.write("one", frame(message));
    const auto opened = muster::open_source("tfrecord:" + message_path + "?features=" + features);
    const muster::sample_id id = 0;
    std::vector<std::byte> room(64);
    CHECK_THROWS_WITH(opened.read({&id, 1}, {room, {}}),
                      contains("one: byte 0: feature 'x' of the message ") && contains(why));
  };
  refused(example(entry("x", whole_numbers({300}))), "x:uint8", "has the value 300 (uint8 x 1 is requested)");
  refused(example(entry("x", whole_numbers({1, 2, 3}))), "x:uint8[..2]", "has more than 2 values");
  refused(example(entry("x", whole_numbers({1, 2, 3}))), "x:uint8[..2x2]", "has 3 values, not 4");
  refused(example(entry("x", bytes({"abc"}))), "x:float32",
          "has a number of bytes that is not a multiple of the element size");
  refused(example(entry("x", whole_numbers({5})) + entry("x", floats({5}))), "x:uint8", "has floats");
  refused(example(entry("x", field(3, field(1, "\x80")))), "x:int64", "is truncated");
  refused(example(entry("x", field(3, field(1, std::string(12, '\xff'))))), "x:int64", "is truncated");
}

TEST_CASE("of two features of one name the last one counts, whatever is wrong with the first") {
  const temporary_folder folder;
  const std::string good = entry("x", whole_numbers({7}));
  const std::vector<std::string> first = {floats({1}), whole_numbers({300}), whole_numbers({1, 2}), bytes({"ab"})};
  for (std::size_t k = 0; k < first.size(); ++k) {
    CAPTURE(k);
    const std::string path = folder.write("file", frame(example(entry("x", first[k]) + good)));
    check_source(muster::open_source("tfrecord:" + path + "?features=x:uint8"), {{{std::byte{7}}, {}}}, 65);
  }
}

TEST_CASE("columns that cannot be records are refused before a file is opened") {
  for (const std::string features :
       {"x", ":int64", "x:int65", "x:int64[]", "x:int64[0]", "x:int64[2xy]", "x:int64[2", "x:bytes,y:int64",
        "x:int64,x:int64", "x:bytes[3]", "x:uint8[1099511627776]", "x:int64[4294967296x4294967296]"}) {
    CAPTURE(features);
    const temporary_folder folder;
    const std::string path = folder.write("file", frame(example("")));
    CHECK_THROWS_WITH(muster::open_source("tfrecord:" + path + "?features=" + features),
                      contains("features '") && contains("; write for example"));
  }
}
