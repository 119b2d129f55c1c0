// Members and connections that hold up the others.
#include "elastic/membership/membership.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include <muster/core/random.hpp>

#include "../actions.hpp"
#include "catch.hpp"
#include "elastic/link_watch.hpp"

namespace {

// A transport of three ranks; the test says the rates of their connections.
struct said_rates {
  muster::link_quality links[3];
  [[nodiscard]] muster::link_quality quality(int peer) const { return links[peer]; }
};

}  // namespace

TEST_CASE("a connection is judged by what it did in most of the last steps, so chance makes none slow or fast") {
  constexpr double fast = 1e9;
  constexpr double slow = 1e7;
  muster::detail::link_watch under_test;
  under_test.begin(3, 15);
  said_rates over;
  muster::random_stream draw(20261126);
  const auto step = [&](double rate) {
    for (int peer : {1, 2}) {
      over.links[peer].sent += 1000000;
      over.links[peer].bandwidth = peer == 1 ? rate : draw.uniform() < 0.1 ? 100 * fast : fast;
    }
    return under_test.look(over);
  };
  // In each step for itself: three of ten times ten times slower, one of ten times much faster than the others.
  int judgements = 0;
  int usual = 0;
  for (int i = 0; i < 100000; ++i) {
    const auto judged = step(draw.uniform() < 0.3 ? slow : fast);
    if (judged) REQUIRE((judged->slowest.quality.bandwidth == fast && judged->all.size() == 2));
    judgements += judged ? 1 : 0;
    usual += judged && judged->usual == fast ? 1 : 0;
  }
  CHECK(judgements > 30000);
  CHECK(usual > 0.99 * judgements);
  int took = 0;
  for (bool is_found = false; !is_found; ++took) {
    const auto judged = step(slow);
    is_found = judged && judged->slowest.peer == 1 && judged->slowest.quality.bandwidth == slow;
  }
  CHECK(took <= 14);
  CHECK(took >= 12);
  // What carries little waits for the rank.
  over.links[1].bandwidth = slow;
  for (int i = 0; i < 30; ++i) {
    over.links[2].sent += 1000000;
    const auto judged = under_test.look(over);
    if (judged && i >= 20) CHECK(judged->slowest.peer == 2);
  }
}

TEST_CASE("the small batch at the end of an epoch makes no member slow that has not told of it yet") {
  using namespace std::chrono_literals;
  constexpr auto steps = [](muster::clock::duration last) {
    return std::array<muster::clock::duration, 4>{32ms, 33ms, 35ms, last};
  };
  CHECK(muster::elastic::least_work(steps(4ms)) == 32ms);
  CHECK(muster::elastic::least_work(steps(34ms)) == 33ms);
  const muster::clock::duration one[] = {5ms};
  CHECK(muster::elastic::least_work(one) == 5ms);
}

TEST_CASE("a slow member is reported, and leaves where slow ones are to leave") {
  using namespace std::chrono_literals;
  muster::elastic::membership_policy policy;
  policy.slow_factor = 3;
  policy.slow_ones_leave = GENERATE(false, true);
  policy.min = GENERATE(1, 3);
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 3; ++id) record.members.push_back({id, id, id, 0, {}, "", ""});
  recorded_actions wanted[3];
  std::vector<muster::elastic::membership> all;
  for (const auto& one : record.members) {
    all.emplace_back(one, policy, wanted[all.size()], start);
    all.back().learn(start, 1, record);
  }
  int notes = 0;
  bool leaves = false;
  const auto exchange = [&](muster::clock::time_point now) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].tick(now);
      for (const auto& what : wanted[i].take()) {
        notes += std::holds_alternative<act::note>(what) ? 1 : 0;
        const auto* const said = std::get_if<act::say>(&what);
        if (said == nullptr) continue;
        leaves = leaves || said->what.leaving;
        CHECK((!said->what.leaving || said->what.from == 2));
        for (auto& other : all) other.hear(now, said->what);
      }
    }
  };
  const auto work = [&](muster::clock::duration least_of_the_second) {
    for (auto& one : all) one.worked(10ms);
    all[1].worked(least_of_the_second);
  };
  work(29ms);  // in one step at least
  for (auto t = 100ms; t < 500ms; t += 100ms) exchange(start + t);
  CHECK(notes == 0);
  work(35ms);
  for (auto t = 500ms; t < 1s; t += 100ms) exchange(start + t);
  CHECK(notes == 3);  // once at each of them
  CHECK(leaves == (policy.slow_ones_leave && policy.min == 1));
}

