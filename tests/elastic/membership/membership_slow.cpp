// Members and connections that delay the others.
#include <muster/elastic/membership/membership.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include <muster/core/random.hpp>

#include <muster/elastic/link_watch.hpp>
#include "../actions.hpp"
#include "catch.hpp"

namespace {

// A transport of three ranks with connection rates that the test sets.
struct chosen_rates {
  muster::link_quality links[3];
  [[nodiscard]] muster::link_quality quality(int peer) const { return links[peer]; }
};

}  // namespace

TEST_CASE("a connection is judged by what it did in most of the last steps, so chance makes none slow or fast") {
  constexpr double fast = 1e9;
  constexpr double slow = 1e7;
  muster::detail::link_watch under_test;
  under_test.begin(3, 15);
  chosen_rates over;
  muster::random_stream draw(20261126);
  const auto step = [&](double rate) {
    for (int peer : {1, 2}) {
      over.links[peer].sent += 1000000;
      over.links[peer].bandwidth = peer == 1 ? rate : draw.uniform() < 0.1 ? 100 * fast : fast;
    }
    return under_test.sample(over);
  };
  // Each step is drawn independently: 30 % are ten times slower, 10 % much faster than the others.
  int reports = 0;
  int usual = 0;
  for (int i = 0; i < 100000; ++i) {
    const auto report = step(draw.uniform() < 0.3 ? slow : fast);
    if (report) REQUIRE((report->slowest.quality.bandwidth == fast && report->all.size() == 2));
    reports += report ? 1 : 0;
    usual += report && report->best_rate == fast ? 1 : 0;
  }
  CHECK(reports > 30000);
  CHECK(usual > 0.99 * reports);
  int steps_taken = 0;
  for (bool is_found = false; !is_found; ++steps_taken) {
    const auto report = step(slow);
    is_found = report && report->slowest.peer == 1 && report->slowest.quality.bandwidth == slow;
  }
  CHECK(steps_taken <= 14);
  CHECK(steps_taken >= 12);
  // A connection with little traffic waits for the rank.
  over.links[1].bandwidth = slow;
  for (int i = 0; i < 30; ++i) {
    over.links[2].sent += 1000000;
    const auto report = under_test.sample(over);
    if (report && i >= 20) CHECK(report->slowest.peer == 2);
  }
}

TEST_CASE("the small batch at the end of an epoch makes no member slow that has not told of it yet") {
  using namespace std::chrono_literals;
  constexpr auto steps = [](muster::clock::duration last) {
    return std::array<muster::clock::duration, 4>{32ms, 33ms, 35ms, last};
  };
  CHECK(muster::elastic::least_work(steps(4ms)) == 32ms);
  CHECK(muster::elastic::least_work(steps(34ms)) == 33ms);
  const muster::clock::duration single[] = {5ms};
  CHECK(muster::elastic::least_work(single) == 5ms);
}

TEST_CASE("a slow member is reported, and leaves where slow ones are to leave") {
  using namespace std::chrono_literals;
  muster::elastic::membership_policy policy;
  policy.slow_factor = 3;
  policy.slow_members_leave = GENERATE(false, true);
  policy.min_members = GENERATE(1, 3);
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 3; ++id) record.members.push_back({id, id, id, 0, {}, "", ""});
  recorded_actions outlets[3];
  std::vector<muster::elastic::membership> all;
  for (const auto& peer : record.members) {
    all.emplace_back(peer, policy, outlets[all.size()], start);
    all.back().on_record(start, 1, record);
  }
  int notes = 0;
  bool leaves = false;
  const auto exchange = [&](muster::clock::time_point now) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].tick(now);
      for (const auto& requested : outlets[i].take()) {
        notes += std::holds_alternative<act::note>(requested) ? 1 : 0;
        const auto* const sent = std::get_if<act::send>(&requested);
        if (sent == nullptr) continue;
        leaves = leaves || sent->message.leaving;
        CHECK((!sent->message.leaving || sent->message.sender == 2));
        for (auto& other : all) other.on_heartbeat(now, sent->message);
      }
    }
  };
  const auto work = [&](muster::clock::duration least_of_the_second) {
    for (auto& peer : all) peer.report_step_time(10ms);
    all[1].report_step_time(least_of_the_second);
  };
  work(29ms);  // at least in one step
  for (auto t = 100ms; t < 500ms; t += 100ms) exchange(start + t);
  CHECK(notes == 0);
  work(35ms);
  for (auto t = 500ms; t < 1s; t += 100ms) exchange(start + t);
  CHECK(notes == 3);  // once at each member
  CHECK(leaves == (policy.slow_members_leave && policy.min_members == 1));
}

