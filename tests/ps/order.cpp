// The order of a training's samples as servers assign it: each sample is used once, whichever processes die.
#include <muster/ps/protocol/order.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <muster/core/random.hpp>

#include <muster/data/order/batch_sampler.hpp>
#include <muster/ps/protocol/used_places.hpp>
#include "catch.hpp"

namespace ps = muster::ps;

namespace {

struct world {
  int workers = 3;
  std::size_t ranges = 3;
  std::optional<std::uint64_t> bound;  ///< bound of staleness; bulk: 0
  bool bulk = false;
  int deaths = 0;
  int joins = 0;
  int resumes = 0;
  ps::order_plan plan;
};

/// Workers, the order and the ranges of a table, without servers between them. All actions are drawn at random.
class schedule {
 public:
  schedule(const world& options, muster::random_stream& draw)
      : options_(options),
        draw_(draw),
        order_(options.bulk),
        copy_(options.bulk),
        ranges_(options.ranges),
        used_(options.ranges) {
    for (int i = 0; i < options.workers; ++i) join();
    const auto bytes = std::as_bytes(std::span(&options_.plan, 1));
    append({.sender = workers_.front().node, .push = request(ps::order_request::begin, bytes)});
  }

  void run() {
    for (int step = 0; step < 200000; ++step) {
      if (std::ranges::all_of(workers_, [](const worker& each) { return each.done || each.removed; })) return check();
      if (options_.deaths > 0 && draw_.below(200) == 0) die();
      if (options_.joins > 0 && draw_.below(200) == 0) {
        --options_.joins;
        join();
      }
      if (options_.resumes > 0 && draw_.below(100) == 0) resume();
      if (draw_.below(50) == 0) move_order();
      act(workers_[draw_.below(workers_.size())]);
    }
    FAIL("the workers wait for each other");
  }

  /// Bulk: for each clock the places in its sum at the first range.
  std::map<std::uint64_t, std::vector<std::uint64_t>> sums;

 private:
  struct worker {
    ps::member node;
    std::uint64_t clock = 0;
    std::uint64_t closed = 0;
    std::optional<ps::lease> held{};
    std::uint64_t batch = 0;  // index in the lease
    std::size_t range = 0;    // range that receives the next push
    bool dead = false;        // silent, or removed from the map; it may still push a little
    bool removed = false;     // dead, and the order has processed its removal
    bool done = false;
  };

  static ps::message request(ps::order_request kind, std::span<const std::byte> payload = {}) {
    return {.kind = ps::message_kind::push,
            .flags = ps::leases,
            .offset = static_cast<std::uint32_t>(kind),
            .payload = payload};
  }
  void append(const ps::log_entry& entry) {
    REQUIRE((entry.type == ps::log_entry::kind::worker_left || ps::epoch_order::problem_with(entry.push).empty()));
    order_.apply(entry);
    copy_.apply(entry);
  }
  static std::string bytes_of(const ps::epoch_order& order) {
    muster::detail::wire_writer out;
    order.save(out);
    return out.take();
  }
  // Another server has the order from now on.
  void move_order() {
    const auto bytes = bytes_of(order_);
    REQUIRE(bytes == bytes_of(copy_));
    muster::detail::wire_reader in(std::as_bytes(std::span(bytes)));
    order_ = ps::epoch_order(options_.bulk);
    REQUIRE(order_.load(in));
  }

  // All workers die. The servers save the order, and other servers start from the saved order.
  void resume() {
    if (std::ranges::any_of(workers_, &worker::done)) return;
    --options_.resumes;
    muster::detail::wire_writer saved;
    passed_ = order_.plan()->steps;
    saved.add(*order_.plan());
    for (const auto& remaining : order_.leases_left()) saved.add(remaining);
    order_ = copy_ = ps::epoch_order(options_.bulk);
    for (auto& used : used_) {
      ps::used_places restored;
      for (const auto place : used.above_bound()) restored.add(place, 0);
      used = restored;
    }
    for (auto& each : workers_) {
      each.dead = each.removed = true;
      each.held.reset();
    }
    for (auto count = 1 + draw_.below(3); count > 0; --count) join();
    const auto bytes = saved.take();
    append(
        {.sender = workers_.back().node, .push = request(ps::order_request::begin, std::as_bytes(std::span(bytes)))});
  }

  void join() { workers_.push_back({{static_cast<ps::node_id>(workers_.size()), 1}, slowest(), slowest()}); }
  void die() {
    auto& dying = workers_[draw_.below(workers_.size())];
    const auto living = std::ranges::count_if(workers_, [](const worker& w) { return !w.dead && !w.done; });
    if (dying.dead || dying.done || living < 2) return;
    --options_.deaths;
    dying.dead = true;
  }
  [[nodiscard]] std::uint64_t slowest() const {
    std::uint64_t found = ~std::uint64_t{0};
    for (const auto& each : workers_) {
      if (!each.removed && !each.done) found = std::min(found, each.closed);
    }
    return found == ~std::uint64_t{0} ? 0 : found;
  }

