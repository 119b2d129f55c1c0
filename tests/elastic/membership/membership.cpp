// The membership protocol in a simulated world: what must hold in every run, and how it fares in those it should
// survive.
#include "elastic/membership/membership.hpp"

#include <cstdlib>
#include <iostream>
#include <string>

#include <muster/core/error.hpp>

#include "../simulation/faults.hpp"
#include "../simulation/healing.hpp"
#include "../simulation/session.hpp"
#include "catch.hpp"

namespace {

std::uint64_t number_from(const char* variable, std::uint64_t fallback) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

struct tally {
  std::uint64_t runs = 0;
  std::uint64_t lived = 0;
  std::uint64_t generations = 0;
  std::uint64_t healed = 0;   // runs in which a quorum that alone was made whole had to progress, and did
  std::uint64_t excused = 0;  // runs in which it could not
  std::uint64_t turns = 0;    // that it took at most
};

/// So many runs; MUSTER_TEST_SEED=S MUSTER_TEST_CASES=1 repeats the one that failed.
template <class World>
tally simulate(std::uint64_t runs, World&& make) {
  const std::uint64_t first = number_from("MUSTER_TEST_SEED", 20261121);
  runs = number_from("MUSTER_TEST_CASES", runs);
  tally seen;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    muster::random_stream draw(seed, 99);
    try {
      const auto of = make(draw);
      const auto ended = simulation::run(seed, of).finish();
      ++seen.runs;
      seen.lived += ended.lives ? 1 : 0;
      seen.generations += ended.generations;
      using liveness = simulation::outcome::liveness;
      seen.healed += ended.healing == liveness::progressed ? 1 : 0;
      seen.excused += ended.healing == liveness::excused ? 1 : 0;
      seen.turns = std::max(seen.turns, ended.turns);
      // Where a third of all words is lost, silences are taken for deaths again and again.
      const std::uint64_t most = of.loss > 0.1 ? 60 : 30;
      if (ended.generations > most) FAIL("seed " << seed << ": " << ended.generations << " generations");
    } catch (const std::logic_error& broken) {
      FAIL("seed " << seed << ": " << broken.what() << "; again: MUSTER_TEST_SEED=" << seed << " MUSTER_TEST_CASES=1");
    }
  }
  std::cout << seen.runs << " runs, " << seen.generations << " generations; in " << seen.lived
            << " a group goes on at the end; " << seen.healed << " of a quorum alone that went on within " << seen.turns
            << " turns, " << seen.excused << " excused\n";
  return seen;
}

simulation::world anything(muster::random_stream& draw) {
  simulation::world of;
  of.members = 1 + static_cast<int>(draw.below(6));
  of.hosts = 1 + static_cast<int>(draw.below(4));
  of.min = 1 + static_cast<int>(draw.below(2));
  of.faults = 1 + static_cast<int>(draw.below(6));
  of.loss = draw.below(3) == 0 ? 0.3 : 0.02;
  return of;
}

}  // namespace

TEST_CASE("no two live groups, no lost commit, no livelock, whatever happens", "[simulation][slow]") {
  const auto seen = simulate(1500, &anything);
  CHECK(seen.lived * 2 > seen.runs);
  CHECK(seen.excused * 20 < seen.healed);
}

TEST_CASE("the same where each member is watched by few", "[simulation][slow]") {
  const auto seen = simulate(1500, [](muster::random_stream& draw) {
    auto of = anything(draw);
    of.members = 5 + static_cast<int>(draw.below(5));
    of.monitors = 1 + static_cast<int>(draw.below(3));
    return of;
  });
  CHECK(seen.lived * 2 > seen.runs);
  CHECK(seen.excused * 20 < seen.healed);
}

