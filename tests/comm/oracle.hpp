// The test kit of collectives (muster/testing), compiled once for all tests.
#pragma once

#include <cstdint>
#include <functional>

#include <muster/testing/scenario.hpp>

namespace test {

using muster::testing::case_list;
using muster::testing::draw;
using muster::testing::draw_options;
using muster::testing::scenario;

std::function<void()> begin(const scenario& s, muster::group& world);
void check(const scenario& s, muster::group& world);

/// Returns `count` cases, or the cases that the environment selects: MUSTER_TEST_SEED sets another seed,
/// MUSTER_TEST_CASES another number (for all `shares` of a test together), MUSTER_TEST_CASE a single case.
case_list cases_of_run(std::uint64_t count, std::uint64_t shares = 1);
void check_cases(const case_list& cases, muster::group& world);

}  // namespace test
