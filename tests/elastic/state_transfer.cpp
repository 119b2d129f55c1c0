#include <muster/elastic/state_transfer.hpp>

#include <cstdlib>
#include <mutex>
#include <numeric>
#include <thread>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "heard_log.hpp"

namespace {

constexpr std::size_t mebi = std::size_t{1} << 20;
constexpr std::size_t chunk = 4 * mebi;

struct parts_of_some_size {
  explicit parts_of_some_size(std::uint64_t fill) : large(11 * mebi + 3), small(5) {
    std::iota(large.begin(), large.end(), static_cast<std::uint8_t>(fill));
    std::iota(small.begin(), small.end(), fill);
    text = "state " + std::to_string(fill);
  }
  void describe(muster::state_parts& parts) {
    parts.add("large", std::span(large));
    parts.add("small", std::span(small), muster::state_kind::replicated, muster::rollback_policy::restore_on_failure);
    parts.add(
        "text", muster::state_kind::replicated,
        [this] {
          const auto bytes = std::as_bytes(std::span(text));
          return std::vector<std::byte>(bytes.begin(), bytes.end());
        },
        [this](std::span<const std::byte> bytes) {
          text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        });
    parts.add("own", std::span(&own, 1), muster::state_kind::rank_local);
  }

  std::vector<std::uint8_t> large;
  std::vector<std::uint64_t> small;
  std::string text;
  int own = 0;
};

// A transport that damages one byte of the first large message that it receives.
class damaging_transport final : public muster::transport_decorator {
 public:
  using transport_decorator::transport_decorator;

  void receive(muster::request& r) override {
    if (!damaged_ && r.bytes > 4096) watched_ = &r;
    inner().receive(r);
  }
  bool native(const muster::collective_call&, muster::request&) override { return false; }
  bool test(muster::request& r) override {
    if (!inner().test(r)) return false;
    if (&r == watched_ && !std::exchange(damaged_, true)) r.data[r.bytes / 2] ^= std::byte{1};
    return true;
  }
  [[nodiscard]] std::unique_ptr<muster::transport> subgroup(const muster::subgroup_call& call) override {
    return std::make_unique<damaging_transport>(inner().subgroup(call));
  }

 private:
  muster::request* watched_ = nullptr;
  bool damaged_ = false;
};

void go_to(muster::state& state, std::uint64_t steps) { state.move_to({.steps = steps}); }

}  // namespace

TEST_CASE("ranks that are behind receive the state of the furthest rank, and no other state changes") {
  const char* const text = std::getenv("MUSTER_TEST_SEED");
  const std::uint64_t first = text == nullptr ? 20261122 : std::strtoull(text, nullptr, 10);
  for (std::uint64_t seed = first; seed < first + 12; ++seed) {
    muster::random_stream draw(seed);
    const int ranks = 2 + static_cast<int>(draw.below(4));
    // Plans by rank: steps done, whether its state may count, whether it is received in place, and its differences from
    // the holders' state.
    struct plan {
      std::uint64_t steps = 5;
      bool holds = true, in_place = false;
      std::vector<std::size_t> wrong;  // damaged bytes of the large part
    };
    std::vector<plan> plans(static_cast<std::size_t>(ranks));
    for (std::size_t r = 1; r < plans.size(); ++r) {
      auto& planned = plans[r];
      if (draw.below(3) == 0) continue;  // a holder
      planned.steps = draw.below(2) * 4;
      planned.holds = planned.steps != 0 && draw.below(2) == 0;
      planned.in_place = !planned.holds && draw.below(2) == 0;
      for (auto n = draw.below(3); n > 0; --n) planned.wrong.push_back(draw.below(11 * mebi + 3));
    }
    INFO("seed " << seed << ", " << ranks << " ranks");
    std::mutex one_at_a_time;
    test::run_ranks(ranks, [&](muster::group& world) {
      const auto& mine = plans[static_cast<std::size_t>(world.rank())];
      const bool is_holder = mine.steps == 5;
      parts_of_some_size owned(is_holder ? 1 : 99);
      owned.own = world.rank();
      for (const auto at : mine.wrong) owned.large[at] ^= 0x10;
      muster::state state{owned};
      go_to(state, mine.steps);
      const bool copied =
          muster::detail::transfer_state(world, state, {.has_state = mine.holds, .may_overwrite = mine.in_place});
      parts_of_some_size expected(1);
      const std::lock_guard held(one_at_a_time);
      CHECK(copied == !is_holder);
      CHECK(state.steps() == 5);
      CHECK(owned.large == expected.large);
      CHECK(owned.small == expected.small);
      CHECK(owned.text == expected.text);
      CHECK(owned.own == world.rank());
    });
  }
}

TEST_CASE("replicas at one position that differ get the state that most of them have") {
  const int odd = GENERATE(0, 1, 3);
  const test::heard_log log;
  test::run_ranks(4, [&](muster::group& world) {
    parts_of_some_size owned(1);
    if (world.rank() == odd) owned.large[5 * mebi] ^= 1;
    muster::state state{owned};
    go_to(state, 7);
    const bool copied = muster::detail::transfer_state(world, state, {.has_state = true});
    if (copied != (world.rank() == odd)) throw muster::mismatch_error("the wrong rank copied");
    if (owned.large != parts_of_some_size(1).large) throw muster::mismatch_error("the replicas still differ");
  });
  CHECK_THAT(log.text(), contains("declared keep_on_failure"));
}

TEST_CASE("a state that was damaged on its way is refused, and that of before stays") {
  test::connections all(test::fabric::threads, 2);
  std::exception_ptr refused;
  const auto become = [&](int rank) {
    muster::group world(std::make_unique<damaging_transport>(all.connect(rank)));
    parts_of_some_size owned(rank == 0 ? 1 : 99);
    muster::state state{owned};
    go_to(state, rank == 0 ? 3 : 0);
    try {
      (void)muster::detail::transfer_state(world, state, {.has_state = rank == 0});
    } catch (const muster::error&) {
      refused = std::current_exception();  // thrown by the only rank that receives
    }
    return owned.large == parts_of_some_size(rank == 0 ? 1 : 99).large && state.steps() == (rank == 0 ? 3 : 0);
  };
  bool holder_stays = false;
  std::thread holder([&] { holder_stays = become(0); });
  const bool other_stays = become(1);
  holder.join();
  REQUIRE(refused);
  CHECK_THAT(muster::describe(refused), Catch::Matchers::Contains("their digests differ"));
  CHECK(holder_stays);
  CHECK(other_stays);
}