  void act(worker& self) {
    if (self.done || (self.removed && !self.held)) return;
    if (self.dead && !self.removed && draw_.below(20) == 0) {
      self.removed = true;
      return append({.type = ps::log_entry::kind::worker_left, .sender = self.node});
    }
    if (self.dead && draw_.below(10) == 0) self.held.reset();  // its last push
    if (self.held) return push(self);
    if (!self.dead) claim(self);
  }

  void claim(worker& self) {
    if (draw_.below(3) == 0) self.closed = self.clock;  // otherwise acknowledgements are in transit
    std::vector<ps::member> map;
    for (const auto& peer : workers_) {
      if (!peer.removed && !peer.done) map.push_back(peer.node);
    }
    auto claimed = request(ps::order_request::claim, std::as_bytes(std::span(map)));
    claimed.place = self.clock;
    claimed.settled = self.closed;
    append({.sender = self.node, .push = claimed});
    const auto granted = order_.answer(self.node, self.clock);
    if (granted.outcome == ps::lease::kind::granted) {
      REQUIRE(granted.clock == self.clock);
      REQUIRE(granted.batches > 0);
      self.held = granted;
      self.batch = 0;
      return;
    }
    self.closed = self.clock;
    if (granted.clock > self.clock) self.clock = self.closed = granted.clock;
    if (granted.outcome == ps::lease::kind::over) self.done = true;
    if (granted.outcome == ps::lease::kind::last) {
      check_samples(granted.from);
      // Otherwise it may die before it confirms the end.
      const bool concludes = map.front() == self.node && draw_.below(3) == 0;
      if (concludes) append({.sender = self.node, .push = request(ps::order_request::end)});
    }
    if (granted.outcome != ps::lease::kind::save || map.front() != self.node) return;
    REQUIRE(granted.steps > passed_);
    passed_ = granted.steps;
    for (const auto& range : ranges_) {
      for (const auto& [place, count] : range) CHECK(place / ps::batch_place::most_parts <= granted.steps);
    }
    check_samples(granted.from);
    auto pass = request(ps::order_request::pass);
    pass.place = granted.steps;
    append({.sender = self.node, .push = pass});
  }

  // Pushes to one range. The ranges receive a batch's pushes one after the other, and later the clock is closed.
  void push(worker& self) {
    const auto& held = *self.held;
    if (self.range == 0 && options_.bound && !self.dead && self.clock > slowest() + *options_.bound) {
      self.closed = self.clock;
      return;
    }
    const ps::batch_place at(held, self.batch);
    auto& used = used_[self.range];
    if (!used.has(at.number)) {
      ++ranges_[self.range][at.number];
      samples_of_[at.number] = {held, self.batch};
      if (self.range == 0) sums[self.clock].push_back(at.number);
    }
    used.add(at.number, at.settled);
    if (++self.range < options_.ranges) return;
    self.range = 0;
    ++self.clock;
    if (draw_.below(2) == 0) self.closed = self.clock;
    if (++self.batch == held.batches) self.held.reset();
  }

  // Checks that each sample of the epochs before that place was used once at every range.
  void check_samples(const muster::cursor& end) const {
    for (const auto& range : ranges_) {
      std::map<std::pair<std::uint64_t, std::uint64_t>, int> used;
      for (const auto& [place, count] : range) {
        const auto& [held, batch] = samples_of_.at(place);
        auto at = held.from;
        const auto size = [&, &held = held] {
          return muster::data::detail::batch_sampler::batch_size(at, static_cast<int>(held.parts));
        };
        for (std::uint64_t b = 0; b < batch; ++b) at.position += size();
        const auto [first, last] = muster::part_of(size(), held.shard());
        for (auto i = first; i < last; ++i) used[{at.epoch, at.position + i}] += count;
      }
      for (const auto& [sample, times] : used) REQUIRE(times == 1);
      const auto& start = options_.plan.from;
      std::uint64_t expected = 0;
      for (auto epoch = start.epoch; epoch <= end.epoch; ++epoch) {
        const auto epoch_end = start.drop_last != 0 ? start.size / start.batch * start.batch : start.size;
        expected += (epoch == end.epoch ? end.position : epoch_end) - (epoch == start.epoch ? start.position : 0);
      }
      REQUIRE(used.size() == expected);
    }
  }
  void check() const {
    const auto reply = order_.answer(workers_.front().node, 0);
    CHECK(reply.outcome == ps::lease::kind::over);
    CHECK(reply.settled == reply.steps);
    if (options_.plan.epochs_limit != 0) CHECK(reply.from.epoch + 1 == options_.plan.epochs_limit);
    if (options_.plan.steps_limit != 0) CHECK(reply.steps == options_.plan.steps_limit);
    if (options_.plan.epochs_to_save != 0 || options_.plan.steps_to_save != 0) CHECK(passed_ == reply.steps);
    check_samples(reply.from);
  }

