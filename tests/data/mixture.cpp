// Tests of mixtures: each source has its proportion of every batch.
#include <muster/data/mixture.hpp>

#include <cmath>
#include <map>
#include <numeric>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/sources/csv.hpp>
#include <muster/data/sources/libsvm.hpp>
#include "catch.hpp"
#include "files.hpp"
#include "records.hpp"

namespace {

// Returns a table whose rows have the row's number and `part`. The label is `part`.
muster::data::any_record_source table(std::size_t rows, int part) {
  std::string text;
  for (std::size_t k = 0; k < rows; ++k) text += std::to_string(k) + "," + std::to_string(part) + "\n";
  return muster::data::parse_csv(text, "table " + std::to_string(part), {.label = "1"});
}

muster::data::any_record_source mix(const std::vector<std::size_t>& rows, const std::vector<double>& weights) {
  std::vector<muster::mixture_part> parts;
  for (std::size_t k = 0; k < rows.size(); ++k) parts.push_back({table(rows[k], static_cast<int>(k)), weights[k]});
  return muster::mixture(std::move(parts));
}

struct drawn {
  std::size_t part;
  std::size_t row;
  friend bool operator==(const drawn&, const drawn&) = default;
};

// Returns the samples that all ranks of a world receive in a batch, in the order of the global batch.
std::vector<drawn> batch_of_world(muster::loader& loader, int world) {
  std::vector<drawn> samples;
  for (int rank = 0; rank < world; ++rank) {
    const auto batch = loader.next({rank, world});
    const auto values = batch.values<float>();
    for (std::size_t k = 0; k < batch.samples.size(); ++k)
      samples.push_back({static_cast<std::size_t>(batch.labels[k]), static_cast<std::size_t>(values[k])});
  }
  return samples;
}

}  // namespace

TEST_CASE("a record of a mixture has the place of its part, and the mixture the name it was given") {
  std::vector<muster::mixture_part> parts = {{table(3, 0)}, {table(4, 1)}};
  const muster::data::any_record_source both = muster::mixture(parts, "both");
  CHECK(std::string(both.name()) == "both");
  for (muster::sample_id id = 0; id < both.size(); ++id) {
    const auto expected = parts[id < 3 ? 0 : 1].source.location_of(id < 3 ? id : id - 3);
    INFO(id << ": " << both.location_of(id).file);
    CHECK(both.location_of(id).file == expected.file);
    CHECK(both.location_of(id).line == expected.line);
  }
}

TEST_CASE("up to any position each source is near its proportion, and exact where all are whole") {
  muster::random_stream random(5);
  for (int repeat = 0; repeat < 40; ++repeat) {
    std::vector<std::size_t> rows;
    std::vector<double> weights;
    for (std::uint64_t parts = 1 + random.below(repeat % 2 == 0 ? 4 : 40); parts > 0; --parts) {
      rows.push_back(1 + random.below(60));
      weights.push_back(static_cast<double>(1 + random.below(random.below(4) == 0 ? 400 : 20)) / 10);
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const auto order = random.below(2) == 0 ? muster::sample_order::shuffled : muster::sample_order::feistel;
    auto loader = mix(rows, weights) | muster::shuffle(repeat, {.order = order}) | muster::batch(1 + random.below(30));
    auto next = std::move(loader) | muster::prefetch(2);
    std::vector<std::size_t> counts(rows.size());
    std::size_t position = 0;
    while (next.next({})) {
      for (const drawn& sample : batch_of_world(next, 1)) {
        ++counts[sample.part];
        ++position;
        bool all_whole = true;
        for (const double weight : weights) {
          const double ideal = static_cast<double>(position) * weight / sum;
          all_whole = all_whole && std::abs(ideal - std::round(ideal)) < 1e-9;
        }
        for (std::size_t part = 0; part < rows.size(); ++part) {
          const double ideal = static_cast<double>(position) * weights[part] / sum;
          const double off = std::abs(static_cast<double>(counts[part]) - ideal);
          REQUIRE(off < (rows.size() <= 2 ? 1 : 2) + 1e-9);
          if (all_whole) REQUIRE(off < 1e-9);
        }
      }
      next.commit();
    }
    REQUIRE(position == std::accumulate(rows.begin(), rows.end(), std::size_t{0}));
  }
}

TEST_CASE("a batch that has all proportions has exactly these, every time") {
  auto loader = mix({500, 90}, {0.7, 0.3}) | muster::shuffle(1) | muster::batch(20);
  for (; loader.epoch() < 3; loader.next_epoch()) {
    while (loader.next({}).global_size == 20) {
      std::map<std::size_t, int> counts;
      for (const drawn& sample : batch_of_world(loader, 3)) ++counts[sample.part];
      REQUIRE(counts == std::map<std::size_t, int>{{0, 14}, {1, 6}});
      loader.commit();
    }
  }
}

TEST_CASE("a source of a mixture is used up before any of its records is used again, across epochs") {
  for (const auto order : {muster::sample_order::sequential, muster::sample_order::shuffled,
                           muster::sample_order::feistel, muster::sample_order::block_window}) {
    const std::vector<std::size_t> rows = {40, 7, 110};
    const auto source = mix(rows, {3, 2, 1});
    auto loader = order == muster::sample_order::sequential
                      ? source | muster::batch(13)
                      : source | muster::shuffle(2, {.order = order, .block = 4, .window = 3}) | muster::batch(13);
    std::vector<std::vector<std::size_t>> rows_of_part(3);
    for (; loader.epoch() < 5; loader.next_epoch()) {
      while (loader.next({})) {
        for (const drawn& sample : batch_of_world(loader, 2)) rows_of_part[sample.part].push_back(sample.row);
        loader.commit();
      }
    }
    for (std::size_t part = 0; part < rows.size(); ++part) {
      for (std::size_t first = 0; first + rows[part] <= rows_of_part[part].size(); first += rows[part]) {
        std::vector<bool> used(rows[part]);
        for (std::size_t k = first; k < first + rows[part]; ++k) used[rows_of_part[part][k]] = true;
        REQUIRE(std::ranges::count(used, true) == static_cast<std::ptrdiff_t>(rows[part]));
      }
      if (order != muster::sample_order::sequential && part == 0)  // a new shuffle for each pass
        CHECK_FALSE(
            std::equal(rows_of_part[part].begin(), rows_of_part[part].begin() + 40, rows_of_part[part].begin() + 40));
    }
  }
}

TEST_CASE("what a mixture gives does not depend on world, prefetching or where it was resumed") {
  const auto source = mix({64, 31, 5}, {0.5, 0.3, 0.2});
  const auto make = [&] { return source | muster::shuffle(8) | muster::batch(12); };
  auto reference = make();
  std::vector<std::vector<drawn>> expected;
  std::vector<muster::cursor> places;
  for (; reference.epoch() < 3; reference.next_epoch()) {
    while (reference.next({})) {
      places.push_back(reference.cursor());
      expected.push_back(batch_of_world(reference, 1));
      reference.commit();
    }
  }
  muster::random_stream random(3);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const auto at = random.below(places.size());
    auto resumed = make() | muster::prefetch(random.below(4));
    resumed.open(places[at]);
    for (std::size_t k = at; k < std::min<std::size_t>(at + 12, places.size()); ++k) {
      if (!resumed.next({})) resumed.next_epoch();
      REQUIRE(batch_of_world(resumed, static_cast<int>(1 + random.below(5))) == expected[k]);
      resumed.commit();
    }
  }
  auto second = mix({64, 31, 5}, {0.5, 0.2, 0.3}) | muster::shuffle(8) | muster::batch(12);
  // The proportions are part of the data's identity.
  CHECK_THROWS_AS(second.open(places[0]), muster::configuration_error);
}

