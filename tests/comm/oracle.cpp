#include "comm/oracle.hpp"

#include <cstdlib>

#include <muster/testing/collective_kit.hpp>

namespace test {
namespace {

std::uint64_t number(const char* variable, std::uint64_t fallback) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : fallback;
}

}  // namespace

case_list cases_of_run(std::uint64_t count, std::uint64_t shares) {
  case_list list;
  list.seed = number("MUSTER_TEST_SEED", list.seed);
  list.count = (number("MUSTER_TEST_CASES", count) + shares - 1) / shares;
  if (std::getenv("MUSTER_TEST_CASE") != nullptr) list = {list.seed, number("MUSTER_TEST_CASE", 0), 1};
  return list;
}

std::function<void()> begin(const scenario& s, muster::group& world) { return muster::testing::begin(s, world); }
void check(const scenario& s, muster::group& world) { muster::testing::check(s, world); }
void check_cases(const case_list& cases, muster::group& world) { muster::testing::check_cases(cases, world); }

}  // namespace test