  world options_;
  muster::random_stream& draw_;
  ps::epoch_order order_, copy_;
  std::vector<worker> workers_;
  std::vector<std::map<std::uint64_t, int>> ranges_;  // for each place: how often it was applied
  std::vector<ps::used_places> used_;
  std::map<std::uint64_t, std::pair<ps::lease, std::uint64_t>> samples_of_;
  std::uint64_t passed_ = 0;
};

world any_world_of_leases(muster::random_stream& draw) {
  world options;
  options.workers = 1 + static_cast<int>(draw.below(5));
  options.ranges = 1 + draw.below(3);
  options.bulk = draw.below(3) == 0;
  if (options.bulk || draw.below(2) == 0) options.bound = options.bulk ? 0 : draw.below(4);
  auto& start = options.plan.from;
  start.batch = 1 + draw.below(12);
  start.size = start.batch + draw.below(150);
  start.drop_last = static_cast<std::uint16_t>(draw.below(2));
  if (draw.below(4) == 0) {  // resumed
    start.epoch = draw.below(2);
    start.position = start.batch * draw.below(start.size / start.batch);
    options.plan.steps = 1 + draw.below(100);
  }
  if (draw.below(2) == 0)
    options.plan.epochs_limit = start.epoch + 1 + draw.below(3);
  else
    options.plan.steps_limit = options.plan.steps + 1 + draw.below(60);
  const auto saves = draw.below(3);
  if (saves == 1) options.plan.epochs_to_save = 1 + draw.below(2);
  if (saves == 2) options.plan.steps_to_save = 1 + draw.below(20);
  return options;
}

/// Runs this many cases. MUSTER_TEST_SEED=S MUSTER_TEST_CASES=1 repeats a failed case.
template <class Case>
void for_drawn(std::uint64_t cases, Case&& run_case) {
  const auto number_from = [](const char* variable, std::uint64_t fallback) {
    const char* const text = std::getenv(variable);
    return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
  };
  const auto first = number_from("MUSTER_TEST_SEED", 20261126);
  const auto last = first + number_from("MUSTER_TEST_CASES", cases);
  for (auto seed = first; seed < last; ++seed) {
    INFO("seed " << seed << ": MUSTER_TEST_SEED=" << seed << " MUSTER_TEST_CASES=1");
    muster::random_stream draw(seed, 43);
    run_case(draw);
  }
}

}  // namespace

TEST_CASE("each sample of an epoch is used once at every range, whatever workers die, hang or join", "[slow]") {
  for_drawn(1500, [](muster::random_stream& draw) {
    auto options = any_world_of_leases(draw);
    options.deaths = static_cast<int>(draw.below(5));
    options.joins = static_cast<int>(draw.below(4));
    schedule(options, draw).run();
  });
}

TEST_CASE("the order goes on from what servers saved without workers") {
  for_drawn(1500, [](muster::random_stream& draw) {
    auto options = any_world_of_leases(draw);
    options.deaths = static_cast<int>(draw.below(3));
    options.resumes = 1 + static_cast<int>(draw.below(2));
    schedule(options, draw).run();
  });
}

TEST_CASE("undisturbed, a bulk-synchronous clock's sum is of one batch, of all workers") {
  for_drawn(300, [](muster::random_stream& draw) {
    auto options = any_world_of_leases(draw);
    options.bulk = true;
    options.bound = 0;
    schedule undisturbed(options, draw);
    undisturbed.run();
    for (const auto& [clock, places] : undisturbed.sums) {
      CHECK(places.size() == static_cast<std::size_t>(options.workers));
      for (const auto place : places)
        CHECK(place / ps::batch_place::most_parts == places.front() / ps::batch_place::most_parts);
    }
  });
}

TEST_CASE("what is no word of leases is refused") {
  ps::message request{.kind = ps::message_kind::push, .flags = ps::leases};
  CHECK(ps::epoch_order::problem_with(request).empty());
  request.offset = 4;
  CHECK_FALSE(ps::epoch_order::problem_with(request).empty());
  request.offset = static_cast<std::uint32_t>(ps::order_request::begin);
  CHECK(ps::epoch_order::problem_with(request).find("bytes") != std::string::npos);
  ps::order_plan plan;
  request.payload = std::as_bytes(std::span(&plan, 1));
  CHECK(ps::epoch_order::problem_with(request).find("batch") != std::string::npos);
  plan.from.batch = 4;
  plan.from.size = 3;
  CHECK(ps::epoch_order::problem_with(request).empty());
  muster::detail::wire_writer plan_and_lease;
  plan_and_lease.add(plan, ps::lease{});
  const auto with_lease = plan_and_lease.take();
  request.payload = std::as_bytes(std::span(with_lease));
  CHECK(ps::epoch_order::problem_with(request).find("lease") != std::string::npos);
  request.payload = std::as_bytes(std::span(&plan, 1));
  plan.from.drop_last = 1;
  CHECK_FALSE(ps::epoch_order::problem_with(request).empty());
  request.flags = 0;
  CHECK_FALSE(ps::epoch_order::problem_with(request).empty());
}
