#include <muster/train/tensorboard_file.hpp>

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/sources/tfrecord.hpp>
#include <muster/elastic/state.hpp>
#include <muster/train/tracker.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"

namespace {

namespace fs = std::filesystem;

// A field of a Protocol Buffers message: a number, or bytes.
struct proto_field {
  int number = 0;
  std::uint64_t value = 0;
  std::string bytes{};
};

// Reads the fields of a message, independently of the writer.
std::vector<proto_field> fields_of(std::string_view message) {
  std::vector<proto_field> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const auto tag = varint();
    proto_field field{.number = static_cast<int>(tag >> 3)};
    if ((tag & 7) == 0) {
      field.value = varint();
    } else if ((tag & 7) == 2) {
      const auto size = varint();
      REQUIRE(size <= message.size() - at);
      field.bytes = message.substr(at, size);
      at += size;
    } else {
      const std::size_t size = (tag & 7) == 1 ? 8 : 4;
      REQUIRE(message.size() - at >= size);
      std::memcpy(&field.value, message.data() + at, size);
      at += size;
    }
    fields.push_back(std::move(field));
  }
  return fields;
}

struct read_event {
  double time = 0;
  std::uint64_t step = 0;
  std::string version{};
  bool restarts = false;
  std::map<std::string, float> scalars{};
};

// Reads an event file by the reader of TFRecord files, which compares the checksums.
std::vector<read_event> events_of(const std::string& path) {
  std::vector<read_event> events;
  const muster::data::tfrecord_files frames({path});
  for (muster::sample_id id = 0; id < frames.size(); ++id) {
    const auto payload = frames.view(id);
    read_event event;
    for (const auto& field : fields_of({reinterpret_cast<const char*>(payload.data()), payload.size()})) {
      if (field.number == 1) event.time = std::bit_cast<double>(field.value);
      if (field.number == 2) event.step = field.value;
      if (field.number == 3) event.version = field.bytes;
      if (field.number == 7) event.restarts = fields_of(field.bytes).at(0).value == 1;
      if (field.number != 5) continue;
      for (const auto& value : fields_of(field.bytes)) {
        const auto scalar = fields_of(value.bytes);
        event.scalars[scalar.at(0).bytes] = std::bit_cast<float>(static_cast<std::uint32_t>(scalar.at(1).value));
      }
    }
    events.push_back(std::move(event));
  }
  return events;
}

struct folder_of_test {
  fs::path path = fs::temp_directory_path() / ("muster-events-" + std::to_string(getpid()));
  folder_of_test() = default;
  folder_of_test(const folder_of_test&) = delete;
  folder_of_test& operator=(const folder_of_test&) = delete;
  ~folder_of_test() { fs::remove_all(path); }
};

}  // namespace

TEST_CASE("an event file has every scalar of every step, and the version and first step of its training") {
  const folder_of_test folder;
  const std::uint64_t seed = std::random_device()();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  muster::tensorboard_file file((folder.path / "run").string(), 7);
  std::vector<std::pair<std::uint64_t, std::map<std::string, float>>> expected;
  for (int event = 0; event < 200; ++event) {
    std::map<std::string, float> scalars;
    for (auto left = random() % 6; left > 0; --left)
      scalars["tag" + std::string(random() % 200, 'x')] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    std::erase_if(scalars, [](const auto& scalar) { return std::isnan(scalar.second); });
    const std::uint64_t step = random() >> (random() % 64);
    std::vector<muster::tensorboard_scalar> written{{"not measured", std::nan("")}};
    for (const auto& [tag, value] : scalars) written.push_back({tag, value});
    file.add(step, written);
    expected.emplace_back(step, std::move(scalars));
  }
  const auto events = events_of(file.path());
  REQUIRE(events.size() == expected.size() + 2);
  CHECK(events[0].version == "brain.Event:2");
  CHECK((events[1].restarts && events[1].step == 7));
  double before = 1e9;
  for (std::size_t k = 0; k < expected.size(); ++k) {
    const auto& event = events[k + 2];
    CHECK((event.step == expected[k].first && event.scalars == expected[k].second));
    CHECK(event.time >= before);
    before = event.time;
  }
}

TEST_CASE("files of one second have different names, and a folder that cannot be written is named") {
  const folder_of_test folder;
  muster::tensorboard_file first(folder.path.string()), second(folder.path.string());
  CHECK(first.path() != second.path());
  CHECK_THROWS_AS(muster::tensorboard_file("/proc/nowhere"), muster::configuration_error);
}

TEST_CASE("a tracker writes the scalars of each epoch, and a training that resumes begins another file") {
  const folder_of_test folder;
  std::vector<std::byte> saved, saved_next;
  const auto train = [&](int first, int last) {
    test::run_ranks(2, [&](muster::group& world) {
      muster::tracker tracker(world, {.tensorboard = folder.path.string()});
      muster::tracker nowhere(world, {.tensorboard = "/proc/nowhere"});  // costs no training
      muster::state state(tracker);
      const auto& part = std::as_const(state).parts().at(0);
      if (!saved.empty()) part.load(saved);
      for (int epoch = first; epoch <= last; ++epoch) {
        tracker.add_samples(10);
        tracker.end_epoch(world, {.train_loss = 0.5 / epoch, .val_accuracy = 0.25 * epoch});
        nowhere.end_epoch(world, {});
      }
      if (world.rank() == 0) saved_next = part.save();
    });
    saved = saved_next;
    std::vector<fs::path> files(fs::directory_iterator(folder.path), fs::directory_iterator());
    std::ranges::sort(files);  // by time, and by number within a process
    return files;
  };
  const auto files = train(1, 2);
  REQUIRE(files.size() == 1);  // rank 0 alone writes
  const auto events = events_of(files[0].string());
  REQUIRE(events.size() == 4);
  CHECK((events[2].step == 1 && events[3].step == 2));
  CHECK((events[2].scalars.at("train_loss") == 0.5f && events[3].scalars.at("train_loss") == 0.25f));
  CHECK(events[3].scalars.at("val_accuracy") == 0.5f);
  CHECK(events[3].scalars.contains("samples_per_second"));
  CHECK_FALSE(events[3].scalars.contains("val_loss"));
  const auto both = train(3, 3);
  REQUIRE(both.size() == 2);
  const auto resumed = events_of(both[0] == files[0] ? both[1].string() : both[0].string());
  REQUIRE(resumed.size() == 3);
  CHECK((resumed[1].restarts && resumed[1].step == 3));  // TensorBoard drops what a killed process wrote beyond
  CHECK(resumed[2].step == 3);
}
