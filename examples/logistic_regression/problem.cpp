#include "problem.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <sstream>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/spec.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/open.hpp>
#include <muster/data/sources/synthetic.hpp>

#include "../command_line.hpp"
#include "clicks.hpp"

namespace logistic {
namespace {

constexpr std::uint64_t default_synthetic_rows = 50'000;

std::string text_of(float label) {
  std::ostringstream text;
  text << label;
  return text.str();
}

std::string list_of(const std::vector<float>& labels) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(labels.size(), 5); ++i) {
    text += (i > 0 ? ", " : "") + text_of(labels[i]);
  }
  return text + (labels.size() > 5 ? ", ..." : "");
}

/// Returns the two labels of the training set, in ascending order.
std::vector<float> two_classes(const muster::dataset& train) {
  auto classes = train.classes();
  for (std::size_t i = 0; i < train.size(); ++i) {
    if (train.label(i) == std::trunc(train.label(i))) continue;
    throw muster::data_error({train.name()}, "cannot be trained on (sample " + std::to_string(i + 1) + " has label " +
                                                 text_of(train.label(i)) +
                                                 ", and classes are whole numbers); correct it");
  }
  if (classes.size() == 2) return classes;
  throw muster::data_error({train.name()},
                           "cannot be trained on (it has " + std::to_string(classes.size()) +
                               (classes.size() == 1 ? " label, " : " labels, ") + list_of(classes) +
                               ", and logistic regression separates two classes); give a set of two classes");
}

std::vector<float> targets_of(const muster::dataset& data, const std::vector<float>& classes,
                              const std::string& train_name) {
  std::vector<float> targets(data.size());
  for (std::size_t i = 0; i < data.size(); ++i) {
    const float label = data.label(i);
    if (label != classes[0] && label != classes[1]) {
      throw muster::data_error({data.name()}, "cannot be tested on (sample " + std::to_string(i + 1) + " has label " +
                                                  text_of(label) + ", but " + train_name + " has only " +
                                                  list_of(classes) + "); give sets of the same classes");
    }
    targets[i] = label == classes[1] ? 1.0f : -1.0f;
  }
  return targets;
}

// Throws data_error for a sample with a value that is not finite, which missing=nan preserves: its loss would be NaN.
void require_numbers(const muster::dataset& data) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto values = data.is_sparse() ? data.sparse(i).values : data.row(i);
    const auto none = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    if (none == values.end()) continue;
    const auto place = static_cast<std::size_t>(none - values.begin());
    throw muster::data_error(
        {data.name()}, "cannot be trained on (sample " + std::to_string(i + 1) + " has " + text_of(*none) +
                           " as feature " + std::to_string(data.is_sparse() ? data.sparse(i).indices[place] : place) +
                           ", from 0); fill it in, as missing=zero does, or leave the row out");
  }
}

problem make_problem(muster::dataset train, muster::dataset test) {
  require_numbers(train);
  require_numbers(test);
  const auto classes = two_classes(train);
  problem result;
  result.train.targets = targets_of(train, classes, train.name());
  result.test.targets = targets_of(test, classes, train.name());
  result.features = std::max(train.features(), test.features());
  result.train.data = std::move(train);
  result.test.data = std::move(test);
  return result;
}

/// Returns a copy of the samples for which `keep` is true. Calls `keep` once for each sample, in order.
template <class Keep>
muster::dataset samples_of(const muster::dataset& all, const std::string& name, Keep keep) {
  std::vector<std::size_t> kept;
  std::size_t entries = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!keep(i)) continue;
    kept.push_back(i);
    if (all.is_sparse()) entries += all.sparse(i).indices.size();
  }
  auto builder = all.is_sparse() ? muster::dataset_builder::sparse(name, kept.size(), all.features(), entries)
                                 : muster::dataset_builder::dense(name, kept.size(), all.features());
  for (std::size_t k = 0, at = 0; k < kept.size(); ++k) {
    builder.labels()[k] = all.label(kept[k]);
    if (!all.is_sparse()) {
      std::ranges::copy(all.row(kept[k]), builder.row(k).begin());
      continue;
    }
    const auto row = all.sparse(kept[k]);
    std::ranges::copy(row.indices, builder.indices().begin() + static_cast<std::ptrdiff_t>(at));
    std::ranges::copy(row.values, builder.values().begin() + static_cast<std::ptrdiff_t>(at));
    builder.offsets()[k + 1] = at += row.indices.size();
  }
  return builder.finish();
}