// A joiner that had copied nothing began anew when all others were dead; and one of two, which had not copied the state
// either, went on without the other, which had. And one that had copied nothing took a step that it had not done for
// its own, since the group was back at that step, and called the state lost that another had. A seed stands
// for one schedule of one protocol: the last finds what keeps the state in the present one.
TEST_CASE("schedules that once broke it", "[simulation]") {
  for (const std::uint64_t seed : {207412, 108494, 50101898, 20261262}) {
    muster::random_stream draw(seed, 99);
    CHECK_NOTHROW(simulation::run(seed, anything(draw)).finish());
  }
}

TEST_CASE("on one host every death is proof: the group goes on as long as one member lives", "[simulation][slow]") {
  simulate(500, [](muster::random_stream& draw) {
    simulation::world of;
    of.members = 5;
    of.hosts = 1;
    of.pauses = of.partitions = of.store_trouble = of.leaves = false;
    of.faults = 1 + static_cast<int>(draw.below(2));  // of at most two each: one is left
    of.echoes = 0;
    return of;
  });
}

TEST_CASE("connections that break between members that live expel none of them", "[simulation][slow]") {
  std::uint64_t generations = 0;
  for (std::uint64_t seed = 20261126; seed < 20261126 + 300; ++seed) {
    INFO("seed " << seed);
    muster::random_stream draw(seed, 99);
    simulation::world of;
    of.members = 2 + static_cast<int>(draw.below(5));
    of.hosts = of.members;
    of.faults = 1 + static_cast<int>(draw.below(8));
    of.resets = true;
    of.echoes = 0;
    const auto seen = simulation::run(seed, of).finish();
    REQUIRE((seen.lives && seen.ended == 0));
    generations += seen.generations;
  }
  CHECK(generations > 2 * 300);
}

TEST_CASE("silence is suspicious between hosts, and on one host when it lasts as long as a hang") {
  using namespace std::chrono_literals;
  const muster::elastic::membership_policy policy;
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 3; ++id) record.members.push_back({id, id == 3 ? 2u : 1u, id, 0, {}, "", ""});
  recorded_actions wanted;
  muster::elastic::membership one(record.members[0], policy, wanted, start);
  one.learn(start, 1, record);
  const auto suspect_at = [&](muster::clock::duration t, muster::elastic::member_id peer) {
    one.tick(start + t);
    return one.is_suspect(peer);
  };
  for (auto t = 100ms; t < 500ms; t += 100ms) CHECK_FALSE(suspect_at(t, 3));
  CHECK(suspect_at(600ms, 3));
  for (auto t = 700ms; t < 15000ms; t += 100ms) CHECK_FALSE(suspect_at(t, 2));
  CHECK(suspect_at(15100ms, 2));
}

TEST_CASE("a heartbeat that comes twice, or late, is no sign of life") {
  using namespace std::chrono_literals;
  const muster::elastic::membership_policy policy;
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 3; ++id) record.members.push_back({id, id, id, 0, {}, "", ""});
  recorded_actions wanted;
  muster::elastic::membership one(record.members[0], policy, wanted, start);
  one.learn(start, 1, record);
  muster::elastic::heartbeat fresh;
  muster::elastic::heartbeat old;
  fresh.from = 2;
  old.from = 3;
  fresh.generation = old.generation = 1;
  old.number = 7;
  one.hear(start, old);
  old.number = GENERATE(6u, 7u);
  for (auto t = 100ms; t <= 600ms; t += 100ms) {
    ++fresh.number;
    for (const auto& said : {fresh, old}) one.hear(start + t, said);
    one.tick(start + t);
    CHECK(one.is_suspect(3) == (t > policy.suspicion_timeout));
  }
  CHECK_FALSE(one.is_suspect(2));
}

