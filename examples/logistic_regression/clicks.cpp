#include "clicks.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/random.hpp>
#include <muster/data/dataset_builder.hpp>

namespace logistic {
namespace {

constexpr std::size_t drawn = 30;  // Features drawn for a row; a feature may be drawn twice.
constexpr std::uint64_t purpose = 0x636c69636b730000ULL;

// Uses only operations that are rounded identically on every machine.
std::uint32_t feature_at(double uniform) {
  const double square = uniform * uniform;
  const double fourth = square * square;
  const double eighth = fourth * fourth;
  return static_cast<std::uint32_t>(eighth * eighth * static_cast<double>(click_features));
}

// Returns whole numbers, so that the order of a sum does not matter.
std::int64_t weight_of(std::uint64_t seed, std::uint32_t feature) {
  return static_cast<std::int64_t>(muster::mix(muster::mix(seed ^ purpose) + feature) >> 44) - (1 << 19);
}

}  // namespace

muster::dataset synthetic_clicks(std::size_t rows, std::uint64_t seed, std::uint64_t first_row) {
  if (rows == 0)
    throw muster::configuration_error("cannot make 0 rows of clicks (training needs samples); ask for at least 1");
  std::vector<std::uint64_t> offsets = {0};
  std::vector<std::uint32_t> indices;
  std::vector<float> labels;
  offsets.reserve(rows + 1);
  indices.reserve(rows * drawn);
  labels.reserve(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    muster::random_stream random(muster::mix(seed ^ purpose), first_row + row);
    const auto begin = indices.end() - indices.begin();
    for (std::size_t i = 0; i < drawn; ++i) indices.push_back(feature_at(random.uniform()));
    std::sort(indices.begin() + begin, indices.end());
    indices.erase(std::unique(indices.begin() + begin, indices.end()), indices.end());
    std::int64_t sum = 0;
    for (auto at = indices.begin() + begin; at != indices.end(); ++at) sum += weight_of(seed, *at);
    const bool turned = random.below(20) == 0;
    labels.push_back((sum > 0) != turned ? 1.0f : -1.0f);
    offsets.push_back(indices.size());
  }
  auto builder =
      muster::dataset_builder::sparse("clicks:" + std::to_string(rows), rows, click_features, indices.size());
  std::copy(offsets.begin(), offsets.end(), builder.offsets().begin());
  std::copy(indices.begin(), indices.end(), builder.indices().begin());
  std::fill(builder.values().begin(), builder.values().end(), 1.0f);
  std::copy(labels.begin(), labels.end(), builder.labels().begin());
  return builder.finish();
}

}  // namespace logistic
