// The order of a training's samples as servers hand it out: whatever dies, each sample is used once.
#include "ps/protocol/order.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <muster/core/random.hpp>

#include "catch.hpp"
#include "data/order/batch_sampler.hpp"
#include "ps/protocol/used_places.hpp"

namespace ps = muster::ps;

namespace {

struct world {
  int workers = 3;
  std::size_t ranges = 3;
  std::optional<std::uint64_t> bound;  ///< of staleness; bulk: 0
  bool bulk = false;
  int deaths = 0;
  int joins = 0;
  int resumes = 0;
  ps::order_plan plan;
};

/// Workers, the order and ranges of a table without servers between them: what each step does is drawn.
class schedule {
 public:
  schedule(const world& of, muster::random_stream& draw)
      : of_(of), draw_(draw), order_(of.bulk), copy_(of.bulk), ranges_(of.ranges), used_(of.ranges) {
    for (int i = 0; i < of.workers; ++i) join();
    const auto bytes = std::as_bytes(std::span(&of_.plan, 1));
    append({.from = workers_.front().node, .push = word(ps::order_word::begin, bytes)});
  }

  void run() {
    for (int step = 0; step < 200000; ++step) {
      if (std::ranges::all_of(workers_, [](const worker& one) { return one.done || one.gone; })) return check();
      if (of_.deaths > 0 && draw_.below(200) == 0) die();
      if (of_.joins > 0 && draw_.below(200) == 0) {
        --of_.joins;
        join();
      }
      if (of_.resumes > 0 && draw_.below(100) == 0) resume();
      if (draw_.below(50) == 0) move_order();
      act(workers_[draw_.below(workers_.size())]);
    }
    FAIL("the workers wait for each other");
  }

  /// Bulk: the places of each clock's sum at the first range.
  std::map<std::uint64_t, std::vector<std::uint64_t>> sums;

 private:
  struct worker {
    ps::member node;
    std::uint64_t clock = 0;
    std::uint64_t closed = 0;
    std::optional<ps::lease> held{};
    std::uint64_t batch = 0;  // of the lease
    std::size_t range = 0;    // that gets the next push
    bool dead = false;        // silent, or without its place in the map; it may push a little more
    bool gone = false;        // and the order knows
    bool done = false;
  };

  static ps::message word(ps::order_word what, std::span<const std::byte> payload = {}) {
    return {.what = ps::message_kind::push,
            .flags = ps::leases,
            .offset = static_cast<std::uint32_t>(what),
            .payload = payload};
  }
  void append(const ps::log_entry& entry) {
    REQUIRE((entry.what == ps::log_entry::kind::gone || ps::epoch_order::problem_with(entry.push).empty()));
    order_.apply(entry);
    copy_.apply(entry);
  }
  static std::string bytes_of(const ps::epoch_order& of) {
    muster::detail::wire_writer to;
    of.save(to);
    return to.take();
  }
  // Another server has it from now on.
  void move_order() {
    const auto bytes = bytes_of(order_);
    REQUIRE(bytes == bytes_of(copy_));
    muster::detail::wire_reader from(std::as_bytes(std::span(bytes)));
    order_ = ps::epoch_order(of_.bulk);
    REQUIRE(order_.load(from));
  }

  // All workers die; the servers save, and other servers begin with that.
  void resume() {
    if (std::ranges::any_of(workers_, &worker::done)) return;
    --of_.resumes;
    muster::detail::wire_writer saved;
    passed_ = order_.plan()->steps;
    saved.add(*order_.plan());
    for (const auto& one : order_.leases_left()) saved.add(one);
    order_ = copy_ = ps::epoch_order(of_.bulk);
    for (auto& used : used_) {
      ps::used_places restored;
      for (const auto place : used.behind_bound()) restored.add(place, 0);
      used = restored;
    }
    for (auto& one : workers_) {
      one.dead = one.gone = true;
      one.held.reset();
    }
    for (auto count = 1 + draw_.below(3); count > 0; --count) join();
    const auto bytes = saved.take();
    append({.from = workers_.back().node, .push = word(ps::order_word::begin, std::as_bytes(std::span(bytes)))});
  }

  void join() { workers_.push_back({{static_cast<ps::node_id>(workers_.size()), 1}, slowest(), slowest()}); }
  void die() {
    auto& one = workers_[draw_.below(workers_.size())];
    const auto living = std::ranges::count_if(workers_, [](const worker& w) { return !w.dead && !w.done; });
    if (one.dead || one.done || living < 2) return;
    --of_.deaths;
    one.dead = true;
  }
  [[nodiscard]] std::uint64_t slowest() const {
    std::uint64_t found = ~std::uint64_t{0};
    for (const auto& one : workers_) {
      if (!one.gone && !one.done) found = std::min(found, one.closed);
    }
    return found == ~std::uint64_t{0} ? 0 : found;
  }

