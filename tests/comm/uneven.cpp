// Collectives of uneven pieces, on ranks that are threads.
#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/uneven.hpp>
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "comm/uneven_oracle.hpp"

namespace {

using sizes = std::vector<std::size_t>;

std::string joined_texts_of(const std::vector<std::exception_ptr>& thrown) {
  std::string texts;
  for (const auto& failure : thrown) texts += failure ? muster::describe(failure) + "\n" : "";
  return texts;
}

// Calls the collective with counts that differ at rank 0: the sum is the same.
void call_with_other_counts(muster::group& world, muster::collective kind, std::size_t scale) {
  const auto n = static_cast<std::size_t>(world.size());
  const auto me = static_cast<std::size_t>(world.rank());
  const sizes counts(n, 3 * scale);
  sizes other = counts;
  if (me == 0) {
    other[n - 1] += scale;
    other[0] -= kind == muster::collective::all_to_all ? 0 : scale;
  }
  std::vector<int> all(3 * scale * n);
  std::vector<int> mine(other[me]);
  switch (kind) {
    case muster::collective::allgather:
      return muster::allgather(world, mine, all, other);
    case muster::collective::gather:
      return muster::gather(world, mine, all, other, 0);
    case muster::collective::scatter:
      return muster::scatter(world, all, other, mine, 0);
    case muster::collective::all_to_all:
      return muster::all_to_all(world, std::vector<int>(muster::detail::sum_of(other)), other, all, counts);
    default:
      return muster::reduce_scatter(world, all, other, mine, muster::sum);
  }
}

void compare_uneven_with_oracle(test::fabric over, std::uint64_t cases) {
  const auto list = test::cases_of_run(cases, 9);
  std::cout << "seed " << list.seed << " (MUSTER_TEST_SEED sets another)\n";
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const auto texts =
        joined_texts_of(test::outcomes(over, ranks, [&](muster::group& world) { test::check_uneven(list, world); }));
    INFO(texts);
    REQUIRE(texts.empty());
  }
}

}  // namespace

TEST_CASE("uneven pieces equal their oracle", "[oracle][slow]") {
  compare_uneven_with_oracle(GENERATE(from_range(test::every_fabric())), 1800);
}

// Over shm a piece of up to 48 bytes travels in another place than a longer piece, but not beside a long one.
TEST_CASE("short pieces beside long pieces arrive") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const auto counts = GENERATE(sizes{5000, 1, 0, 1}, sizes{1, 3000, 12, 13}, sizes{30000, 1, 2, 40000});
  const auto thrown = test::outcomes(over, 4, [&](muster::group& world) {
    const auto me = static_cast<std::size_t>(world.rank());
    const std::vector<int> mine(counts[me], world.rank() + 1);
    std::vector<int> expected, all(muster::detail::sum_of(counts));
    for (std::size_t rank = 0; rank < counts.size(); ++rank)
      expected.insert(expected.end(), counts[rank], static_cast<int>(rank) + 1);
    for (int round = 0; round < 3; ++round) {
      std::fill(all.begin(), all.end(), -1);
      muster::allgather(world, mine, all, counts);
      if (all != expected) throw std::runtime_error("a piece is wrong with the counts");
      if (muster::allgather(world, mine).data != expected) throw std::runtime_error("a piece is wrong without counts");
    }
  });
  CHECK(joined_texts_of(thrown).empty());
}

// The ranks have other ideas of the counts: every rank fails, and the texts name counts.
TEST_CASE("counts that differ between the ranks are named at every rank") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const int ranks = GENERATE(2, 3);
  const std::size_t scale = GENERATE(1u, 5000u, 100000u);
  const auto kind = GENERATE(muster::collective::allgather, muster::collective::gather, muster::collective::scatter,
                             muster::collective::all_to_all, muster::collective::reduce_scatter);
  // a rank whose own pieces fit fails in the next call
  const auto thrown = test::outcomes(over, ranks, [&](muster::group& world) {
    call_with_other_counts(world, kind, scale);
    muster::barrier(world);
  });
  INFO(to_string(kind) << ": " << joined_texts_of(thrown));
  for (const auto& failure : thrown) {
    REQUIRE(failure);
    const auto text = muster::describe(failure);
    CHECK(muster::exit_status_of(failure) == static_cast<int>(muster::error_kind::mismatch));
    CHECK_THAT(text, contains("the ranks disagree about collective 0"));
    CHECK_THAT(text, !contains("\n"));
    CHECK_THAT(text, contains("counts"));
  }
}

