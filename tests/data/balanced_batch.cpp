// Tests of batches with the same number of records of every class.
#include <muster/data/balanced_batch.hpp>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/sources/csv.hpp>
#include "catch.hpp"

namespace {

// Returns a table with counts[c] records of class c, in random order. The feature is the number of the record.
muster::data::dataset table_of_classes(const std::vector<std::size_t>& counts, std::uint64_t seed) {
  std::vector<std::size_t> labels;
  for (std::size_t c = 0; c < counts.size(); ++c) labels.insert(labels.end(), counts[c], c);
  muster::random_stream random(seed);
  for (std::size_t k = labels.size(); k > 1; --k) std::swap(labels[k - 1], labels[random.below(k)]);
  std::string text;
  for (std::size_t k = 0; k < labels.size(); ++k) text += std::to_string(k) + "," + std::to_string(labels[k]) + "\n";
  return muster::data::parse_csv(text, "table", {.label = "1"});
}

// A source with other names of labels and classes.
struct renamed_source {
  [[nodiscard]] std::string_view name() const { return records.name(); }
  [[nodiscard]] std::uint64_t size() const { return records.size(); }
  [[nodiscard]] std::uint64_t digest() const { return records.digest(); }
  [[nodiscard]] const muster::data::record_schema& schema() const { return names; }
  void sizes(std::span<const muster::data::sample_id> ids, std::span<std::uint64_t> out) const {
    records.sizes(ids, out);
  }
  void read(std::span<const muster::data::sample_id> ids, const muster::data::record_rows& rows,
            std::vector<muster::data::bad_record>* bad) const {
    records.read(ids, rows, bad);
  }
  muster::data::dataset records;
  muster::data::record_schema names;
};

muster::data::any_record_source with_label_names(muster::data::dataset records, std::vector<std::string> labels,
                                                 std::vector<std::string> classes) {
  muster::data::record_schema names = records.schema();
  names.labels = std::move(labels);
  names.classes = std::move(classes);
  return renamed_source{std::move(records), names};
}

struct labelled_row {
  float row, label;
  friend bool operator==(const labelled_row&, const labelled_row&) = default;
};

// Returns the samples of all ranks, in the order of the batch. Begins the next epoch after the last batch of an epoch.
std::vector<labelled_row> rows_of_batch(muster::loader& loader, int world) {
  if (loader.step() == loader.steps_per_epoch()) loader.next_epoch();
  std::vector<labelled_row> samples;
  for (int rank = 0; rank < world; ++rank) {
    const auto part = loader.next({rank, world});
    const auto values = part.values<float>();
    for (std::size_t k = 0; k < part.samples.size(); ++k) samples.push_back({values[k], part.labels[k]});
  }
  return samples;
}

}  // namespace

TEST_CASE("every balanced batch has the same number of records of each class") {
  muster::random_stream random(11);
  for (std::uint64_t repeat = 0; repeat < 20; ++repeat) {
    const std::uint64_t each = 1 + random.below(4);
    std::vector<std::size_t> counts(1 + random.below(7));
    for (auto& count : counts) count = each + random.below(repeat % 2 == 0 ? 5 : 60);
    const muster::data::any_record_source source = table_of_classes(counts, repeat);
    std::map<float, float> label_of;
    std::map<float, std::vector<float>> used;  // rows of a class in their order
    auto loader = source | muster::balanced_batch(each, muster::shuffle(repeat)) | muster::prefetch(2);
    const int world = 1 + static_cast<int>(random.below(4));
    for (int step = 0; step < 60; ++step) {
      INFO("repeat " << repeat << ", step " << step);
      std::map<float, std::uint64_t> found;
      for (const auto& [row, label] : rows_of_batch(loader, world)) {
        ++found[label];
        if (loader.cursor().epoch == 0) used[label].push_back(row);
        REQUIRE(label_of.emplace(row, label).first->second == label);
      }
      REQUIRE(found.size() == counts.size());
      for (const auto& [label, count] : found) REQUIRE(count == each);
      loader.commit();
    }
    // in an epoch no record is used again before all records of its class were used
    for (const auto& [label, rows] : used) {
      const std::size_t count = counts[static_cast<std::size_t>(label)];
      for (std::size_t first = 0; first + count <= rows.size(); first += count) {
        const std::set<float> once(rows.begin() + std::ptrdiff_t(first), rows.begin() + std::ptrdiff_t(first + count));
        REQUIRE(once.size() == count);
      }
    }
  }
}

TEST_CASE("balanced batches are those of the seed in any world, and continue at a cursor") {
  const muster::data::any_record_source source = table_of_classes({40, 7, 3}, 1);
  const auto opened = [&](std::uint64_t seed) { return source | muster::balanced_batch(2, muster::shuffle(seed)); };
  auto first = opened(5), other = opened(6);
  std::vector<std::vector<labelled_row>> batches;
  bool differs = false;
  muster::cursor middle;
  for (int step = 0; step < 30; ++step) {
    if (step == 13) middle = first.cursor();
    batches.push_back(rows_of_batch(first, 1));
    const auto others = rows_of_batch(other, 1);
    differs = differs || others != batches.back();
    first.commit();
    other.commit();
  }
  CHECK(differs);
  auto again = opened(5);
  again.open(middle);
  for (std::size_t step = 13; step < 30; ++step) {
    CHECK(rows_of_batch(again, 3) == batches[step]);
    again.commit();
  }
}

TEST_CASE("balanced batches that cannot be are refused with the class") {
  CHECK_THROWS_WITH(table_of_classes({9, 2, 5}, 1) | muster::balanced_batch(3, muster::shuffle(1)),
                    contains("'table' cannot be balanced (class 1 has 2 records)"));
  CHECK_THROWS_WITH(table_of_classes({3}, 1) | muster::balanced_batch(0, muster::shuffle(1)), contains("0 records"));
  const auto refused = [](const std::vector<std::size_t>& counts, std::vector<std::string> labels,
                          std::vector<std::string> classes, const std::string& reason) {
    const auto source = with_label_names(table_of_classes(counts, 1), std::move(labels), std::move(classes));
    CHECK_THROWS_WITH(source | muster::balanced_batch(1, muster::shuffle(1)), contains(reason));
  };
  refused({2}, {"label"}, {"cat", "dog"}, "class dog has 0 records");
  refused({2}, {}, {}, "no label");
}