// Opens a data set without its bad records, where the policy permits their removal.
muster::dataset open_good(const std::string& specification, const muster::bad_record_options& bad) {
  const auto all =
      muster::open_dataset(specification, {.keep_bad_records = bad.policy != muster::bad_record_policy::fail});
  if (all.bad().empty()) return all;
  muster::bad_record_log(bad).note(all.name(), all.bad());
  auto bad_one = all.bad().begin();  // Sorted by id.
  return samples_of(all, all.name(), [&](std::size_t i) {
    const bool bad_here = bad_one != all.bad().end() && bad_one->id == i;
    if (bad_here) ++bad_one;
    return !bad_here;
  });
}

std::uint64_t rows_of(const std::string& synthetic) {
  muster::spec_reader spec("--synthetic", synthetic);
  const auto name = spec.name({"epsilon", "clicks"}, "such as epsilon or epsilon:20000");
  const auto rows =
      spec.has_value() ? spec.read_whole("rows", spec.value("rows"), 10, 100'000'000) : default_synthetic_rows;
  spec.finish(name + ":20000");
  return rows;
}

muster::dataset training_set(const options& chosen) {
  if (chosen.synthetic.empty()) return open_good(chosen.train, chosen.bad);
  const std::uint64_t rows = rows_of(chosen.synthetic);
  if (chosen.synthetic.starts_with("clicks")) return synthetic_clicks(rows, chosen.seed);
  return muster::synthetic_epsilon(rows, chosen.seed);
}

muster::dataset test_set(const options& chosen) {
  if (chosen.synthetic.empty()) return open_good(chosen.test, chosen.bad);
  const std::uint64_t rows = rows_of(chosen.synthetic);
  if (chosen.synthetic.starts_with("clicks")) return synthetic_clicks(rows / 5, chosen.seed, rows);
  // A quarter of the rows, as in the real set.
  return muster::synthetic_epsilon(rows / 4, chosen.seed, {.first_row = rows});
}

}  // namespace

problem open_problem(const options& chosen) {
  auto all = training_set(chosen);
  if (chosen.holdout == 0) return make_problem(std::move(all), test_set(chosen));
  examples::require_held_out(all.size(), chosen.holdout);
  const auto held = [&](std::size_t i) { return examples::is_held_out(i, chosen.holdout); };
  return make_problem(samples_of(all, all.name(), std::not_fn(held)),
                      samples_of(all, all.name() + " (held out)", held));
}

void require_same_everywhere(muster::group& world, const problem& data, const options& chosen) {
  constexpr std::size_t width = 5;
  const std::string described = describe(chosen);
  muster::digest of_options;
  of_options.add(std::as_bytes(std::span(described)));
  const std::array<std::uint64_t, width> mine = {data.train.data.digest(), data.train.data.size(),
                                                 data.test.data.digest(), data.test.data.size(), of_options.value()};
  std::vector<std::uint64_t> all(width * static_cast<std::size_t>(world.size()));
  muster::allgather(world, std::span(mine), std::span(all));
  const auto rank_that_differs = [&](std::size_t column) {
    int rank = 1;
    while (rank < world.size() && all[static_cast<std::size_t>(rank) * width + column] == all[column]) ++rank;
    return rank;
  };
  // Throws the same error at every rank, regardless of the rank whose data differ.
  for (const bool train : {true, false}) {
    const std::size_t column = train ? 0 : 2;
    const int other = rank_that_differs(column);
    if (other == world.size()) continue;
    const auto size_at = [&](int rank) {
      return std::to_string(all[static_cast<std::size_t>(rank) * width + column + 1]) + " samples";
    };
    throw muster::data_error({(train ? data.train : data.test).data.name()},
                             std::string("the ") + (train ? "training" : "test") +
                                 " set is not the same at every rank (rank 0 has " + size_at(0) + ", rank " +
                                 std::to_string(other) + " has " + size_at(other) +
                                 ", and their contents differ); give all ranks the same file");
  }
  if (const int other = rank_that_differs(4); other != world.size()) {
    throw muster::configuration_error("ranks 0 and " + std::to_string(other) + " were given different options (here: " +
                                      described + "); give all ranks the same command line");
  }
}

}  // namespace logistic
