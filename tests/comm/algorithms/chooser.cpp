// Which algorithm runs: rules as people write them or as they are measured, and the table a group looks it up in.
#include <muster/comm/algorithms/chooser.hpp>

#include <cmath>

#include <muster/comm/algorithms/algorithm_rules.hpp>
#include <muster/comm/algorithms/calibrate.hpp>
#include <muster/comm/group.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"
#include "comm/ranks.hpp"

namespace {

using muster::algorithm;
using muster::algorithm_rules;
using muster::algorithm_selector;
using muster::collective;

constexpr std::uint64_t seed = 20270301;

/// Sizes of all magnitudes, and those beside powers of two more often.
std::size_t draw_size(muster::random_stream& random) {
  const auto power = std::size_t{1} << random.below(36);
  return random.below(2) == 0 ? power + random.below(power) : power + random.below(3) - 1;
}

double draw_constant(muster::random_stream& random, double low, double high) {
  return low * std::exp(random.uniform() * std::log(high / low));
}

muster::transport_abilities draw_transport(muster::random_stream& random) {
  muster::transport_abilities made;
  made.name = "threads";
  made.native_collectives = random.below(2) == 0;
  made.costs = {draw_constant(random, 1e-7, 1e-4), draw_constant(random, 1e-11, 1e-8),
                draw_constant(random, 1e-11, 1e-8), draw_constant(random, 0.1, 1)};
  if (random.below(2) == 0) made.costs.ranks_a_core = draw_constant(random, 1, 16);
  return made;
}

algorithm_rules::rule draw_rule(muster::random_stream& random) {
  algorithm_rules::rule made;
  if (random.below(5) == 0) {
    made.algorithm = muster::all_algorithms[1 + random.below(std::size(muster::all_algorithms) - 1)];
    return made;
  }
  made.kind = muster::all_collectives[random.below(std::size(muster::all_collectives))];
  const auto known = muster::algorithms_of(made.kind);
  made.algorithm = random.below(6) == 0 ? algorithm::automatic : known[random.below(known.size())];
  if (random.below(4) != 0) {
    made.low = random.below(3) == 0 ? 0 : draw_size(random);
    made.high = random.below(3) == 0 ? algorithm_rules::no_limit : made.low + 1 + draw_size(random);
  }
  return made;
}

/// A list of rules and its text.
std::pair<std::vector<algorithm_rules::rule>, std::string> draw_rules(muster::random_stream& random) {
  std::vector<algorithm_rules::rule> list;
  std::string text;
  for (std::size_t n = 1 + random.below(6); n > 0; --n) {
    list.push_back(draw_rule(random));
    text += (text.empty() ? "" : ",") + to_string(list.back());
  }
  return {list, text};
}

bool has(collective kind, algorithm how) {
  for (const auto known : muster::algorithms_of(kind)) {
    if (known == how) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("rules are read back as they are written, and the last one that speaks of a call wins") {
  muster::random_stream random(seed, 1);
  for (int i = 0; i < 2000; ++i) {
    const auto [list, text] = draw_rules(random);
    const auto rules = algorithm_rules::parse(text);
    INFO("seed " << seed << ", case " << i << ": " << text);
    CHECK(algorithm_rules::parse(rules.to_string()) == rules);
    for (int j = 0; j < 20; ++j) {
      const auto kind = muster::all_collectives[random.below(std::size(muster::all_collectives))];
      auto bytes = random.below(8) == 0 ? 0 : draw_size(random);
      if (random.below(3) == 0) bytes = list[random.below(list.size())].low;  // the edges
      auto expected = algorithm::automatic;
      for (const auto& rule : list) {
        const bool speaks =
            rule.kind == kind ||
            (rule.kind == collective::none && (has(kind, rule.algorithm) || rule.algorithm == algorithm::automatic));
        if (speaks && rule.low <= bytes && bytes < rule.high) expected = rule.algorithm;
      }
      CHECK(rules.algorithm_for(kind, bytes) == expected);
    }
  }
}

TEST_CASE("sizes are in powers of 1024, however their unit is written") {
  const auto low = [](const std::string& size) {
    return algorithm_rules::parse("allreduce:" + size + "-inf:ring").rules()[0].low;
  };
  CHECK(low("0") == 0);
  CHECK(low("512") == 512);
  CHECK(low("4k") == 4096);
  CHECK(low("4K") == 4096);
  CHECK(low("4Ki") == 4096);
  CHECK(low("3m") == 3u << 20);
  CHECK(low("3Mi") == 3u << 20);
  CHECK(low("2g") == std::size_t{2} << 30);
  CHECK(low("2Gi") == std::size_t{2} << 30);
  CHECK(muster::format_bytes(4096) == "4k");
  CHECK(muster::format_bytes(4097) == "4097");
  CHECK(muster::format_bytes(std::size_t{5} << 30) == "5g");
  CHECK(muster::format_bytes(0) == "0");
}

TEST_CASE("one algorithm is a rule for all collectives, and auto is none") {
  CHECK(algorithm_rules::parse("auto") == algorithm_rules());
  CHECK(algorithm_rules::parse("ring") == algorithm_rules(algorithm::ring));
  CHECK(algorithm_rules(algorithm::automatic).to_string() == "auto");
  CHECK(algorithm_rules::parse("ring,broadcast:chain,auto") == algorithm_rules());
  const muster::group_settings settings{.algorithm = algorithm::ring};
  CHECK(settings.algorithm.algorithm_for(collective::allreduce, 100) == algorithm::ring);
  CHECK(settings.algorithm.algorithm_for(collective::broadcast, 100) == algorithm::automatic);
}

TEST_CASE("a rule that cannot be used is refused in one line that names it and says what was meant") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> wrong = {
      {"rings", {"'rings'", "algorithm 'rings' is not one of", "did you mean 'ring'?"}},
      {"", {"''", "it is empty"}},
      {"ring,", {"''", "it is empty"}},
      {"ring,allredue:tree", {"'allredue:tree'", "collective 'allredue' is not one of", "did you mean 'allreduce'?"}},
      {"allreduce:0-4k:recursivedoubling", {"did you mean 'recursive_doubling'?"}},
      {"broadcast:ring",
       {"'broadcast:ring'", "broadcast has tree, chain, native, and not ring", "choose a listed algorithm"}},
      {"allreduce:4k:ring", {"'4k' is not a range of sizes"}},
      {"allreduce:4q-8q:ring", {"'4q' is not a size"}},
      {"allreduce:4kk-8k:ring", {"'4kk' is not a size"}},
      {"allreduce:-8k:ring", {"'' is not a size"}},
      {"allreduce:-1-8k:ring", {"'' is not a size"}},
      {"allreduce:inf-inf:ring", {"'inf' is not a size"}},
      {"allreduce:8k-4k:ring", {"the range 8k-4k is empty"}},
      {"allreduce:4k-4k:ring", {"the range 4k-4k is empty"}},
      {"allreduce:99999999999g-inf:ring", {"'99999999999g' is not a size"}},
      {"allreduce:99999999999999999999999-inf:ring", {"is not a size"}},
      {"allreduce:0-4k:ring:tree", {"algorithm 'ring:tree' is not one of"}},
      {"finish:ring", {"collective 'finish' is not one of"}},
  };
  for (const auto& [text, parts] : wrong) {
    std::string said = "accepted";
    try {
      (void)algorithm_rules::parse(text, "MUSTER_ALGORITHM");
    } catch (const muster::configuration_error& refused) {
      said = refused.what();
    }
    INFO(text << ": " << said);
    CHECK(said.starts_with("MUSTER_ALGORITHM '"));
    CHECK(said.find('\n') == std::string::npos);
    for (const auto& part : parts) CHECK(said.find(part) != std::string::npos);
  }
}

TEST_CASE("the table says what the model says, at every size") {
  muster::random_stream random(seed, 2);
  for (int i = 0; i < 300; ++i) {
    const auto transport = draw_transport(random);
    const int ranks = 1 + static_cast<int>(random.below(random.below(2) == 0 ? 9 : 200));
    const algorithm_selector table(transport, ranks);
    for (const auto kind : muster::all_collectives) {
      for (int j = 0; j < 30; ++j) {
        const auto bytes = random.below(10) == 0 ? 0 : draw_size(random);
        const auto best = muster::choose(kind, bytes, ranks, transport.costs);
        const auto chosen = table.algorithm_for(kind, bytes);
        if (chosen == best) continue;  // else a tie but for rounding
        INFO("seed " << seed << ", " << to_string(kind) << " of " << bytes << " bytes among " << ranks << ": "
                     << to_string(chosen) << " instead of " << to_string(best));
        CHECK(has(kind, chosen));
        CHECK(chosen != algorithm::native);
        CHECK(muster::estimate(kind, chosen, bytes, ranks, transport.costs) <=
              (1 + 1e-9) * muster::estimate(kind, best, bytes, ranks, transport.costs));
      }
    }
  }
}

TEST_CASE("a rule comes before native_first, that before the model") {
  muster::random_stream random(seed, 3);
  for (int i = 0; i < 1000; ++i) {
    auto transport = draw_transport(random);
    transport.native_collectives = true;
    transport.prefers_native = random.below(2) == 0;
    const int ranks = 1 + static_cast<int>(random.below(100));
    const auto rules = algorithm_rules::parse(draw_rules(random).second);
    const algorithm_selector table(transport, ranks, rules);
    auto plain = transport;
    plain.prefers_native = false;
    const algorithm_selector modelled(plain, ranks);
    INFO("seed " << seed << ", case " << i << ": " << rules.to_string());
    for (int j = 0; j < 20; ++j) {
      const auto kind = muster::all_collectives[random.below(std::size(muster::all_collectives))];
      auto bytes = random.below(10) == 0 ? 0 : draw_size(random);
      if (random.below(3) == 0 && !rules.rules().empty()) {  // the edges
        const auto& edge = rules.rules()[random.below(rules.rules().size())];
        bytes = random.below(2) == 0 || edge.high == algorithm_rules::no_limit ? edge.low : edge.high - random.below(2);
      }
      auto expected = rules.algorithm_for(kind, bytes);
      if (expected == algorithm::automatic && transport.prefers_native) expected = algorithm::native;
      if (expected == algorithm::automatic) expected = modelled.algorithm_for(kind, bytes);
      CHECK(table.algorithm_for(kind, bytes) == expected);
    }
  }
}

TEST_CASE("native is refused where the transport has none, when the group is made") {
  const auto refused = [](const muster::group_settings& settings) {
    auto hub = std::make_shared<muster::thread_hub>(2);
    try {
      const muster::group made(std::make_unique<muster::thread_transport>(hub, 0), settings);
    } catch (const muster::configuration_error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK_THAT(refused({.algorithm = algorithm::native}), contains("the algorithm rule 'native' asks for native"));
  CHECK_THAT(refused({.algorithm = algorithm_rules::parse("allreduce:4k-inf:native")}),
             contains("'allreduce:4k-inf:native' asks for native (transport threads has no collectives of its own)"));

  // Alone there is no peer to be native with, so a program runs with the same settings.
  muster::group alone(muster::make_self_transport(), {.algorithm = algorithm::native});
  CHECK(alone.chosen(collective::allreduce, 4) != algorithm::native);

  test::run_ranks(2, [](muster::group& world) {
    world.set_settings({.algorithm = algorithm::ring});
    try {
      world.set_settings({.algorithm = algorithm::native});
    } catch (const muster::configuration_error&) {
      if (world.settings().algorithm != algorithm_rules(algorithm::ring)) throw std::runtime_error("settings changed");
      if (world.chosen(collective::allreduce, 4) != algorithm::ring) throw std::runtime_error("choice changed");
      return;
    }
    throw std::runtime_error("accepted");
  });
}

// Times that the model itself makes must give back its constants and its choices.
TEST_CASE("where ranks share cores few messages count, and where each has its own few rounds do") {
  const muster::transport_costs own{14e-6, 3.8e-10, 0, 0.4, 1};
  const muster::transport_costs shared{14e-6, 3.8e-10, 0, 0.4, 2};
  for (const std::size_t bytes : {std::size_t{4}, std::size_t{1} << 10, std::size_t{64} << 10}) {
    CHECK(muster::choose(collective::allreduce, bytes, 4, shared) == algorithm::tree);
    CHECK(muster::choose(collective::allreduce, bytes, 4, own) != algorithm::tree);
  }
  CHECK(muster::choose(collective::allreduce, std::size_t{4} << 20, 4, shared) == algorithm::halving_doubling);
  for (const auto kind : {collective::allreduce, collective::allgather, collective::reduce_scatter, collective::gather,
                          collective::scatter, collective::broadcast, collective::reduce}) {
    for (const auto how : muster::algorithms_of(kind)) {
      if (how == algorithm::native) continue;
      for (const int ranks : {2, 3, 4, 7, 8, 64}) {
        INFO(to_string(kind) << " by " << to_string(how) << " among " << ranks);
        const double path = muster::estimate(kind, how, 1 << 20, ranks, own);
        CHECK(muster::estimate(kind, how, 1 << 20, ranks, shared) > 0.25 * path);
      }
    }
  }
}

TEST_CASE("calibrating the model finds its own constants and choices again") {
  muster::random_stream random(seed, 5);
  for (int i = 0; i < 100; ++i) {
    const auto transport = draw_transport(random);
    const int ranks = 2 + static_cast<int>(random.below(20));
    std::vector<muster::measured_time> times;
    for (const auto kind : {collective::allreduce, collective::broadcast, collective::reduce_scatter}) {
      for (std::size_t bytes = 64; bytes <= std::size_t{16} << 20; bytes *= 4) {
        for (const auto how : muster::algorithms_of(kind)) {
          if (how == algorithm::native) continue;
          times.push_back({kind, how, bytes, muster::estimate(kind, how, bytes, ranks, transport.costs)});
        }
      }
    }
    INFO("seed " << seed << ", case " << i);
    const auto costs = muster::fit_costs(times, ranks, transport.costs);
    CHECK(costs.latency == Approx(transport.costs.latency).epsilon(1e-4));
    CHECK(costs.per_byte == Approx(transport.costs.per_byte).epsilon(1e-4));
    CHECK(costs.reduce_per_byte == Approx(transport.costs.reduce_per_byte).epsilon(1e-4));
    const auto rules = muster::fastest(times);
    for (const auto kind : {collective::allreduce, collective::broadcast, collective::reduce_scatter})
      CHECK(rules.algorithm_for(kind, 0) != algorithm::automatic);
    CHECK(rules.algorithm_for(collective::gather, 1000) == algorithm::automatic);  // was not measured
    const algorithm_selector table(transport, ranks, rules);
    for (const auto& t : times) {
      const double taken =
          muster::estimate(t.kind, table.algorithm_for(t.kind, t.bytes), t.bytes, ranks, transport.costs);
      CHECK(taken <= t.seconds / 0.95 * (1 + 1e-9));  // no algorithm measured there is faster by more than noise
    }
  }
}

TEST_CASE("measured rules change between two sizes, and only for what is faster by more than noise") {
  const auto rules = muster::fastest(std::vector<muster::measured_time>{
      {collective::allreduce, algorithm::recursive_doubling, 64, 1.00},
      {collective::allreduce, algorithm::tree, 64, 0.96},
      {collective::allreduce, algorithm::recursive_doubling, 256, 2.00},
      {collective::allreduce, algorithm::tree, 256, 1.80},
      {collective::allreduce, algorithm::recursive_doubling, 1024, 2.80},
      {collective::allreduce, algorithm::tree, 1024, 3.10},
      {collective::broadcast, algorithm::tree, 64, 2.0},
      {collective::broadcast, algorithm::chain, 64, 1.0},
  });
  CHECK(
      rules.to_string() ==
      "broadcast:chain,allreduce:0-128:recursive_doubling,allreduce:128-512:tree,allreduce:512-inf:recursive_doubling");
  CHECK(muster::fastest({}) == algorithm_rules());
}

TEST_CASE("no constant is fitted below zero") {
  using muster::measured_time;
  // The longer message is the faster one: no rate of that kind exists.
  const std::vector<measured_time> odd = {{collective::broadcast, algorithm::tree, 64, 1e-5},
                                          {collective::broadcast, algorithm::tree, 1 << 20, 1e-6}};
  const auto costs = muster::fit_costs(odd, 2);
  CHECK(costs.latency > 0);
  CHECK(costs.per_byte == 0);
  CHECK(costs.reduce_per_byte == 0);
  CHECK(muster::fit_costs({}, 2).latency == 0);
}