TEST_CASE("wrong counts are refused in one line, and the group goes on") {
  test::run_ranks(2, [](muster::group& world) {
    const std::size_t me = static_cast<std::size_t>(world.rank());
    std::vector<float> data(10);
    const std::span<float> all(data);
    const auto refuses = [](const std::string& says, auto call) {
      try {
        call();
      } catch (const muster::configuration_error& refused) {
        const std::string text = refused.what();
        if (text.find(says) == std::string::npos || text.find('\n') != std::string::npos)
          throw std::runtime_error("another text: " + text);
        return;
      }
      throw std::runtime_error("accepted: " + says);
    };
    const auto own = all.subspan(me * 4, me == 0 ? 4 : 6);
    refuses("the count of rank 1 is -6 (a piece has at least 0 elements)", [&] {
      muster::allgather(world, own, all, std::array{4, -6});
    });
    refuses("there are 3 counts (the group has 2 ranks)", [&] { muster::allgather(world, own, all, sizes{4, 6, 0}); });
    refuses("overflows", [&] {
      muster::allgather(world, own, all, sizes{4, std::numeric_limits<std::size_t>::max()});
    });
    refuses("overflows", [&] {
      const std::size_t half = std::numeric_limits<std::size_t>::max() / 8;
      muster::reduce_scatter(world, all, sizes{half, half}, own, muster::sum);
    });
    refuses("the output buffer has 10 elements (the sum of its counts is 11)", [&] {
      muster::allgather(world, own, all, sizes{4, 7});
    });
    refuses("the input buffer has", [&] { muster::allgather(world, own, all, sizes{5, 5}); });
    refuses("the root cannot be rank 2", [&] { muster::gather(world, own, all, sizes{4, 6}, 2); });
    refuses("the input and the output overlap", [&] {
      muster::allgather(world, all.subspan(me == 0 ? 1 : 3, own.size()), all, sizes{4, 6});
    });
    refuses("the input and the output overlap", [&] {
      muster::reduce_scatter(world, all, sizes{4, 6}, own, muster::sum);
    });
    refuses("the input and the output overlap", [&] {
      const sizes counts = {5, 5};
      muster::all_to_all(world, all, counts, all, counts);
    });
    refuses("for itself differ (2 of the input, 3 of the output)", [&] {
      const sizes in = me == 0 ? sizes{2, 3} : sizes{3, 2};
      const sizes out = me == 0 ? sizes{3, 2} : sizes{2, 3};
      muster::all_to_all(world, all.first(5), in, all.last(5), out);
    });
    refuses("cannot run by tree (only by direct)", [&] {
      std::vector<float> gathered(10);
      muster::gather(world, own, gathered, sizes{4, 6}, world.rank(), {.algorithm = muster::algorithm::tree});
    });
    refuses("there are 1 counts", [&] { (void)muster::all_to_all(world, muster::pieces<int>{{1}, {1}}); });
    muster::barrier(world);
    muster::allgather(world, own, all, sizes{4, 6});  // in place
  });
}

TEST_CASE("a rank that refuses wrong counts and leaves is the error of the ranks that wait for it") {
  const auto thrown = test::outcomes(test::fabric::shm, 3, [](muster::group& world) {
    std::vector<int> all(6), mine(2);
    muster::allgather(world, mine, all, world.rank() == 1 ? std::array{2, 2, -2} : std::array{2, 2, 2});
  });
  for (const auto& failure : thrown) {
    REQUIRE(failure);
    CHECK_THAT(muster::describe(failure), contains("the count of rank 2 is -2"));
  }
}