  void act(worker& one) {
    if (one.done || (one.gone && !one.held)) return;
    if (one.dead && !one.gone && draw_.below(20) == 0) {
      one.gone = true;
      return append({.what = ps::log_entry::kind::gone, .from = one.node});
    }
    if (one.dead && draw_.below(10) == 0) one.held.reset();  // its last push
    if (one.held) return push(one);
    if (!one.dead) claim(one);
  }

  void claim(worker& one) {
    if (draw_.below(3) == 0) one.closed = one.clock;  // else acknowledgements are under way
    std::vector<ps::member> map;
    for (const auto& other : workers_) {
      if (!other.gone && !other.done) map.push_back(other.node);
    }
    auto what = word(ps::order_word::claim, std::as_bytes(std::span(map)));
    what.place = one.clock;
    what.settled = one.closed;
    append({.from = one.node, .push = what});
    const auto told = order_.answer(one.node, one.clock);
    if (told.what == ps::lease::kind::granted) {
      REQUIRE(told.clock == one.clock);
      REQUIRE(told.batches > 0);
      one.held = told;
      one.batch = 0;
      return;
    }
    one.closed = one.clock;
    if (told.clock > one.clock) one.clock = one.closed = told.clock;
    if (told.what == ps::lease::kind::over) one.done = true;
    if (told.what == ps::lease::kind::last) {
      check_samples(told.from);
      const bool concludes = map.front() == one.node && draw_.below(3) == 0;  // else it may die amid it
      if (concludes) append({.from = one.node, .push = word(ps::order_word::end)});
    }
    if (told.what != ps::lease::kind::save || map.front() != one.node) return;
    REQUIRE(told.steps > passed_);
    passed_ = told.steps;
    for (const auto& range : ranges_) {
      for (const auto& [place, count] : range) CHECK(place / ps::batch_place::most_parts <= told.steps);
    }
    check_samples(told.from);
    auto pass = word(ps::order_word::pass);
    pass.place = told.steps;
    append({.from = one.node, .push = pass});
  }

  // One range; a range after the other gets a batch's, and then it is closed some time.
  void push(worker& one) {
    const auto& held = *one.held;
    if (one.range == 0 && of_.bound && !one.dead && one.clock > slowest() + *of_.bound) {
      one.closed = one.clock;
      return;
    }
    const ps::batch_place at(held, one.batch);
    auto& used = used_[one.range];
    if (!used.has(at.number)) {
      ++ranges_[one.range][at.number];
      samples_of_[at.number] = {held, one.batch};
      if (one.range == 0) sums[one.clock].push_back(at.number);
    }
    used.add(at.number, at.settled);
    if (++one.range < of_.ranges) return;
    one.range = 0;
    ++one.clock;
    if (draw_.below(2) == 0) one.closed = one.clock;
    if (++one.batch == held.batches) one.held.reset();
  }

  // Each sample of the epochs before that place was used once at every range.
  void check_samples(const muster::cursor& to) const {
    for (const auto& range : ranges_) {
      std::map<std::pair<std::uint64_t, std::uint64_t>, int> seen;
      for (const auto& [place, count] : range) {
        const auto& [held, batch] = samples_of_.at(place);
        auto at = held.from;
        const auto size = [&, &held = held] {
          return muster::detail::batch_sampler::batch_size(at, static_cast<int>(held.parts));
        };
        for (std::uint64_t b = 0; b < batch; ++b) at.position += size();
        const auto [first, last] = muster::part_of(size(), held.shard());
        for (auto i = first; i < last; ++i) seen[{at.epoch, at.position + i}] += count;
      }
      for (const auto& [sample, times] : seen) REQUIRE(times == 1);
      const auto& from = of_.plan.from;
      std::uint64_t expected = 0;
      for (auto epoch = from.epoch; epoch <= to.epoch; ++epoch) {
        const auto whole = from.drop_last != 0 ? from.size / from.batch * from.batch : from.size;
        expected += (epoch == to.epoch ? to.position : whole) - (epoch == from.epoch ? from.position : 0);
      }
      REQUIRE(seen.size() == expected);
    }
  }
  void check() const {
    const auto told = order_.answer(workers_.front().node, 0);
    CHECK(told.what == ps::lease::kind::over);
    CHECK(told.settled == told.steps);
    if (of_.plan.epochs_limit != 0) CHECK(told.from.epoch + 1 == of_.plan.epochs_limit);
    if (of_.plan.steps_limit != 0) CHECK(told.steps == of_.plan.steps_limit);
    if (of_.plan.epochs_to_save != 0 || of_.plan.steps_to_save != 0) CHECK(passed_ == told.steps);
    check_samples(told.from);
  }

