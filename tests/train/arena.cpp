#include <muster/train/arena.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <muster/comm/context.hpp>

#include "catch.hpp"
#include "train/heap.hpp"

static_assert(muster::arena_memory<muster::context>);

TEST_CASE("the views of an arena are aligned, disjoint and inside the whole") {
  heap memory;
  muster::arena arena(memory, {{"weight", {3, 7}}, {"empty", {0, 4}}, {"bias", {}}, {"line", {16}}});
  CHECK(arena.parameters().size() == 32 + 0 + 16 + 16);
  CHECK(arena.gradients().size() == arena.parameters().size());
  CHECK(arena.parameter("weight").size() == 21);
  CHECK(arena.parameter("empty").empty());
  CHECK(arena.parameter(2).size() == 1);
  CHECK(arena.gradient("line").size() == 16);
  CHECK(arena.index("bias") == 2);
  // The tensors are in reverse order, the order of a backward pass.
  CHECK(arena.parameter("line").data() == arena.parameters().data());
  CHECK(arena.gradient("bias").data() == arena.gradient("line").data() + 16);
  CHECK(arena.gradient("weight").data() == arena.gradient("bias").data() + 16);
  CHECK(arena.places()[3] == muster::block{0, 16});
  CHECK(arena.places()[0] == muster::block{32, 32});

  for (std::size_t tensor = 0; tensor < arena.shapes().size(); ++tensor) {
    for (const auto view : {arena.parameter(tensor), arena.gradient(tensor)}) {
      CHECK(reinterpret_cast<std::uintptr_t>(view.data()) % 64 == 0);
      for (float& value : view) value += 1.0f;  // an overlap would count twice
    }
  }
  CHECK(std::accumulate(arena.parameters().begin(), arena.parameters().end(), 0.0f) == 21 + 1 + 16);
  CHECK(std::count(arena.gradients().begin(), arena.gradients().end(), 1.0f) == 21 + 1 + 16);
  arena.clear_gradients();
  CHECK(std::count(arena.gradients().begin(), arena.gradients().end(), 0.0f) == 64);
  CHECK(std::count(arena.parameters().begin(), arena.parameters().end(), 0.0f) == 64 - 38);
}

TEST_CASE("a tensor of another type than float32 has no initial values by a function") {
  heap memory;
  muster::arena arena(memory, {{"weight", {3}, muster::dtype::float64}});
  CHECK_THROWS_WITH(arena.initialise(0, [](std::size_t) { return 1.0f; }), contains("its elements are float64"));
}

TEST_CASE("initial values are computed at the first access, or given away before") {
  heap memory;
  muster::arena arena(memory, {{"weight", {3, 7}}, {"bias", {5}}});
  int computed = 0;
  arena.initialise("weight", [&](std::size_t k) { return ++computed, static_cast<float>(k + 1); });
  CHECK(computed == 0);
  SECTION("at the first access") {
    CHECK(arena.parameter("weight")[20] == 21.0f);
    CHECK(computed == 21);
    CHECK(std::accumulate(arena.parameters().begin(), arena.parameters().end(), 0.0f) == 21 * 22 / 2);
    CHECK(computed == 21);
    CHECK_FALSE(arena.take_initial());
    arena.parameter("weight")[20] = -1.0f;
    arena.initialise("bias", [](std::size_t k) { return static_cast<float>(k); });  // too late to wait for an access
    CHECK(arena.parameter("bias")[4] == 4.0f);
    CHECK(arena.parameter("weight")[20] == -1.0f);
  }
  SECTION("given away") {
    const auto fill = arena.take_initial();
    CHECK(computed == 0);
    CHECK_THROWS_WITH(arena.initialise("bias", [](std::size_t) { return 1.0f; }),
                      contains("before the training is made"));
    CHECK(std::ranges::count(arena.parameters(), 0.0f) == std::ssize(arena.parameters()));
    for (std::size_t first = 0; first < arena.parameters().size(); ++first) {
      std::vector<float> part(std::min<std::size_t>(7, arena.parameters().size() - first));
      fill(first, part);
      for (std::size_t k = 0; k < part.size(); ++k) {
        const auto place = first + k;  // the bias and its gap are before the weight
        CHECK(part[k] == (place >= 16 && place < 16 + 21 ? static_cast<float>(place - 15) : 0.0f));
      }
    }
  }
  SECTION("written by the program") {
    arena.parameter("bias")[0] = 3.0f;
    CHECK(arena.parameter("weight")[0] == 1.0f);
    arena.discard();
    CHECK(arena.parameters().size() == 16 + 32);
  }
}

TEST_CASE("state of the optimizer is made once, zeroed, with the layout of the parameters") {
  heap memory;
  muster::arena arena(memory, {{"w", {5}}});
  const auto velocity = arena.state("velocity");
  CHECK(velocity.size() == arena.parameters().size());
  CHECK(std::count(velocity.begin(), velocity.end(), 0.0f) == 16);
  velocity[3] = 2.0f;
  CHECK(arena.state("second moment")[3] == 0.0f);
  CHECK(arena.state("velocity").data() == velocity.data());
  CHECK(arena.state("velocity")[3] == 2.0f);
}

TEST_CASE("an arena refuses shapes and names that cannot be") {
  heap memory;
  const auto make = [&](std::vector<muster::tensor_shape> shapes) { muster::arena arena(memory, std::move(shapes)); };
  CHECK_THROWS_AS(make({{"w", {2}}, {"w", {3}}}), muster::configuration_error);
  CHECK_THROWS_AS(make({{"", {2}}}), muster::configuration_error);
  CHECK_THROWS_AS(make({{"w", {std::numeric_limits<std::size_t>::max() / 2, 3}}}), muster::configuration_error);

  muster::arena arena(memory, {{"weight", {2}}});
  CHECK_THROWS_AS(arena.parameter(1), muster::configuration_error);
  try {
    (void)arena.gradient("wieght");
    FAIL("a name that is not there was found");
  } catch (const muster::configuration_error& error) {
    CHECK(std::string(error.what()).find("'weight'") != std::string::npos);
  }
}