TEST_CASE("a member whose connection broke is suspect unless it is heard within a beat") {
  using namespace std::chrono_literals;
  const muster::elastic::membership_policy policy;
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 2; ++id) record.members.push_back({id, id, id, 0, {}, "", ""});
  record.state_sources = {1, 2};
  recorded_actions wanted;
  muster::elastic::membership one(record.members[0], policy, wanted, start);
  one.learn(start, 1, record);
  muster::elastic::heartbeat said;
  said.from = 2;
  said.generation = 1;
  said.stopped = true;  // it has seen the same
  const auto hear = [&](muster::clock::duration t) {
    ++said.number;
    one.hear(start + t, said);
    one.tick(start + t);
  };
  one.disconnected(start + 10ms, 2, "its connection was reset");
  one.stopped(start + 10ms);
  CHECK_FALSE(one.is_suspect(2));
  SECTION("it is heard: the next generation has both") {
    hear(40ms);
    one.tick(start + 200ms);
    CHECK_FALSE(one.is_suspect(2));
    std::optional<muster::elastic::generation_record> next;
    for (const auto& what : wanted.take()) {
      if (const auto* const swap = std::get_if<act::swap>(&what)) next = swap->next;
    }
    REQUIRE(next);
    CHECK((next->members.size() == 2 && next->why == "a connection broke"));
  }
  SECTION("it is not") {
    one.tick(start + 100ms);
    CHECK_FALSE(one.is_suspect(2));
    one.tick(start + 120ms);
    CHECK(one.is_suspect(2));
    CHECK(one.reason_for(2).find("reset") != std::string::npos);
    hear(130ms);  // late: nothing was decided that cannot be taken back here
    CHECK_FALSE(one.is_suspect(2));
  }
}

TEST_CASE("a member that goes on to suspect more than half of a group is suspect itself, and that of a half is not") {
  using namespace std::chrono_literals;
  const bool whole = GENERATE(false, true);  // the other host is there but for what member 2 hears; or is cut off
  const std::uint64_t size = whole ? 5 : 4;
  const muster::elastic::membership_policy policy;
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= size; ++id) record.members.push_back({id, id <= 2 ? 1u : 2u, id, 0, {}, "", ""});
  recorded_actions wanted;
  muster::elastic::membership one(record.members[0], policy, wanted, start);
  one.learn(start, 1, record);
  one.stopped(start);
  std::uint64_t number = 0;
  for (auto t = 100ms; t < 5000ms; t += 100ms) {
    ++number;
    for (std::uint64_t id = 2; id <= (whole ? size : 2); ++id) {
      muster::elastic::heartbeat said;
      said.from = id;
      said.number = number;
      said.generation = 1;
      said.stopped = true;
      for (std::uint64_t other = 3; id == 2 && other <= size; ++other) said.suspects.push_back(other);
      one.hear(start + t, said);
    }
    one.tick(start + t);
  }
  std::vector<std::uint64_t> killed;
  for (const auto& what : wanted.take()) {
    if (const auto* const kill = std::get_if<act::kill>(&what)) killed.push_back(kill->peer.id);
  }
  CHECK(one.is_suspect(2) == whole);
  CHECK(killed.empty() == !whole);
  for (const auto id : killed) CHECK(id == 2);
}