TEST_CASE("a slow member is named at once, and leaves where a process waits that can take its place") {
  using namespace std::chrono_literals;
  muster::elastic::membership_policy policy;
  policy.slow_factor = 3;
  policy.slow_members_leave = true;
  policy.min_members = policy.max_members = 3;
  const bool has_spare = GENERATE(false, true);
  const muster::clock::time_point start{};
  muster::elastic::generation_record record;
  record.generation = 1;
  for (std::uint64_t id = 1; id <= 3; ++id) record.members.push_back({id, id, id, 0, {}, "", ""});
  record.waiting.push_back({4, 4, 4, 0, {}, "", ""});
  recorded_actions outlet, outlet_of_first;
  muster::elastic::membership first(record.members[0], policy, outlet_of_first, start);
  muster::elastic::membership slow(record.members[1], policy, outlet, start);
  first.on_record(start, 1, record);
  slow.on_record(start, 1, record);
  const auto receive = [&](std::uint64_t sender, std::uint64_t generation, std::uint64_t work) {
    muster::elastic::heartbeat message;
    message.sender = sender;
    message.number = 1;
    message.generation = generation;
    message.own_step_microseconds = work;
    first.on_heartbeat(start + 99ms, message);
    slow.on_heartbeat(start + 99ms, message);
  };
  const auto exchange = [&](recorded_actions& source, muster::elastic::membership& receiver,
                            muster::clock::time_point now) {
    bool is_named = false;
    bool leaves = false;
    for (const auto& requested : source.take()) {
      is_named = is_named || std::holds_alternative<act::note>(requested);
      const auto* const sent = std::get_if<act::send>(&requested);
      if (sent == nullptr) continue;
      leaves = leaves || sent->message.leaving;
      receiver.on_heartbeat(now, sent->message);
    }
    return std::pair(is_named, leaves);
  };
  first.report_step_time(10ms);
  receive(3, 1, 10000);
  if (has_spare) receive(4, 0, 0);
  slow.report_step_time(10ms);
  first.tick(start + 100ms);
  exchange(outlet_of_first, slow, start + 100ms);
  slow.tick(start + 100ms);
  exchange(outlet, first, start + 100ms);
  slow.report_step_time(101ms);
  slow.tick(start + 110ms);  // at once, not with the next heartbeat
  CHECK(exchange(outlet, first, start + 110ms) == std::pair(true, false));
  first.tick(start + 200ms);
  CHECK(exchange(outlet_of_first, slow, start + 200ms).first);
  CHECK(exchange(outlet, first, start + 200ms).second == has_spare);
}

