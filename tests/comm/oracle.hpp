// One random case of a collective and its oracle: what a single thread computes from all inputs, which every rank can
// make for itself, since they are functions of (case, rank, index).
#pragma once

#include <cstdint>
#include <string>

#include <muster/comm/algorithm.hpp>
#include <muster/comm/group.hpp>
#include <muster/comm/reduction.hpp>
#include <muster/core/random.hpp>

namespace test {

struct scenario {
  std::uint64_t seed = 0;  // of the values
  muster::collective kind = muster::collective::allreduce;
  muster::algorithm how = muster::algorithm::automatic;
  muster::dtype type = muster::dtype::float32;
  muster::operation op = muster::operation::sum;
  std::size_t count = 0;
  int root = 0;
  bool in_place = false;
  bool async = false;
  int misaligned = 0;  // elements by which the buffers are off their alignment

  [[nodiscard]] std::string describe(int ranks) const;
};

/// A random case for a group of `ranks`. Draws the same numbers at every rank.
scenario draw(muster::random_stream& random, int ranks, std::size_t largest);

/// Runs the case at this rank and throws where the result is not the oracle's.
void check(const scenario& s, muster::group& world);

}  // namespace test