  world of_;
  muster::random_stream& draw_;
  ps::epoch_order order_, copy_;
  std::vector<worker> workers_;
  std::vector<std::map<std::uint64_t, int>> ranges_;  // of each place, how often it was applied
  std::vector<ps::used_places> used_;
  std::map<std::uint64_t, std::pair<ps::lease, std::uint64_t>> samples_of_;
  std::uint64_t passed_ = 0;
};

world any_world_of_leases(muster::random_stream& draw) {
  world of;
  of.workers = 1 + static_cast<int>(draw.below(5));
  of.ranges = 1 + draw.below(3);
  of.bulk = draw.below(3) == 0;
  if (of.bulk || draw.below(2) == 0) of.bound = of.bulk ? 0 : draw.below(4);
  auto& from = of.plan.from;
  from.batch = 1 + draw.below(12);
  from.size = from.batch + draw.below(150);
  from.drop_last = static_cast<std::uint16_t>(draw.below(2));
  if (draw.below(4) == 0) {  // resumed
    from.epoch = draw.below(2);
    from.position = from.batch * draw.below(from.size / from.batch);
    of.plan.steps = 1 + draw.below(100);
  }
  if (draw.below(2) == 0)
    of.plan.epochs_limit = from.epoch + 1 + draw.below(3);
  else
    of.plan.steps_limit = of.plan.steps + 1 + draw.below(60);
  const auto saves = draw.below(3);
  if (saves == 1) of.plan.epochs_to_save = 1 + draw.below(2);
  if (saves == 2) of.plan.steps_to_save = 1 + draw.below(20);
  return of;
}

/// So many cases; MUSTER_TEST_SEED=S MUSTER_TEST_CASES=1 repeats the one that failed.
template <class Case>
void for_drawn(std::uint64_t cases, Case&& one) {
  const auto from = [](const char* variable, std::uint64_t fallback) {
    const char* const text = std::getenv(variable);
    return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
  };
  const auto first = from("MUSTER_TEST_SEED", 20261126);
  const auto last = first + from("MUSTER_TEST_CASES", cases);
  for (auto seed = first; seed < last; ++seed) {
    INFO("seed " << seed << ": MUSTER_TEST_SEED=" << seed << " MUSTER_TEST_CASES=1");
    muster::random_stream draw(seed, 43);
    one(draw);
  }
}

}  // namespace

TEST_CASE("each sample of an epoch is used once at every range, whatever workers die, hang or join", "[slow]") {
  for_drawn(1500, [](muster::random_stream& draw) {
    auto of = any_world_of_leases(draw);
    of.deaths = static_cast<int>(draw.below(5));
    of.joins = static_cast<int>(draw.below(4));
    schedule(of, draw).run();
  });
}

TEST_CASE("the order goes on from what servers saved without workers") {
  for_drawn(1500, [](muster::random_stream& draw) {
    auto of = any_world_of_leases(draw);
    of.deaths = static_cast<int>(draw.below(3));
    of.resumes = 1 + static_cast<int>(draw.below(2));
    schedule(of, draw).run();
  });
}

TEST_CASE("undisturbed, a bulk-synchronous clock's sum is of one batch, of all workers") {
  for_drawn(300, [](muster::random_stream& draw) {
    auto of = any_world_of_leases(draw);
    of.bulk = true;
    of.bound = 0;
    schedule now(of, draw);
    now.run();
    for (const auto& [clock, places] : now.sums) {
      CHECK(places.size() == static_cast<std::size_t>(of.workers));
      for (const auto place : places)
        CHECK(place / ps::batch_place::most_parts == places.front() / ps::batch_place::most_parts);
    }
  });
}

TEST_CASE("what is no word of leases is refused") {
  ps::message asked{.what = ps::message_kind::push, .flags = ps::leases};
  CHECK(ps::epoch_order::problem_with(asked).empty());
  asked.offset = 4;
  CHECK_FALSE(ps::epoch_order::problem_with(asked).empty());
  asked.offset = static_cast<std::uint32_t>(ps::order_word::begin);
  CHECK(ps::epoch_order::problem_with(asked).find("bytes") != std::string::npos);
  ps::order_plan plan;
  asked.payload = std::as_bytes(std::span(&plan, 1));
  CHECK(ps::epoch_order::problem_with(asked).find("batch") != std::string::npos);
  plan.from.batch = 4;
  plan.from.size = 3;
  CHECK(ps::epoch_order::problem_with(asked).empty());
  muster::detail::wire_writer behind;
  behind.add(plan, ps::lease{});
  const auto with_lease = behind.take();
  asked.payload = std::as_bytes(std::span(with_lease));
  CHECK(ps::epoch_order::problem_with(asked).find("lease") != std::string::npos);
  asked.payload = std::as_bytes(std::span(&plan, 1));
  plan.from.drop_last = 1;
  CHECK_FALSE(ps::epoch_order::problem_with(asked).empty());
  asked.flags = 0;
  CHECK_FALSE(ps::epoch_order::problem_with(asked).empty());
}
