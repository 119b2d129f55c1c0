#include <muster/train/optimizers/optimizer.hpp>

#include <algorithm>
#include <cmath>

#include <muster/comm/transports/threads.hpp>
#include <muster/core/random.hpp>
#include <muster/core/update.hpp>

#include <muster/elastic/session.hpp>

#include "catch.hpp"
#include "train/heap.hpp"
#include "train/reference/reference.hpp"

namespace {

std::vector<muster::tensor_shape> layers() {
  return {{"weight", {7, 9}}, {"bias", {7}}, {"scale", {7}}, {"shift", {}}, {"last", {3, 7}}};
}

void fill(std::span<float> values, muster::random_stream& random) {
  for (float& value : values) value = static_cast<float>(random.normal());
}

/// Fills the parameters or gradients of every tensor, and not the gaps.
void fill(muster::arena& arena, muster::random_stream& random, bool parameters) {
  for (std::size_t tensor = 0; tensor < arena.shapes().size(); ++tensor) {
    if (parameters) fill(arena.parameter(tensor), random);
    fill(arena.gradient(tensor), random);
  }
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

std::vector<double> doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

std::string refusal_of_optimizer(const std::string& text) {
  heap memory;
  muster::arena arena(memory, layers());
  try {
    (void)muster::make_optimizer(arena, text);
  } catch (const muster::configuration_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a step that fails after the optimizer was applied leaves the state bitwise as before") {
  const std::string name = GENERATE("sgd", "momentum:0.9", "nesterov:0.9", "adam", "adamw", "lars", "adagrad");
  INFO(name);
  heap memory;
  muster::arena arena(memory, {{"w", {33, 3}}, {"b", {3}}});
  std::ranges::fill(arena.parameter("w"), 1.0f);
  auto optimizer = muster::make_optimizer(arena, name);
  struct {
    std::vector<double> sum = {0.0};
    void describe(muster::state_parts& parts) { parts.add("sum", std::span(sum)); }
  } owner;
  muster::state state{arena, optimizer, owner};
  muster::group self(muster::make_self_transport());
  auto session = muster::fixed_session(self);
  bool fail = false;
  const auto step = [&](muster::step&) {
    owner.sum[0] += 1;
    std::ranges::fill(arena.gradient("w"), 0.5f);
    optimizer.apply(0.1);
    if (fail) throw std::runtime_error("a collective behind the update failed");
  };
  session.run(state, step, {.steps = 1});
  const auto first = state.digest();
  session.run(state, step, {.steps = 2});
  const auto before = state.digest();
  CHECK(before != first);
  CHECK(arena.parameter("w")[7] != 1.0f);
  fail = true;
  CHECK_THROWS_AS(session.run(state, step, {.steps = 3}), std::runtime_error);
  CHECK(state.digest() == before);
  fail = false;
  session.run(state, step, {.steps = 3});
  CHECK(state.steps() == 3);
}

TEST_CASE("optimizers step where PyTorch's do") {
  int compared = 0;
  for (const auto& [name, expected] : torch_reference()) {
    if (expected.size() != 6) continue;  // the line is about a schedule
    CAPTURE(name);
    heap memory;
    muster::arena arena(memory, {{"w", {6}}});
    auto optimizer = muster::make_optimizer(arena, name);
    for (std::size_t i = 0; i < 6; ++i) arena.parameter("w")[i] = (static_cast<float>(i) - 2.5f) / 2;
    for (std::size_t step = 0; step < 7; ++step) {
      for (std::size_t i = 0; i < 6; ++i)
        arena.gradient("w")[i] = (static_cast<float>((7 * i + 13 * step) % 11) - 5) / 4;
      optimizer.apply(0.1);
    }
    for (std::size_t i = 0; i < 6; ++i)
      CHECK(arena.parameter("w")[i] == Approx(expected[i]).epsilon(1e-5).margin(1e-6));
    ++compared;
  }
  CHECK(compared == 9);
}

TEST_CASE("Adam is its paper, in double precision, element by element") {
  const std::size_t size = GENERATE(0u, 1u, 8u, 1003u);
  const bool decoupled = GENERATE(true, false);
  muster::random_stream random(5);
  std::vector<double> parameters(size), means(size), squares(size), p(size), m(size), s(size);
  for (std::size_t i = 0; i < size; ++i) p[i] = parameters[i] = random.normal();
  for (std::uint64_t t = 1; t <= 5; ++t) {
    std::vector<double> gradients(size);
    for (auto& gradient : gradients) gradient = random.normal();
    muster::update(muster::adam_step<double>{.learning_rate = 0.01, .decay = 0.1, .decoupled = decoupled, .count = t},
                   parameters, gradients, {means, squares});
    for (std::size_t i = 0; i < size; ++i) {
      const double g = gradients[i] + (decoupled ? 0.0 : 0.1 * p[i]);
      if (decoupled) p[i] -= 0.01 * 0.1 * p[i];
      m[i] = 0.9 * m[i] + 0.1 * g;
      s[i] = 0.999 * s[i] + 0.001 * g * g;
      const double time = static_cast<double>(t);
      p[i] -= 0.01 * (m[i] / (1 - std::pow(0.9, time))) / (std::sqrt(s[i] / (1 - std::pow(0.999, time))) + 1e-8);
      REQUIRE(parameters[i] == Approx(p[i]).epsilon(1e-12));
    }
  }
}

TEST_CASE("LARS scales each matrix by its own norms, and steps the others as momentum does") {
  heap memory;
  muster::arena arena(memory, layers());
  muster::random_stream random(6);
  fill(arena, random, true);
  muster::lars optimizer(arena, {.momentum = 0.9f, .decay = 0.01f, .trust = 0.02f});
  std::vector<std::vector<double>> w, v;
  for (std::size_t tensor = 0; tensor < 5; ++tensor) {
    w.push_back(doubles(arena.parameter(tensor)));
    v.emplace_back(w.back().size());
  }
  for (int step = 0; step < 6; ++step) {
    fill(arena, random, false);
    optimizer.apply(0.5);
    for (std::size_t tensor = 0; tensor < 5; ++tensor) {
      const auto g = doubles(arena.gradient(tensor));
      const bool scaled = arena.shapes()[tensor].extents.size() >= 2;
      const double decay = scaled ? 0.01 : 0.0;
      const double rate = scaled ? 0.5 * 0.02 * norm(w[tensor]) / (norm(g) + decay * norm(w[tensor])) : 0.5;
      for (std::size_t i = 0; i < g.size(); ++i) {
        v[tensor][i] = 0.9 * v[tensor][i] + rate * (g[i] + decay * w[tensor][i]);
        w[tensor][i] -= v[tensor][i];
        REQUIRE(arena.parameter(tensor)[i] == Approx(w[tensor][i]).epsilon(1e-4).margin(1e-5));
      }
    }
  }
}

TEST_CASE("LARS steps out of zeros and lets NaN through") {
  std::vector<float> w(5), v(5), g(5, 1.0f);
  const muster::lars_step<float> step{.learning_rate = 0.5f, .decay = 0.1f};
  muster::update(step, w, g, {v});
  CHECK(w == std::vector<float>(5, -0.5f));
  g[3] = std::nanf("");
  muster::update(step, w, g, {v});
  CHECK(std::isnan(w[3]));
}

TEST_CASE("LARS steps by the learning rate where there is no gradient, or next to none") {
  std::vector<float> w(5, 1.0f), v(5), g(5);
  muster::update(muster::lars_step<float>{.learning_rate = 0.5f, .decay = 0.1f}, w, g, {v});
  for (const float weight : w) CHECK(weight == Approx(0.95));
  w.assign(5, 1.0f);
  v.assign(5, 0.0f);
  g[2] = 1e-42f;
  muster::update(muster::lars_step<float>{.learning_rate = 0.5f}, w, g, {v});
  CHECK(w == std::vector<float>(5, 1.0f));
}

TEST_CASE("decay leaves out the tensors that it is told to, and gaps stay zeros") {
  const auto text = GENERATE("sgd,decay=0.1,decay-of=weights", "nesterov:0.9,decay=0.1,decay-of=weights",
                             "adamw,decay=0.1,decay-of=weights", "adam,decay=0.1,decay-of=weights", "lars,decay=0.1",
                             "adagrad,decay=0.1,decay-of=weights");
  CAPTURE(text);
  heap memory;
  muster::arena arena(memory, layers());
  muster::random_stream random(7);
  fill(arena, random, true);
  const auto before = doubles(arena.parameters());
  auto optimizer = muster::make_optimizer(arena, text);
  arena.clear_gradients();
  optimizer.apply(0.1);
  for (std::size_t tensor = 0; tensor < 5; ++tensor) {
    const auto values = arena.parameter(tensor);
    const auto first = static_cast<std::size_t>(values.data() - arena.parameters().data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool moved = static_cast<double>(values[i]) != before[first + i];
      REQUIRE(moved == (arena.shapes()[tensor].extents.size() >= 2));
    }
  }
  fill(arena, random, false);
  optimizer.apply(0.1);
  std::size_t nonzero = 0;
  for (const float value : arena.parameters()) nonzero += value != 0.0f ? 1 : 0;
  CHECK(nonzero == 63 + 7 + 7 + 1 + 21);
}

TEST_CASE("an optimizer goes on from what its state says") {
  const auto text = GENERATE("sgd", "momentum:0.9", "adam", "adamw,decay=0.1", "lars:0.9", "adagrad");
  CAPTURE(text);
  heap memory;
  muster::arena source_arena(memory, layers()), destination_arena(memory, layers());
  auto first = muster::make_optimizer(source_arena, text), second = muster::make_optimizer(destination_arena, text);
  muster::random_stream random(8);
  fill(source_arena, random, true);
  for (int step = 0; step < 3; ++step) first.apply(0.1);
  muster::state source(source_arena, first), destination(destination_arena, second);
  const auto& parts = source.parts();
  const auto& destination_parts = destination.parts();
  REQUIRE(parts.size() == destination_parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    REQUIRE(parts[i].name == destination_parts[i].name);
    std::ranges::copy(parts[i].bytes, destination_parts[i].bytes.begin());
  }
  fill(source_arena, random, false);
  std::ranges::copy(source_arena.gradients(), destination_arena.gradients().begin());
  first.apply(0.1);
  second.apply(0.1);
  CHECK(std::ranges::equal(source_arena.parameters(), destination_arena.parameters()));
  CHECK(source.digest() == destination.digest());
}

TEST_CASE("Adam counts the steps that commit") {
  heap memory;
  muster::arena arena(memory, layers());
  muster::adam optimizer(arena);
  muster::state all(arena, optimizer);
  const auto count = [&] { return all.parts().back(); };
  CHECK(count().name == "steps of adam");
  all.begin_step();
  optimizer.apply(0.0);
  all.roll_back();
  CHECK(count().bytes[0] == std::byte{0});
  all.begin_step();
  optimizer.apply(0.0);
  all.commit_step();
  CHECK(count().bytes[0] == std::byte{1});
}

TEST_CASE("kernels refuse spans of different lengths before anything is written") {
  std::vector<float> w(3, 1.0f), g(2, 1.0f), a(3), b(3);
  CHECK_THROWS_AS(muster::update(muster::adam_step<float>{}, w, g, {a, b}), muster::configuration_error);
  CHECK_THROWS_AS(muster::update(muster::lars_step<float>{}, w, g, {a}), muster::configuration_error);
  CHECK_THROWS_AS(muster::update(muster::adagrad_step<float>{}, w, g, {a}), muster::configuration_error);
  CHECK_THROWS_AS(muster::update(muster::assign_step<float>{}, w, g), muster::configuration_error);
  CHECK_THROWS_AS(muster::update(muster::add_step<float>{}, w, g), muster::configuration_error);
  g.push_back(4.0f);
  CHECK_THROWS_AS(muster::update(muster::adam_step<float>{}, w, g, {a, std::span(b).first(2)}),
                  muster::configuration_error);
  CHECK(w == std::vector<float>(3, 1.0f));
  muster::update(muster::add_step<float>{-0.5f}, w, g);
  CHECK(w == std::vector<float>{0.5f, 0.5f, -1.0f});
  muster::update(muster::assign_step<float>{}, w, g);
  CHECK(w == g);
}

TEST_CASE("an optimizer that cannot be meant is refused with its text, the fault and a way out") {
  const auto text = GENERATE("", "sdg", "sgd:0.9", "momentum", "momentum:0", "momentum:x", "adam:0.9", "adam,beta=0.9",
                             "sgd,decay=-1", "sgd,decay=1,decay=1", "sgd,beta1=0.9", "lars,trust=0", "adam,epsilon=0",
                             "adamw,decay-of=bias", "nesterov:0.9,nesterov");
  CAPTURE(text);
  const auto message = refusal_of_optimizer(text);
  CHECK(message.starts_with("optimizer '" + std::string(text) + "' cannot be used ("));
  CHECK(message.find("); ") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
  CHECK_THAT(refusal_of_optimizer("adma"), contains("did you mean 'adam'?"));
  CHECK_THAT(refusal_of_optimizer("adam,beta3=1"), contains("did you mean 'beta"));
  CHECK_THAT(refusal_of_optimizer("momentum:1.5"), contains("velocities would grow"));
  CHECK_THAT(refusal_of_optimizer("adam,beta1=1"), contains("beta1 cannot be 1"));
}

TEST_CASE("the optimizer of the settings is the one they name") {
  heap memory;
  muster::arena arena(memory, layers());
  std::string words[] = {"program", "--optimizer", "adam,decay=0.1"};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  int argc = 3;
  const muster::settings chosen(argc, argv);
  auto optimizer = muster::make_optimizer(arena, chosen);
  CHECK(argc == 1);
  muster::state all(arena, optimizer);
  CHECK(all.parts().back().name == "steps of adam");
}