TEST_CASE("a slow member is named at once, and leaves where a process waits that can take its place") {
  using namespace std::chrono_literals;
  muster::elastic::membership_policy policy;
  policy.slow_factor = 3;
  policy.slow_ones_leave = true;
  policy.min = policy.max = 3;
  const bool has_spare = GENERATE(false, true);
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 3; ++id) record.members.push_back({id, id, id, 0, {}, "", ""});
  record.waiting.push_back({4, 4, 4, 0, {}, "", ""});
  recorded_actions wanted, wanted_of_first;
  muster::elastic::membership first(record.members[0], policy, wanted_of_first, start);
  muster::elastic::membership slow(record.members[1], policy, wanted, start);
  first.learn(start, 1, record);
  slow.learn(start, 1, record);
  const auto hear = [&](std::uint64_t from, std::uint64_t generation, std::uint64_t work) {
    muster::elastic::heartbeat said;
    said.from = from;
    said.number = 1;
    said.generation = generation;
    said.work = work;
    first.hear(start + 99ms, said);
    slow.hear(start + 99ms, said);
  };
  const auto exchange = [&](recorded_actions& from, muster::elastic::membership& to, muster::clock::time_point now) {
    bool is_named = false;
    bool leaves = false;
    for (const auto& what : from.take()) {
      is_named = is_named || std::holds_alternative<act::note>(what);
      const auto* const said = std::get_if<act::say>(&what);
      if (said == nullptr) continue;
      leaves = leaves || said->what.leaving;
      to.hear(now, said->what);
    }
    return std::pair(is_named, leaves);
  };
  first.worked(10ms);
  hear(3, 1, 10000);
  if (has_spare) hear(4, 0, 0);
  slow.worked(10ms);
  first.tick(start + 100ms);
  exchange(wanted_of_first, slow, start + 100ms);
  slow.tick(start + 100ms);
  exchange(wanted, first, start + 100ms);
  slow.worked(101ms);
  slow.tick(start + 110ms);  // not with the next heartbeat
  CHECK(exchange(wanted, first, start + 110ms) == std::pair(true, false));
  first.tick(start + 200ms);
  CHECK(exchange(wanted_of_first, slow, start + 200ms).first);
  CHECK(exchange(wanted, first, start + 200ms).second == has_spare);
}

