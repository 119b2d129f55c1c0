// Random cases of collectives and their oracle: what a single thread computes from all inputs, which every rank can
// make for itself, since they are functions of (case, rank, index).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <muster/comm/algorithms/algorithm.hpp>
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
  int misaligned = 0;                // elements by which the buffers are off their alignment
  std::uint32_t registered_in = 0;   // bit r: rank r's input is memory that the transport gave
  std::uint32_t registered_out = 0;  // and its output
  bool naps = false;                 // some ranks come late

  [[nodiscard]] std::string describe(int ranks) const;
};

/// What to draw from.
struct choices {
  std::size_t usual_bytes = std::size_t{128} << 10;  // of a rank's larger buffer, at most
  std::size_t rare_bytes = std::size_t{8} << 20;     // in one case of some hundreds
  bool native = false;                               // the transport's own algorithms by name too
};

/// A random case for a group of `ranks`. Draws the same numbers at every rank.
scenario draw(muster::random_stream& random, int ranks, const choices& from);

/// A case that was started and not looked at.
class open_case {
 public:
  open_case() = default;
  open_case(const open_case&) = delete;
  open_case& operator=(const open_case&) = delete;
  virtual ~open_case() = default;
  /// Waits for it, and throws where the result is not the oracle's or something beside it was written.
  virtual void end() = 0;
};
std::unique_ptr<open_case> begin(const scenario& s, muster::group& world);

/// Runs the case at this rank and throws where the result is not the oracle's.
void check(const scenario& s, muster::group& world);

/// The cases of a run. Each is a function of (seed, ranks, index) alone, so that it can be run by itself.
struct case_list {
  std::uint64_t seed = 20261121;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
/// `count` cases, or what the environment says: MUSTER_TEST_SEED another seed, MUSTER_TEST_CASES another number (all
/// `shares` of a test together), MUSTER_TEST_CASE one alone.
case_list cases_of_run(std::uint64_t count, std::uint64_t shares = 1);
/// Checks them at this rank, asynchronous ones some at a time. What it throws says how to run the case again.
void check_cases(const case_list& cases, muster::group& world);

}  // namespace test
