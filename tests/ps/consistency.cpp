#include <muster/ps/consistency.hpp>

#include <muster/core/error.hpp>

#include "catch.hpp"

namespace ps = muster::ps;

TEST_CASE("a consistency is written as it is read") {
  for (const std::string text : {"async", "bounded:3", "bulk", "async,drop=4", "bounded:1,damp=8"})
    CHECK(ps::to_string(ps::parse_consistency(text)) == text);
  for (const std::string text : {"", "asnyc", "bounded", "bounded:x", "bulk:1", "async:1", "async,", "async,drop",
                                 "async,drop=", "async,drop:4", "async,drop=1,damp=1", "bulk,drop=1", "bounded:-1"})
    CHECK_THROWS_AS(ps::parse_consistency(text), muster::configuration_error);
  CHECK_THROWS_WITH(ps::parse_consistency("boundde:3"), contains("did you mean 'bounded'?"));
  CHECK_THROWS_WITH(ps::parse_consistency("async,damp:8"), contains("write damp=8"));
}

TEST_CASE("old pushes are dropped or damped, fresh ones are not") {
  const auto drop = ps::parse_consistency("async,drop=2");
  CHECK(drop.weight_of(2) == 1.0f);
  CHECK(drop.weight_of(3) == 0.0f);
  const auto damp = ps::parse_consistency("async,damp=2");
  CHECK(damp.weight_of(2) == 1.0f);
  CHECK(damp.weight_of(3) == 0.5f);
  CHECK(damp.weight_of(5) == 0.25f);
}
