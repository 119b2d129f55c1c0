// Ranks that work and serve: one process with two threads, and separate connections for each thread.
#include <muster/ps/job.hpp>

#include <optional>
#include <vector>

#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/comm/collectives/barrier.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "jobs.hpp"

namespace {

ps::job_options colocated(std::uint32_t replicas) {
  ps::job_options options{.tables = {{.name = "dense", .size = 50000}, {.name = "rows", .width = 2}}};
  options.colocated = true;
  options.replicas = replicas;
  options.timeout = muster::seconds(60);
  return options;
}

std::shared_ptr<muster::any_store> make_store() { return std::make_shared<muster::memory_store>(); }

}  // namespace

TEST_CASE("ranks that work and serve: what all push is what all pull") {
  const auto over = GENERATE(from_range(fabrics()));
  const int ranks = GENERATE(1, 3);
  INFO(over << ", " << ranks << " ranks");
  auto options = colocated(ranks > 1 ? 1 : 0);
  options.server_silence = muster::seconds(20);  // a busy machine is no dead server
  const auto store = make_store();
  constexpr int steps = 20;
  test::run_ranks(over, ranks, [&](muster::group& world) {
    ps::job job(world, options, store);
    require(!job.is_server() && job.workers() == ranks && job.worker() == world.rank(), "all work");
    auto& tables = job.tables();
    require(tables.servers() == static_cast<std::size_t>(ranks), "all serve");
    const std::vector<float> ones(50000, 1.0f);
    const std::vector<std::uint64_t> keys = {7, static_cast<std::uint64_t>(1000 + world.rank())};
    const std::vector<float> rows = {1, 2, 3, 4};
    for (int step = 0; step < steps; ++step) {
      tables.push(0, ones);
      tables.push(1, keys, rows);
      tables.next_clock();
    }
    muster::barrier(world);
    std::vector<float> found(ones.size());
    tables.pull(0, found);
    for (const float value : found) require(value == static_cast<float>(steps * ranks), "the sums");
    std::vector<float> of_rows(4);
    tables.pull(1, keys, of_rows);
    require(of_rows[1] == static_cast<float>(2 * steps * ranks) && of_rows[3] == static_cast<float>(4 * steps),
            "the rows");
    muster::barrier(world);
    job.finish();
  });
}

TEST_CASE("a rank that works and serves leaves in the middle: the others have all that counted") {
  const auto over = GENERATE(from_range(fabrics()));
  INFO(over);
  auto options = colocated(1);
  options.retry = muster::seconds(0.1);
  options.server_silence = muster::seconds(3);
  const auto store = make_store();
  test::run_ranks(over, 3, [&](muster::group& world) {
    std::optional<ps::job> job(std::in_place, world, options, store);
    auto& tables = job->tables();
    const std::vector<float> ones(50000, 1.0f);
    for (int step = 0; step < 5; ++step) tables.push(0, ones);
    muster::barrier(world);
    if (world.rank() == 1) {
      job.reset();  // like an exception
      return;
    }
    for (int step = 0; step < 5; ++step) tables.push(0, ones);
    std::vector<float> found(ones.size());
    tables.pull(0, found);
    for (const float value : found) require(value >= 20 && value <= 25, "what counted before and what is its own");
    job->finish();
  });
}
