#include <muster/comm/algorithms/registry.hpp>

#include <algorithm>
#include <array>
#include <thread>

#include <muster/comm/algorithms/algorithm_rules.hpp>
#include <muster/comm/algorithms/calibrate.hpp>
#include <muster/comm/context.hpp>
#include <muster/core/error.hpp>
#include <muster/testing/collective_kit.hpp>

#include "catch.hpp"
#include "command_line.hpp"

namespace {

using muster::algorithm;
using muster::collective;

// Rank 0 collects and hands out, one after the other.
muster::task by_root(muster::collective_context& at, const muster::collective_call& call) {
  const std::size_t bytes = call.count * call.element_size;
  muster::request r;
  for (int peer = 1; peer < at.size() && at.rank() == 0; ++peer) {
    at.receive_combine(r, peer, call.out, bytes, call.reduce);
    co_await at.done(r);
  }
  if (at.rank() == 0) call.reduce.finish(call.out, bytes, at.size());
  for (int peer = 1; peer < at.size() && at.rank() == 0; ++peer) {
    at.send(r, peer, call.out, bytes);
    co_await at.done(r);
  }
  if (at.rank() == 0) co_return;
  at.send(r, 0, call.out, bytes);
  co_await at.done(r);
  at.receive(r, 0, call.out, bytes);
  co_await at.done(r);
}

// Forgets the values of the last rank.
muster::task forgetful(muster::collective_context& at, const muster::collective_call& call) {
  muster::request r;
  const std::size_t bytes = call.count * call.element_size;
  if (at.rank() == 0) {
    for (int peer = 1; peer < at.size(); ++peer) {
      at.send(r, peer, call.out, bytes);
      co_await at.done(r);
    }
  } else {
    at.receive(r, 0, call.out, bytes);
    co_await at.done(r);
  }
}

algorithm mine() {
  static const algorithm made = muster::register_algorithm(collective::allreduce, "by_root", by_root);
  return made;
}

}  // namespace

TEST_CASE("a registered algorithm is one of its collective, by name in rules and options") {
  const algorithm how = mine();
  CHECK(to_string(how) == "by_root");
  const auto known = muster::algorithms_of(collective::allreduce);
  CHECK(std::ranges::find(known, how) != known.end());
  const auto rules = muster::algorithm_rules::parse("allreduce:1k-inf:by_root");
  CHECK(rules.algorithm_for(collective::allreduce, 4096) == how);
  CHECK(rules.to_string() == "allreduce:1k-inf:by_root");
  CHECK_THROWS_WITH(muster::algorithm_rules::parse("reduce:by_root"),
                    contains("reduce has tree, native, and not by_root"));
  CHECK_THROWS_WITH(muster::algorithm_rules::parse("allreduce:by_roots"), contains("did you mean 'by_root'"));

  // Without a rule the library does not choose what it has no model of.
  for (const std::size_t bytes : {4, 4096, 1 << 24}) CHECK(muster::choose(collective::allreduce, bytes, 3, {}) != how);
}

TEST_CASE("a registered algorithm that is right passes the kit, and a wrong one is told where") {
  CHECK_NOTHROW(muster::testing::check_algorithm(collective::allreduce, mine()));
  const algorithm wrong = muster::register_algorithm(collective::allreduce, "forgetful", forgetful);
  CHECK_THROWS_WITH(
      muster::testing::check_algorithm(collective::allreduce, wrong),
      contains("instead of") && contains("allreduce by forgetful, 2 ranks") && contains("MUSTER_TEST_CASE="));
  // One name, another collective.
  CHECK(muster::register_algorithm(collective::broadcast, "forgetful", forgetful) == wrong);
}

TEST_CASE("calibration measures registered algorithms as it does others", "[slow]") {
  const algorithm how = mine();
  const auto hub = std::make_shared<muster::thread_hub>(2);
  std::array<std::vector<muster::measured_time>, 2> times;
  std::vector<std::thread> ranks;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      muster::group world(std::make_unique<muster::thread_transport>(hub, static_cast<int>(rank)), {});
      times[rank] = muster::calibrate(world);
    });
  }
  for (auto& one : ranks) one.join();
  const auto is_mine = [&](const muster::measured_time& one) { return one.algorithm == how && one.seconds > 0; };
  CHECK(std::ranges::count_if(times[0], is_mine) > 3);
  CHECK(std::ranges::count_if(times[1], is_mine) == std::ranges::count_if(times[0], is_mine));
}

TEST_CASE("what cannot be registered is refused by name") {
  (void)mine();
  const auto attempt = [](collective kind, std::string_view name, muster::algorithm_body body) {
    return [=] { (void)muster::register_algorithm(kind, name, body); };
  };
  for (const auto& [kind, name, why] : {std::tuple{collective::allreduce, "by_root", "has an algorithm with that name"},
                                        {collective::allreduce, "ring", "the name exists already"},
                                        {collective::allreduce, "By Root", "the name is invalid"},
                                        {collective::allreduce, "", "the name is invalid"},
                                        {collective::finish, "last", "there is no such collective"},
                                        {collective::none, "last", "there is no such collective"}})
    CHECK_THROWS_WITH(attempt(kind, name, by_root)(), contains(why));
  CHECK_THROWS_AS(attempt(collective::allreduce, "empty", nullptr)(), muster::configuration_error);
  for (int number = 0; number < 8; ++number) {
    try {
      (void)muster::register_algorithm(collective::reduce, "more_" + std::to_string(number), by_root);
    } catch (const muster::configuration_error& full) {
      CHECK(std::string(full.what()).find("there are 8 already") != std::string::npos);
      return;
    }
  }
  FAIL("more than 8 names were taken");
}

TEST_CASE("a registered transport is known by name, and taken names are refused") {
  const auto connect = [](const muster::settings&, const muster::launch_env&) -> std::unique_ptr<muster::transport> {
    return std::make_unique<muster::thread_transport>(std::make_shared<muster::thread_hub>(1), 0);
  };
  muster::register_transport("mine", connect);
  for (const char* const taken : {"mine", "tcp", "shm", "auto", ""})
    CHECK_THROWS_WITH(muster::register_transport(taken, connect), contains("cannot be registered"));
  CHECK_THROWS_AS(muster::register_transport("other", nullptr), muster::configuration_error);
  CHECK_THROWS_WITH(muster::connect_transport("other", muster::settings(), muster::detect_launch()),
                    contains("no transport 'other'"));

  test::command_line line({"app", "--transport", "mine"});
  muster::context context(line.argc, line.argv());
  CHECK(context.ranks() == 1);
  CHECK(muster::allreduce(context.world(), 3, muster::sum) == 3);
}
