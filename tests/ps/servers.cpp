// Servers that join, leave and fail while a job runs, and user-defined update functions.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <muster/ps/runtime/worker_process.hpp>
#include "catch.hpp"
#include "jobs.hpp"

namespace {

const ps::shard_map& map_of(const ps::client& tables) { return ps::detail::worker_process::core_of(tables).map(); }

/// A store whose watchers are notified late, and then only of the last of several changes.
class late_store final : public muster::any_store {
 public:
  explicit late_store(muster::memory_store store) : store_(std::move(store)) {}
  muster::store_entry get(std::string_view key, muster::clock::time_point until) override {
    return store_.get(key, until);
  }
  muster::store_swap compare_and_swap(std::string_view key, std::uint64_t expected,
                                      std::optional<std::string_view> value, muster::clock::time_point until,
                                      muster::store_life life = muster::store_life::of_store) override {
    return store_.compare_and_swap(key, expected, value, until, life);
  }
  std::optional<muster::store_entry> watch(std::string_view key, std::uint64_t known, muster::clock::time_point until,
                                           const std::stop_token& stop) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return store_.watch(key, known, until, stop);
  }
  [[nodiscard]] std::string where() const override { return store_.where(); }

 private:
  muster::memory_store store_;
};

}  // namespace

TEST_CASE("a server that goes and is wanted again before it has heard that it went serves again") {
  const muster::memory_store store;
  auto options = patient({.tables = {{.name = "w", .size = 30000, .ranges = 4}}, .servers = 1, .replicas = 0});
  options.standby = 1;
  test::run_ranks(test::fabric::threads, 3, [&](muster::group& world) {
    std::shared_ptr<muster::any_store> own = std::make_shared<muster::memory_store>(store);
    if (world.rank() == 2) own = std::make_shared<late_store>(store);
    ps::job job(world, options, own);
    if (job.is_server()) return job.serve();
    auto& tables = job.tables();
    std::vector<float> ones(30000, 1.0f), found(30000);
    const auto wait_until = [&](const auto& holds) {
      for (const auto until = muster::deadline_after(muster::seconds(60)); !holds(map_of(tables)); tables.progress())
        require(muster::clock::now() < until, "the servers that are wanted serve");
    };
    for (int round = 0; round < 5; ++round) {
      tables.request_servers(2);
      wait_until([](const ps::shard_map& map) {
        return std::any_of(map.ranges.begin(), map.ranges.end(), [](const auto& range) { return range.head() == 2; });
      });
      tables.push(0, ones);
      tables.request_servers(1);
      wait_until([](const ps::shard_map& map) { return map.servers.size() == 1; });
    }
    tables.pull(0, found);
    require(found == std::vector<float>(30000, 5.0f), "the sums");
    job.finish();
  });
}

TEST_CASE("one that stands by takes the place of a server that is gone") {
  const auto store = std::make_shared<muster::memory_store>();
  auto options = patient({.tables = {{.name = "w", .size = 30000, .ranges = 8}}, .servers = 2, .replicas = 1});
  options.standby = 1;
  std::atomic<int> started{0};
  test::run_ranks(test::fabric::threads, 4, [&](muster::group& world) {
    ps::job job(world, options, store);
    ++started;
    if (world.rank() == 1) {
      while (started < 4) std::this_thread::yield();
      return;  // notifies the other ranks
    }
    if (job.is_server()) return job.serve();
    auto& tables = job.tables();
    std::vector<float> ones(30000, 1.0f), found(30000);
    tables.push(0, ones);
    const auto is_complete = [&] {
      const auto map = map_of(tables);
      return map.server(1) == nullptr && map.server(3) != nullptr &&
             std::all_of(map.ranges.begin(), map.ranges.end(),
                         [](const auto& range) { return range.chain.size() == 2; });
    };
    for (const auto until = muster::deadline_after(muster::seconds(60)); !is_complete(); tables.progress())
      require(muster::clock::now() < until, "it serves, and has copies");
    tables.push(0, ones);
    tables.pull(0, found);
    require(found == std::vector<float>(30000, 2.0f), "the sums");
    job.finish();
  });
}

TEST_CASE("when the last server of a range is gone all ranks end with the status that says so") {
  const auto over = GENERATE(from_range(fabrics()));
  const int servers = GENERATE(1, 2);
  INFO(over << ", " << servers << " servers");
  ps::job_options options{.tables = {{.name = "w", .size = 30000}}, .servers = servers, .replicas = 0};
  options.timeout = muster::seconds(60);
  options.retry = muster::seconds(0.1);
  options.server_silence = muster::seconds(1);
  const auto store = std::make_shared<muster::memory_store>();
  std::atomic<int> started{0}, lost{0};
  test::run_ranks(over, 2 + servers, [&](muster::group& world) {
    ps::job job(world, options, store);
    ++started;
    if (world.rank() == 2) {
      while (started < 2 + servers) std::this_thread::yield();
      return;  // notifies the other ranks
    }
    try {
      if (job.is_server()) return job.serve();
      std::vector<float> values(30000, 1.0f);
      for (;;) job.tables().push(0, values);
    } catch (const ps::tables_lost& ended) {
      require(ended.exit_status() == 16, "its status");
      ++lost;
    }
  });
  CHECK(lost == 1 + servers);
}

namespace {

/// Sets half of the value plus the push. Throws if the first pushed value is negative.
class halving final : public ps::update_function {
 public:
  void apply(std::span<float> values, std::span<const float> pushed, std::span<const std::span<float>>, std::uint64_t,
             float) const override {
    if (pushed[0] < 0) throw std::invalid_argument("a negative push");
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = values[i] / 2 + pushed[i];
  }
};

}  // namespace

TEST_CASE("an update function that no text could name, or that nothing makes, is not registered") {
  const auto make = [](muster::spec_reader&) { return std::make_shared<halving>(); };
  for (const char* const name : {"", "Half", "half:1", "half,1"})
    CHECK_THROWS_WITH(ps::register_update(name, make), contains("the name is invalid"));
  CHECK_THROWS_WITH(ps::register_update("sgd", make), contains("the name exists already"));
  CHECK_THROWS_WITH(ps::register_update("made_by_nothing", nullptr), contains("is null"));
  CHECK_THROWS_WITH(ps::make_update("made_by_nothing"), contains("is not one of"));
}

TEST_CASE("an update function of one's own goes by its name, and what it throws ends its server") {
  static const bool is_registered =
      (ps::register_update("halving", [](muster::spec_reader&) { return std::make_shared<halving>(); }), true);
  require(is_registered, "a new name");
  ps::job_options options{.tables = {{.name = "w", .size = 20000, .update = "halving"}}, .servers = 1};
  options.timeout = muster::seconds(3);
  const auto store = std::make_shared<muster::memory_store>();
  test::run_ranks(test::fabric::threads, 2, [&](muster::group& world) {
    std::string failure;
    try {
      ps::job job(world, options, store);
      if (job.is_server()) {
        job.serve();
      } else {
        std::vector<float> values(20000, 4.0f);
        for (const float expected : {4.0f, 6.0f, 7.0f}) {
          job.tables().push(0, values);
          std::vector<float> found(20000);
          job.tables().pull(0, found);
          require(found == std::vector<float>(20000, expected), "its values");
        }
        values.assign(20000, -1.0f);
        job.tables().push(0, values);
        job.tables().pull(0, values);
      }
    } catch (const std::exception& problem) {
      failure = problem.what();
    }
    const bool serves = world.rank() == 1;
    require(serves ? failure == "a negative push" : !failure.empty(), "the server says what it was");
  });
}
