#include <muster/train/optimizers/optimizer.hpp>

#include <limits>

#include "catch.hpp"
#include "train/heap.hpp"

TEST_CASE("an optimizer updates every tensor of its arena and nothing between them") {
  heap memory;
  muster::arena arena(memory, {{"weight", {3}}, {"bias", {}}});
  muster::sgd optimizer(arena, {.momentum = 0.5f, .nesterov = true, .decay = 0.25f});
  for (float& value : arena.parameter("weight")) value = 2.0f;
  for (float& value : arena.gradient("weight")) value = 1.0f;
  arena.gradient("bias")[0] = 4.0f;

  optimizer.apply(0.5);  // weight: g = 1.5, v = 1.5, w = 2 - 0.5 * 2.25; bias: g = v = 4, b = -0.5 * 6
  for (const float value : arena.parameter("weight")) CHECK(value == 0.875f);
  CHECK(arena.parameter("bias")[0] == -3.0f);
  CHECK(arena.state("velocity")[arena.places()[0].first] == 1.5f);
  CHECK(std::count(arena.parameters().begin(), arena.parameters().end(), 0.0f) == 32 - 4);

  optimizer.apply(0.0);  // a rate of 0 changes the velocity only
  CHECK(arena.parameter("bias")[0] == -3.0f);
}

TEST_CASE("an optimizer without momentum has no velocity and still decays") {
  heap memory;
  muster::arena arena(memory, {{"w", {1}}});
  muster::sgd optimizer(arena, {.decay = 0.5f});
  arena.parameter("w")[0] = 1.0f;
  for (int i = 0; i < 2; ++i) optimizer.apply(0.5);
  CHECK(arena.parameter("w")[0] == 0.5625f);
}

TEST_CASE("options and rates that cannot be meant are refused") {
  heap memory;
  muster::arena arena(memory, {{"w", {1}}});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float momentum : {-0.1f, 1.0f, nan}) {
    CHECK_THROWS_AS(muster::sgd(arena, {.momentum = momentum}), muster::configuration_error);
  }
  CHECK_THROWS_AS(muster::sgd(arena, {.decay = -1.0f}), muster::configuration_error);
  CHECK_THROWS_AS(muster::sgd(arena, {.nesterov = true}), muster::configuration_error);

  muster::sgd optimizer(arena);
  arena.gradient("w")[0] = 1.0f;
  for (const double rate : {-0.1, static_cast<double>(nan), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_AS(optimizer.apply(rate), muster::configuration_error);
  }
  CHECK(arena.parameter("w")[0] == 0.0f);
}
