// One process that joins and the members whose state it follows, in this process: over the loopback.
#include <cstdlib>
#include <iostream>
#include <list>
#include <optional>
#include <thread>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"
#include "elastic/state_follower.hpp"
#include "elastic/state_server.hpp"

namespace {

using namespace std::chrono_literals;
using muster::detail::state_follower;
using muster::detail::state_server;

// Learns by gradients and a rate, as optimizers do; has parts of any size, and one that writes itself.
struct learner {
  learner(std::size_t values, std::size_t more)
      : weights(values), velocity(values), gradient(values), more_(more, std::byte{1}) {}

  void describe(muster::state_parts& parts) {
    parts.add("weights", std::span(weights));
    parts.add("more", std::span(more_), muster::state_kind::replicated, muster::in_step::shadowed);
    parts.add("velocity", std::span(velocity));
    parts.add(
        "text", muster::state_kind::replicated, [] { return std::vector<std::byte>(3); },
        [](std::span<const std::byte>) {});
    if (repeats)
      parts.replay({std::as_writable_bytes(std::span(gradient)), std::as_writable_bytes(std::span(&rate, 1))},
                   [this] { learn(); });
  }
  void learn() {
    for (std::size_t k = 0; k < weights.size(); ++k) {
      velocity[k] = 0.5f * velocity[k] + gradient[k];
      weights[k] -= static_cast<float>(rate) * velocity[k];
    }
  }
  bool operator==(const learner& other) const {
    return weights == other.weights && velocity == other.velocity && more_ == other.more_;
  }

  std::vector<float> weights, velocity, gradient;
  double rate = 0;
  std::vector<std::byte> more_;
  bool repeats = true;
};

struct member {
  member(std::size_t values, std::size_t more, const std::string& token)
      : learned(values, more), state(learned), server(std::in_place, "auto", "interface", token) {
    server->present(state, false);
  }

  void step(muster::random_stream draw) {  // the same at all
    state.begin_step();
    for (float& g : learned.gradient) g = static_cast<float>(draw.uniform());
    learned.rate = draw.uniform();
    learned.learn();
    state.commit_step();
    server->committed(state);
  }

  learner learned;
  muster::state state;
  std::optional<state_server> server;
};

constexpr auto never = [] { return false; };

struct crew {
  crew(int size, std::size_t values, std::size_t more) {
    for (int i = 0; i < size; ++i) cards.push_back(all.emplace_back(values, more, "token").server->card());
  }
  void step() {
    ++steps;
    for (auto& one : all) one.step(muster::random_stream(steps));
  }
  // Steps, while `what` goes on in a thread of its own.
  template <class F>
  void train_beside(F what) {
    std::atomic<bool> done{false};
    std::exception_ptr thrown;
    std::thread beside([&] {
      try {
        what();
      } catch (...) {
        thrown = std::current_exception();
      }
      done = true;
    });
    while (!done) {
      step();
      std::this_thread::sleep_for(1ms);
    }
    beside.join();
    if (thrown) std::rethrow_exception(thrown);
  }

  std::list<member> all;
  std::vector<std::string> cards;
  std::uint64_t steps = 0;
};

std::uint64_t seed() {
  const char* const text = std::getenv("MUSTER_TEST_SEED");
  return text == nullptr ? 20261122 : std::strtoull(text, nullptr, 10);
}

}  // namespace

TEST_CASE("who follows has the state of the members after the step at which they stop") {
  const auto first = seed();
  for (std::uint64_t s = first; s < first + 12; ++s) {
    muster::random_stream draw(s, 3);
    const auto members = 1 + static_cast<int>(draw.below(4));
    const std::size_t sizes[] = {1, 3, 1000, 65536, 65537, 200000, 1000000};
    crew others(members, sizes[draw.below(7)], draw.below(3) * 1000 + draw.below(2));
    INFO("seed " << s << ", " << members << " members, " << others.all.front().learned.weights.size() << " values");
    for (auto n = draw.below(5); n > 0; --n) others.step();

    learner mine(others.all.front().learned.weights.size(), others.all.front().learned.more_.size());
    muster::state state{mine};
    std::optional<state_follower> follower;
    const auto wanted = draw.below(8);
    others.train_beside([&] {
      follower.emplace(state, others.cards, "token", never);
      while (follower->advance(muster::clock::now() + 2ms) &&
             (!follower->is_there() || follower->repeated() < wanted)) {
      }
    });
    for (auto& one : others.all) one.server->pause(7);
    follower->finish(7, 5s);
    CHECK(follower->at() == others.steps);
    CHECK(follower->repeated() >= wanted);
    CHECK(mine == others.all.front().learned);
  }
}