TEST_CASE("a mixture is a source like others, of records of any form, bad ones too") {
  const muster::data::any_record_source sparse = muster::data::parse_libsvm(
      "1 1:1 3:2\n2\nx 1:1\n3 2:4\n", "a", {.layout = muster::layout::sparse, .keep_bad_records = true});
  const muster::data::any_record_source second =
      muster::data::parse_libsvm("5 3:1\n6 1:7 2:8\n", "b", {.layout = muster::layout::sparse});
  const muster::data::any_record_source mixed = muster::mixture({{sparse, 1}, {second, 2}});
  std::vector<expected_record> expected;
  for (const auto* source : {&sparse, &second}) {
    for (muster::sample_id id = 0; id < source->size(); ++id) {
      expected_record record;
      std::uint64_t size = 0;
      source->sizes({&id, 1}, {&size, 1});
      record.bytes.resize(size);
      record.labels.resize(1);
      std::vector<muster::bad_record> bad;
      source->read({&id, 1}, {record.bytes, record.labels}, &bad);
      record.bad = !bad.empty();
      expected.push_back(record);
    }
  }
  check_source(mixed, expected, 4);
  CHECK_FALSE(mixed.mapped());
  CHECK(mix({3, 4}, {1, 1}).mapped());
}

TEST_CASE("mix: opens its sources with their options, and tells what is wrong with it") {
  const temporary_folder folder;
  const std::string a = "csv:" + folder.write("a", "1,2,3\n4,5,6\n") + "?ignore=0%2C1&label=0";
  const std::string b = "csv:" + folder.write("b", "x;7\ny;8\nz;9\n") + "?delimiter=;&header=1&ignore=x";
  const auto mixed = muster::open_source("mix:" + a + "=0.25," + b + "=0.75");
  CHECK(mixed.size() == 4);
  CHECK(mixed.schema().record_bytes() == 4);
  CHECK(mixed.name() == "mix:csv:" + (folder / "a") + "=1,csv:" + (folder / "b") + "=3");
  CHECK(muster::open_dataset("mix:" + b + "=1").size() == 2);
  for (const std::string& wrong : {std::string("mix:"), "mix:" + a, "mix:" + a + "=0", "mix:" + a + "=-1," + b + "=2",
                                   "mix:" + a + "=nan", "mix:" + a + "=1,nothing=2"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(muster::open_source(wrong), muster::configuration_error);
  }
  const std::string wide = "csv:" + folder.write("wide", "1,2\n");
  CHECK_THROWS_WITH(muster::open_source("mix:" + b + "=1," + wide + "=1"), contains("has records of"));
  CHECK_THROWS_WITH(muster::open_source("mix:" + b), contains("has no weight"));
}