TEST_CASE("a member that was not watched is judged by its monitors, and for what it says in a change") {
  using namespace std::chrono_literals;
  muster::elastic::membership_policy policy;
  policy.monitors = 2;
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 5; ++id) record.members.push_back({id, id <= 2 ? 1u : id, id, 0, {}, "", ""});
  recorded_actions wanted;
  muster::elastic::membership one(record.members[0], policy, wanted, start);  // watches 4 and 5
  one.learn(start, 1, record);
  std::map<muster::elastic::member_id, muster::elastic::heartbeat> said;
  const auto hear = [&](muster::clock::duration t, muster::elastic::member_id id) {
    said[id].from = id;
    said[id].generation = 1;
    ++said[id].number;
    one.hear(start + t, said[id]);
    one.tick(start + t);
  };
  const auto watched_ones_speak = [&](muster::clock::duration from, muster::clock::duration until) {
    for (auto t = from; t < until; t += 100ms) {
      for (const auto id : {4, 5}) hear(t, static_cast<muster::elastic::member_id>(id));
    }
  };
  const auto change = 2 * policy.suspicion_timeout_here();
  watched_ones_speak(100ms, change);
  said[4].stopped = said[5].stopped = true;
  said[5].suspects = {3};
  hear(change, 5);
  for (const auto id : {2, 3, 4, 5}) CHECK_FALSE(one.is_suspect(static_cast<muster::elastic::member_id>(id)));
  SECTION("most of its monitors suspect it") {
    said[4].suspects = {3};
    hear(change + 1ms, 4);
    CHECK(one.is_suspect(3));
    hear(change + 2ms, 3);  // it lives
    CHECK_FALSE(one.is_suspect(3));
  }
  SECTION("it says nothing") {
    watched_ones_speak(change + 100ms, change + 600ms);
    CHECK_FALSE(one.is_suspect(3));
    watched_ones_speak(change + 600ms, change + 700ms);
    CHECK(one.is_suspect(3));
    CHECK_FALSE(one.is_suspect(2));  // of the same host
  }
}

// One that has come to its end counts that too, and the others are not to halt before they are there.
TEST_CASE("the first member halts the others after a step that the furthest has not begun") {
  const muster::elastic::membership_policy policy;
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 2; ++id) record.members.push_back({id, 1, id, 0, {}, "", ""});
  recorded_actions wanted;
  muster::elastic::membership one(record.members[0], policy, wanted, start);
  one.learn(start, 1, record);
  one.committed(5, 5);
  muster::elastic::heartbeat said;
  said.from = 2;
  said.number = said.generation = 1;
  said.step = 8;
  said.leaving = true;
  one.hear(start, said);
  one.tick(start);
  std::uint64_t halt = 0;
  for (const auto& what : wanted.take()) {
    if (const auto* const found = std::get_if<act::halt>(&what)) halt = found->step;
  }
  CHECK(halt == 10);
}

TEST_CASE("a process that finds its job begun anew by processes that saw an empty store is fenced") {
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 2;
  record.members.push_back({1, 1, 1, 0, {}, "", ""});
  recorded_actions wanted;
  muster::elastic::membership one(record.members[0], {}, wanted, start);
  one.learn(start, 7, record);
  (void)wanted.take();
  muster::elastic::generation_record other;
  other.waiting.push_back({2, 1, 2, 0, {}, "", ""});
  SECTION("before these have a group") { one.learn(start, 8, other); }
  SECTION("when these have come as far") {
    other.members = std::exchange(other.waiting, {});
    other.generation = 2;
    one.learn(start, 9, other);
  }
  CHECK(one.has_ended());
  const auto left = wanted.take();
  REQUIRE(left.size() == 1);
  CHECK(std::get<act::end>(left[0]).why == muster::elastic::exit_reason::fenced);
}

// It waited for the rest of its two seconds, and so did the others for it.
TEST_CASE("a member at its end leaves when all are at theirs, or when another member waits for a group without it") {
  const muster::elastic::membership_policy policy;
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 3; ++id) record.members.push_back({id, 1, id, 0, {}, "", ""});
  recorded_actions wanted;
  muster::elastic::membership one(record.members[0], policy, wanted, start);
  one.learn(start, 1, record);
  muster::elastic::heartbeat from[2];
  const auto hear = [&](std::size_t which, bool stopped, bool leaving) {
    auto& said = from[which];
    said.from = which + 2;
    ++said.number;
    said.generation = 1;
    said.stopped = stopped;
    said.leaving = leaving;
    one.hear(start, said);
  };
  hear(0, false, true);
  hear(1, false, false);
  CHECK_FALSE(one.may_go());  // it does not want to
  one.leave(start);
  CHECK_FALSE(one.may_go());
  SECTION("all want to leave") { hear(1, false, true); }
  SECTION("one has ended, the other wants to leave") { one.prove_dead(start, 3); }
  SECTION("one has stopped and stays") { hear(1, true, false); }
  CHECK(one.may_go());
}