TEST_CASE("several follow at once, and one that goes away disturbs nobody") {
  crew others(3, 300000, 17);
  std::list<learner> learners;
  std::list<muster::state> states;
  std::list<state_follower> followers;
  others.train_beside([&] {
    for (int i = 0; i < 3; ++i) {
      auto& mine = learners.emplace_back(300000, 17);
      followers.emplace_back(states.emplace_back(mine), others.cards, "token", never);
    }
    followers.pop_front();
    for (int turn = 0; turn < 50 || !followers.front().is_there() || !followers.back().is_there(); ++turn) {
      for (auto& one : followers) REQUIRE(one.advance(muster::clock::now() + 1ms));
    }
  });
  for (auto& one : others.all) one.server->pause(1);
  for (auto& one : followers) one.finish(1, 5s);
  CHECK(followers.front().at() == others.steps);
  CHECK(followers.back().at() == others.steps);
  CHECK(learners.back() == others.all.front().learned);
}

TEST_CASE("nobody follows a member that has gone, or whose state has become another than by steps") {
  crew others(2, 100000, 5);
  learner mine(100000, 5);
  muster::state state{mine};
  std::optional<state_follower> follower;
  others.train_beside([&] {
    follower.emplace(state, others.cards, "token", never);
    while (!follower->is_there()) REQUIRE(follower->advance(muster::clock::now() + 2ms));
  });
  SECTION("gone") { others.all.back().server.reset(); }
  SECTION("another") { others.all.back().server->present(others.all.back().state, true); }
  const auto until = muster::clock::now() + 10s;
  while (follower->advance(muster::clock::now() + 5ms)) REQUIRE(muster::clock::now() < until);
  CHECK(follower->at() <= others.steps);
  CHECK(follower->at() > 0);
}

TEST_CASE("a step that the members are beyond is asked for again, and a new member is waited for") {
  crew others(2, 1000, 0);
  others.all.back().server.emplace("auto", "interface", "token");  // it has no state yet
  others.cards.back() = others.all.back().server->card();
  learner mine(1000, 0);
  muster::state state{mine};
  std::optional<state_follower> follower;
  std::atomic<bool> done{false};
  std::thread beside([&] {
    follower.emplace(state, others.cards, "token", never);
    while (!follower->is_there()) (void)follower->advance(muster::clock::now() + 1ms);
    done = true;
  });
  std::this_thread::sleep_for(20ms);
  others.all.back().server->present(others.all.back().state, false);
  while (!done) others.step();  // as fast as it goes: whatever it knows of them is old
  beside.join();
  for (auto& one : others.all) one.server->pause(1);
  follower->finish(1, 5s);
  CHECK(mine == others.all.front().learned);
}

TEST_CASE("a state that cannot be followed, a stranger and a wrong token are refused") {
  crew others(2, 1000, 0);
  for (int i = 0; i < 3; ++i) others.step();
  const auto follow = [&](std::size_t values, bool repeats, const char* token) {
    learner mine(values, 0);
    mine.repeats = repeats;
    const auto before = mine;
    muster::state state{mine};
    CHECK_THROWS_AS(state_follower(state, others.cards, token, never), muster::error);
    CHECK(mine == before);
  };
  SECTION("other sizes") { follow(1001, true, "token"); }
  SECTION("no way to do steps again") { follow(1000, false, "token"); }
  SECTION("another job") { follow(1000, true, "other"); }
  SECTION("nobody waits for it") {
    learner mine(1000, 0);
    muster::state state{mine};
    CHECK_THROWS_AS(state_follower(state, others.cards, "token", [] { return true; }), muster::error);
  }
  SECTION("garbage") {
    const auto door = muster::detail::read_card(others.cards.front(), 0).addresses;
    std::vector<muster::detail::tcp_socket> strangers;
    for (int i = 0; i < 40; ++i)
      strangers.push_back(muster::detail::tcp_socket::connect(door, muster::clock::now() + 2s));
    const std::vector<std::byte> text(64, std::byte{'x'});
    for (std::size_t i = 0; i < strangers.size(); i += 2) {
      try {
        strangers[i].write_exactly(text, muster::clock::now() + 2s);
      } catch (const muster::error&) {  // it was dropped already
      }
    }
  }
  others.step();  // and they go on
  CHECK(others.all.front().learned == others.all.back().learned);
}
