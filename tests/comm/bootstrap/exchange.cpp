#include <muster/comm/bootstrap/exchange.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "places.hpp"
#include "worker.hpp"

using places::place;
using places::soon;
using places::worker;

namespace {

std::string word(int rank, std::size_t bytes) {
  return std::string(1, static_cast<char>('a' + rank)) + std::string(bytes, static_cast<char>(rank));
}

/// A rank's result. Each rank is a thread with its own store.
struct outcome {
  std::vector<std::string> words;
  std::string error;
  std::vector<int> missing;
};

std::vector<outcome> meet(const place& at, const std::vector<int>& present, int size, std::size_t bytes,
                          muster::clock::time_point until) {
  std::vector<outcome> outcomes(static_cast<std::size_t>(size));
  std::vector<std::jthread> ranks;
  for (const int rank : present) {
    ranks.emplace_back([&, rank] {
      auto& mine = outcomes[static_cast<std::size_t>(rank)];
      try {
        const auto store_ = at.open();
        auto& store = *store_;
        mine.words = muster::exchange(store, "job/addresses", rank, size, word(rank, bytes), until);
      } catch (const muster::timeout_error& late) {
        mine.error = late.what();
        mine.missing = late.missing();
      } catch (const std::exception& failed) {
        mine.error = failed.what();
      }
    });
  }
  ranks.clear();
  return outcomes;
}

}  // namespace

TEST_CASE("everyone gets everyone's word, and nothing is left in the store", "[slow]") {
  for (const auto& kind : places::kinds()) {
    for (const int size : {1, 2, 3, 7}) {
      CAPTURE(kind, size);
      const place at(kind);
      const auto store_ = at.open();
      auto& store = *store_;
      std::vector<int> all;
      for (int rank = 0; rank < size; ++rank) all.push_back(rank);
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{400000}}) {
        const auto outcomes = meet(at, all, size, bytes, soon());
        for (const auto& outcome : outcomes) {
          CHECK(outcome.error.empty());
          REQUIRE(outcome.words.size() == static_cast<std::size_t>(size));
          for (int rank = 0; rank < size; ++rank) {
            CHECK((outcome.words[static_cast<std::size_t>(rank)] == word(rank, bytes)));
          }
        }
      }
      for (const char* key : {"job/addresses/0", "job/addresses/1", "job/addresses/all", "job/addresses/all/0"}) {
        CHECK_FALSE(store.get(key, soon()));
      }
    }
  }
}

TEST_CASE("processes exchange words too") {
  for (const auto& kind : places::kinds()) {
    CAPTURE(kind);
    const place at(kind);
    const auto store = at.open();
    std::vector<worker> ranks;
    for (const char* rank : {"0", "1", "2", "3"})
      ranks.emplace_back(at, std::vector<std::string>{"meet", "p", rank, "4"});
    for (auto& rank : ranks) CHECK(rank.wait() == 0);
  }
}

TEST_CASE("the ranks that do not come are named at every rank that did") {
  const std::vector<std::vector<int>> absent{{2}, {0}, {1, 3}, {0, 4}};
  const auto is_absent = [&](std::size_t job, int rank) { return std::ranges::count(absent[job], rank) > 0; };
  for (const auto& kind : places::kinds()) {
    std::vector<std::vector<outcome>> outcomes(absent.size());
    std::list<place> at;
    std::vector<std::jthread> jobs;  // at the same time, because a busy machine may take long
    for (std::size_t job = 0; job < absent.size(); ++job) {
      std::vector<int> present;
      for (int rank = 0; rank < 5; ++rank) {
        if (!is_absent(job, rank)) present.push_back(rank);
      }
      jobs.emplace_back([&outcomes, &here = at.emplace_back(kind), job, present] {
        outcomes[job] = meet(here, present, 5, 10, muster::deadline_after(muster::seconds(3)));
      });
    }
    jobs.clear();
    for (std::size_t job = 0; job < absent.size(); ++job) {
      for (int rank = 0; rank < 5; ++rank) {
        if (is_absent(job, rank)) continue;
        CAPTURE(kind, job, rank);
        const auto& mine = outcomes[job][static_cast<std::size_t>(rank)];
        CHECK(mine.missing == absent[job]);
        CHECK_THAT(mine.error, contains("missing: rank " + muster::format_ranks(absent[job])));
      }
    }
  }
}

TEST_CASE("a rank that is there twice is told") {
  const place at("tcp");
  const auto store_ = at.open();
  auto& store = *store_;
  REQUIRE(store.compare_and_swap("job/1", 0, "the first of that name", soon()).swapped);
  CHECK_THROWS_AS(muster::exchange(store, "job", 1, 2, "word", soon()), muster::configuration_error);
}

TEST_CASE("ranks that were started with different numbers of ranks are named at every rank") {
  // The number of ranks by rank.
  const std::vector<std::vector<int>> starts{{2, 3}, {3, 2}, {2, 2, 3}, {4, 4, 3}};
  for (const auto& kind : places::kinds()) {
    for (const auto& sizes : starts) {
      const place at(kind);
      const auto store_ = at.open();
      const auto odd = std::ranges::find_if(sizes, [&](int size) { return size != sizes[0]; });
      const std::string named = "rank 0 was started with a size of " + std::to_string(sizes[0]) + ", and rank " +
                                std::to_string(odd - sizes.begin()) + " with a size of " + std::to_string(*odd);
      std::vector<std::string> errors(sizes.size());
      std::vector<std::jthread> ranks;
      for (std::size_t rank = sizes.size(); rank-- > 0;) {  // rank 0 is last, so that it finds all texts
        ranks.emplace_back([&, rank] {
          try {
            (void)muster::exchange(*at.open(), "job", static_cast<int>(rank), sizes[rank], "word", soon());
          } catch (const muster::configuration_error& refused) {
            errors[rank] = refused.what();
          }
        });
        while (!store_->get("job/" + std::to_string(rank), soon()) && rank != 0)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ranks.clear();
      for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
        CAPTURE(kind, sizes, rank);
        CHECK_THAT(errors[rank], contains(named));
      }
      for (const char* key : {"job/0", "job/1", "job/2", "job/all"}) CHECK_FALSE(store_->get(key, soon()));
    }
  }
}