TEST_CASE(
    "a connection at a tenth of its fellows' bandwidth is named, and in the end the rank at which they end leaves") {
  using namespace std::chrono_literals;
  using muster::elastic::member_id;
  muster::elastic::membership_policy policy;
  policy.slow_factor = 3;
  policy.slow_members_leave = true;
  const muster::clock::time_point start{};
  recorded_actions outlets[4];
  std::vector<muster::elastic::membership> all;
  muster::elastic::generation_record record;
  for (member_id id = 1; id <= 4; ++id) record.members.push_back({id, id, id, 0, {}, "", ""});
  for (const auto& peer : record.members) all.emplace_back(peer, policy, outlets[all.size()], start);
  std::vector<std::string> notes;
  std::uint64_t takes = 19'999;
  constexpr std::uint64_t usual = 1000000000;
  const auto generation_of = [&](std::vector<member_id> ids, std::vector<double> rates, muster::clock::duration begin) {
    ++record.generation;
    record.members.clear();
    for (const auto id : ids) record.members.push_back({id, id, id, 0, {}, "", ""});
    member_id leaves = 0;
    notes.clear();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      auto& peer = all[ids[i] - 1];
      peer.on_record(start + begin, record.generation, record);
      peer.report_slow_link({ids[(i + 1) % ids.size()], static_cast<std::uint64_t>(rates[i]), 200, takes}, usual);
    }
    for (auto t = begin; t < begin + 900ms; t += 100ms) {
      for (const auto id : ids) {
        all[id - 1].tick(start + t);
        for (const auto& requested : outlets[id - 1].take()) {
          if (const auto* const note = std::get_if<act::note>(&requested)) notes.push_back(note->text);
          const auto* const sent = std::get_if<act::send>(&requested);
          if (sent == nullptr) continue;
          if (sent->message.leaving) leaves = sent->message.sender;
          for (const auto other : ids) all[other - 1].on_heartbeat(start + t, sent->message);
        }
      }
    }
    return leaves;
  };
  CHECK(generation_of({1, 2, 3, 4}, {1e9, 1.01e8, 4e9, 2e9}, 0s) == 0);
  CHECK(notes.empty());
  CHECK(generation_of({1, 2, 3, 4}, {1e9, 1e7, 4e9, 2e9}, 0s) == 0);  // no step waits for it
  CHECK(notes.empty());
  takes = 20'000;
  // The slow connection leads from 2 to 3. The sender leaves first, and then 3, to which another member's connection is
  // slow as well.
  CHECK(generation_of({1, 2, 3, 4}, {1e9, 1e7, 4e9, 2e9}, 1s) == 2);
  CHECK(notes.size() == 4);  // once at each member
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
  policy.slow_members_leave = true;
  policy.suspicion_timeout = 10s;
  const muster::clock::time_point start{};
  const member_id first = GENERATE(member_id{1}, member_id{2}, member_id{3});
  const member_id second = first % 4 + 1;
  recorded_actions outlets[4];
  std::vector<muster::elastic::membership> all;
  muster::elastic::generation_record record;
  record.generation = 1;
  for (member_id id = 1; id <= 4; ++id) record.members.push_back({id, id, id, 0, {}, "", ""});
  for (const auto& peer : record.members) {
    all.emplace_back(peer, policy, outlets[all.size()], start);
    all.back().on_record(start, 1, record);
  }
  constexpr std::uint64_t usual = 1000000000;
  const auto judge = [&](std::uint64_t of_the_ends) {
    for (const auto& peer : record.members) {
      const bool is_end = peer.id == first || peer.id == second;
      const member_id to = peer.id == first ? second : peer.id == second ? first : peer.id % 4 + 1;
      all[peer.id - 1].report_slow_link({to, is_end ? of_the_ends : usual, 200, 20'000}, usual);
    }
  };
  judge(usual);
  std::set<member_id> leaving;
  for (auto t = 100ms; t < 3s; t += 100ms) {
    if (t == 500ms) judge(usual / 100);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].tick(start + t);
      for (const auto& requested : outlets[i].take()) {
        const auto* const sent = std::get_if<act::send>(&requested);
        if (sent == nullptr) continue;
        if (sent->message.leaving) leaving.insert(sent->message.sender);
        for (std::size_t k = 0; k < all.size(); ++k) {
          const bool is_lost = std::minmax(i, k) == std::minmax<std::size_t>(first - 1, second - 1);
          if (!is_lost || t < 500ms || t > 1500ms) all[k].on_heartbeat(start + t, sent->message);
        }
      }
    }
  }
  CHECK(leaving.size() == 1);
  CHECK((leaving.contains(first) || leaving.contains(second)));
}