TEST_CASE(
    "a connection at a tenth of its fellows' bandwidth is named, and in the end the rank at which they end leaves") {
  using namespace std::chrono_literals;
  using muster::elastic::member_id;
  muster::elastic::membership_policy policy;
  policy.slow_factor = 3;
  policy.slow_ones_leave = true;
  const muster::clock::time_point start{};
  recorded_actions wanted[4];
  std::vector<muster::elastic::membership> all;
  muster::elastic::generation_record record;
  for (member_id id = 1; id <= 4; ++id) record.members.push_back({id, id, id, 0, {}, "", ""});
  for (const auto& one : record.members) all.emplace_back(one, policy, wanted[all.size()], start);
  std::vector<std::string> notes;
  std::uint64_t takes = 19'999;
  constexpr std::uint64_t usual = 1000000000;
  const auto generation_of = [&](std::vector<member_id> ids, std::vector<double> rates, muster::clock::duration from) {
    ++record.generation;
    record.members.clear();
    for (const auto id : ids) record.members.push_back({id, id, id, 0, {}, "", ""});
    member_id leaves = 0;
    notes.clear();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      auto& one = all[ids[i] - 1];
      one.learn(start + from, record.generation, record);
      one.judged({ids[(i + 1) % ids.size()], static_cast<std::uint64_t>(rates[i]), 200, takes}, usual);
    }
    for (auto t = from; t < from + 900ms; t += 100ms) {
      for (const auto id : ids) {
        all[id - 1].tick(start + t);
        for (const auto& what : wanted[id - 1].take()) {
          if (const auto* const note = std::get_if<act::note>(&what)) notes.push_back(note->text);
          const auto* const said = std::get_if<act::say>(&what);
          if (said == nullptr) continue;
          if (said->what.leaving) leaves = said->what.from;
          for (const auto other : ids) all[other - 1].hear(start + t, said->what);
        }
      }
    }
    return leaves;
  };
  CHECK(generation_of({1, 2, 3, 4}, {1e9, 1.01e8, 4e9, 2e9}, 0s) == 0);
  CHECK(notes.empty());
  CHECK(generation_of({1, 2, 3, 4}, {1e9, 1e7, 4e9, 2e9}, 0s) == 0);  // and no step waits for it
  CHECK(notes.empty());
  takes = 20'000;
  // From 2 to 3: the sender leaves first, and then 3, to which that of another is slow as well.
  CHECK(generation_of({1, 2, 3, 4}, {1e9, 1e7, 4e9, 2e9}, 1s) == 2);
  CHECK(notes.size() == 4);  // once at each
  CHECK(notes.front() ==
        "the connection from rank 1 to rank 2 is slow: 10 MB/s and 0.2 ms a round trip, the median of the ranks 1e+03 "
        "MB/s");
  CHECK(generation_of({1, 3, 4}, {1e7, 4e9, 2e9}, 2s) == 3);
}

TEST_CASE("of the two ends of a slow connection one leaves, also while neither hears the other") {
  using namespace std::chrono_literals;
  using muster::elastic::member_id;
  muster::elastic::membership_policy policy;
  policy.slow_factor = 3;
  policy.slow_ones_leave = true;
  policy.suspicion_timeout = 10s;
  const muster::clock::time_point start{};
  const member_id first = GENERATE(member_id{1}, member_id{2}, member_id{3});
  const member_id second = first % 4 + 1;
  recorded_actions wanted[4];
  std::vector<muster::elastic::membership> all;
  muster::elastic::generation_record record;
  record.generation = 1;
  for (member_id id = 1; id <= 4; ++id) record.members.push_back({id, id, id, 0, {}, "", ""});
  for (const auto& one : record.members) {
    all.emplace_back(one, policy, wanted[all.size()], start);
    all.back().learn(start, 1, record);
  }
  constexpr std::uint64_t usual = 1000000000;
  const auto judge = [&](std::uint64_t of_the_ends) {
    for (const auto& one : record.members) {
      const bool is_end = one.id == first || one.id == second;
      const member_id to = one.id == first ? second : one.id == second ? first : one.id % 4 + 1;
      all[one.id - 1].judged({to, is_end ? of_the_ends : usual, 200, 20'000}, usual);
    }
  };
  judge(usual);
  std::set<member_id> leaving;
  for (auto t = 100ms; t < 3s; t += 100ms) {
    if (t == 500ms) judge(usual / 100);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].tick(start + t);
      for (const auto& what : wanted[i].take()) {
        const auto* const said = std::get_if<act::say>(&what);
        if (said == nullptr) continue;
        if (said->what.leaving) leaving.insert(said->what.from);
        for (std::size_t k = 0; k < all.size(); ++k) {
          const bool is_lost = std::minmax(i, k) == std::minmax<std::size_t>(first - 1, second - 1);
          if (!is_lost || t < 500ms || t > 1500ms) all[k].hear(start + t, said->what);
        }
      }
    }
  }
  CHECK(leaving.size() == 1);
  CHECK((leaving.contains(first) || leaving.contains(second)));
}