TEST_CASE("of members that all leave the one saves that has the last state, and none where others go on") {
  const std::uint64_t last = GENERATE(1, 2);
  const bool others_stay = GENERATE(false, true);
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 2; ++id) record.members.push_back({id, 1, id, 0, {}, "", ""});
  recorded_actions wanted;
  muster::elastic::membership one(record.members[0], {}, wanted, start);
  one.learn(start, 1, record);
  one.leave(start);
  one.stopped(start);
  (void)wanted.take();
  record.generation = 2;
  record.members.erase(record.members.begin(), record.members.begin() + (others_stay ? 1 : 2));
  record.state_sources = {last};
  one.learn(start, 2, record);
  const auto did = wanted.take();
  REQUIRE(did.size() == 1);
  const auto& end = std::get<act::end>(did[0]);
  CHECK(end.why == muster::elastic::exit_reason::left);
  CHECK(end.is_first == (last == 1 && !others_stay));
  CHECK(muster::elastic::departure(end.why, "", end.is_first).should_save() == end.is_first);
}

TEST_CASE("a waiting process is taken in when it is heard and there is room") {
  using namespace std::chrono_literals;
  muster::elastic::membership_policy policy;
  policy.max = GENERATE(1, 2);
  const bool is_heard = GENERATE(false, true);
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 2; ++id) record.members.push_back({id, 1, id, 0, {}, "", ""});
  record.waiting.push_back({3, 1, 3, 0, {}, "", ""});
  record.state_sources = {1, 2};
  recorded_actions wanted;
  muster::elastic::membership one(record.members[0], policy, wanted, start);
  one.learn(start, 1, record);
  muster::elastic::heartbeat said;
  said.from = 3;
  said.number = 1;
  if (is_heard) one.hear(start, said);
  one.prove_dead(start + 1ms, 2);
  one.stopped(start + 2ms);
  std::optional<muster::elastic::generation_record> next;
  for (const auto& what : wanted.take()) {
    if (const auto* const swap = std::get_if<act::swap>(&what)) next = swap->next;
  }
  REQUIRE(next);
  CHECK(next->members.size() == (is_heard && policy.max == 2 ? 2u : 1u));
  CHECK(next->waiting.size() == (is_heard && policy.max == 1 ? 1u : 0u));
}

TEST_CASE("a record and a word come back as they were, and garbage does not pass for one") {
  muster::random_stream draw(number_from("MUSTER_TEST_SEED", 1));
  muster::elastic::generation_record record;
  record.generation = 7;
  record.step = 5;
  record.cursor = 1280;
  record.state_sources = {1, 2};
  record.why = "rank 1 died: proof";
  for (std::uint64_t i = 0; i < 3; ++i)
    record.members.push_back(
        {i + 1, draw(), i, 0, {static_cast<pid_t>(i), 7 * i}, "place " + std::to_string(i), "door"});
  record.waiting.push_back({9, draw(), 100, 0, {}, std::string("any\0bytes", 9), ""});
  const auto text = record.encode();
  CHECK(muster::elastic::generation_record::decode(text) == record);
  for (std::size_t cut = 0; cut < text.size(); ++cut)
    CHECK_THROWS_AS(muster::elastic::generation_record::decode(text.substr(0, cut)), muster::error);

  muster::elastic::heartbeat said;
  said.from = 3;
  said.number = 17;
  said.stopped = true;
  said.suspects = {4, 5};
  const auto bytes = said.encode();
  const auto read = muster::elastic::heartbeat::decode(bytes);
  REQUIRE(read);
  CHECK(read->encode() == bytes);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut)
    CHECK_FALSE(muster::elastic::heartbeat::decode(bytes.substr(0, cut)));
}
