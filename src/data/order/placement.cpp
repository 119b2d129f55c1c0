#include <muster/data/placement.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

namespace muster::inline v0 {
namespace {

std::vector<double> shares_of(const std::vector<double>& weights, std::size_t machines) {
  if (machines == 0) throw configuration_error("there is no machine to place data on (0 were given); use at least 1");
  std::vector<double> shares = weights.empty() ? std::vector<double>(machines, 1.0) : weights;
  double sum = 0;
  bool usable = shares.size() == machines;
  for (const double share : shares) {
    usable = usable && std::isfinite(share) && share >= 0;
    sum += share;
  }
  if (!usable || !(sum > 0)) {
    throw configuration_error("cannot place data by these weights (there are " + std::to_string(shares.size()) +
                              " for " + std::to_string(machines) +
                              " machines, and they must be finite, not negative, and not all 0); give one a machine");
  }
  for (double& share : shares) share /= sum;
  return shares;
}

// A number in (0, 1) that says how much this machine wants this part.
double uniform(std::uint64_t seed, std::size_t part, std::size_t machine) {
  const std::uint64_t word = mix(mix(seed + 0x706c616365000000ULL + part) ^ mix(0x6d616368ULL + machine));
  return (static_cast<double>(word >> 11) + 0.5) * 0x1p-53;
}

}  // namespace

placement::placement(std::span<const std::uint64_t> parts, std::size_t machines, placement_options options)
    : machine_of_(parts.size()), records_(machines) {
  const std::vector<double> shares = shares_of(options.weights, machines);
  const auto total = static_cast<double>(std::accumulate(parts.begin(), parts.end(), std::uint64_t{0}));
  const auto place = [&](std::size_t part, std::size_t machine) {
    machine_of_[part] = machine;
    records_[machine] += parts[part];
  };
  switch (options.kind) {
    case placement_kind::contiguous: {
      // A part goes where its middle falls.
      std::size_t machine = 0;
      double end = shares[0] * total;
      double before = 0;
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const double middle = before + static_cast<double>(parts[part]) / 2;
        while (middle >= end && machine + 1 < machines) end += shares[++machine] * total;
        place(part, machine);
        before += static_cast<double>(parts[part]);
      }
      break;
    }
    case placement_kind::strided: {
      // Turns that keep to the weights at any time: the machine farthest behind is next. Of equal ones, all in order.
      std::vector<double> owed(machines, 0.0);
      for (std::size_t part = 0; part < parts.size(); ++part) {
        if (options.weights.empty()) {
          place(part, part % machines);
          continue;
        }
        for (std::size_t machine = 0; machine < machines; ++machine) owed[machine] += shares[machine];
        const auto next = std::max_element(owed.begin(), owed.end());
        *next -= 1;
        place(part, static_cast<std::size_t>(next - owed.begin()));
      }
      break;
    }
    case placement_kind::hash: {
      std::vector<double> room(machines);
      for (std::size_t machine = 0; machine < machines; ++machine) {
        room[machine] = shares[machine] * total * (1 + options.slack);
      }
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const auto size = static_cast<double>(parts[part]);
        std::size_t best = machines;
        double highest = 0;
        std::size_t roomiest = 0;
        for (std::size_t machine = 0; machine < machines; ++machine) {
          if (room[machine] > room[roomiest]) roomiest = machine;
          if (shares[machine] == 0 || room[machine] < size) continue;
          const double score = -shares[machine] / std::log(uniform(options.seed, part, machine));
          if (score > highest) {
            highest = score;
            best = machine;
          }
        }
        if (best == machines) best = roomiest;  // fits nowhere
        room[best] -= size;
        place(part, best);
      }
      break;
    }
  }
  for (std::size_t machine = 0; machine < machines; ++machine) {
    const double share = shares[machine] * total;
    if (share > 0) imbalance_ = std::max(imbalance_, static_cast<double>(records_[machine]) / share - 1);
  }
}

std::vector<std::size_t> placement::parts_of(std::size_t machine) const {
  std::vector<std::size_t> parts;
  for (std::size_t part = 0; part < machine_of_.size(); ++part) {
    if (machine_of_[part] == machine) parts.push_back(part);
  }
  return parts;
}

std::vector<std::size_t> placement::moved_since(const placement& before) const {
  std::vector<std::size_t> moved;
  for (std::size_t part = 0; part < std::min(machine_of_.size(), before.machine_of_.size()); ++part) {
    if (machine_of_[part] != before.machine_of_[part]) moved.push_back(part);
  }
  return moved;
}

}  // namespace muster::inline v0
