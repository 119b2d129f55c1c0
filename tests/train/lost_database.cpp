// A training on rows of a PostgreSQL server that is killed meanwhile.
#ifdef MUSTER_HAS_POSTGRES

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/train/training.hpp>

#include "../data/postgres_server.hpp"
#include "catch.hpp"
#include "train/saved_steps.hpp"
#include "trained.hpp"

TEST_CASE("a training goes on when its database is killed and comes back, and is saved where it does not", "[slow]") {
  const postgres_server postgres;
  if (!postgres.started()) return;
  const temporary_folder folder;
  constexpr std::uint64_t amid_an_epoch = 27, never = 1000;
  // Rows of 4 KB in their order. A range has 262 rows, and half of the eight ranges are read when the database is lost.
  std::string query = "SELECT i AS id, i % 5 AS y, i AS x0";
  for (int column = 1; column < 1000; ++column) query += ", " + std::to_string(column);
  query += " FROM generate_series(1, 2000) AS i";
  const auto run = [&](int ranks, const std::string& timeout, const std::string& checkpoint, std::uint64_t lost_at,
                       bool comes_back, std::vector<float>& parameters) {
    test::as_ranks(ranks, [&](muster::context& context, muster::group& world) {
      auto loader = muster::open_source("postgres:" + postgres.connection() + "?query=" + query +
                                        "&label=y&key=id&timeout=" + timeout) |
                    muster::batch(32) | muster::prefetch(2);
      muster::arena arena(context, {{"w", {2}}});
      muster::sgd optimizer(arena);
      muster::training training(context, arena, optimizer, loader);
      std::jthread later;
      training.run({.epochs = 1, .checkpoint = checkpoint, .log = nullptr}, [&](muster::training_step& step) {
        if (step.number() == lost_at && world.rank() == 0 && !later.joinable()) {
          postgres.stop();
          if (comes_back) {
            later = std::jthread([&] {
              std::this_thread::sleep_for(std::chrono::milliseconds(500));
              (void)postgres.start();
            });
          }
        }
        step.backward(step.next(loader), [&](const muster::minibatch& part, muster::backward_pass& pass) {
          const auto sums = pass.gradient(0);
          sums[0] = sums[1] = 0;
          for (std::size_t k = 0; k < part.samples.size(); ++k) {
            sums[0] += part.values<float>()[1000 * k];
            sums[1] += part.labels[k];
          }
        });
        step.update(optimizer, 1.0);
      });
      if (world.rank() == 0) parameters.assign(arena.parameters().begin(), arena.parameters().end());
    });
  };
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    std::vector<float> straight, through_a_loss, resumed;
    const std::string at = folder / std::to_string(ranks);
    run(ranks, "60", "", never, false, straight);
    run(ranks, "60", "", amid_an_epoch, true, through_a_loss);
    CHECK(through_a_loss == straight);
    CHECK_THROWS_WITH(run(ranks, "1", at, amid_an_epoch, false, resumed),
                      contains("postgres:postgres: cannot be read, and has been tried again for 1 s"));
    REQUIRE(!saved_steps(at).empty());
    CHECK(saved_steps(at).back() >= amid_an_epoch);
    REQUIRE(postgres.start());
    run(ranks, "60", at, never, false, resumed);
    CHECK(resumed == straight);
  }
}

#endif
