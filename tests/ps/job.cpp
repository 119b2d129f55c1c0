// Servers and workers as threads, over every transport: every push is applied exactly once.
#include <muster/ps/job.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include <muster/comm/bootstrap/memory_store.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/core/update.hpp>
#include <muster/ps/job_checks.hpp>

#include "catch.hpp"
#include "comm/routine.hpp"
#include "data/files.hpp"
#include "jobs.hpp"

TEST_CASE("pushes of many workers add up, in slices of any size") {
  const auto over = GENERATE(from_range(fabrics()));
  const int servers = GENERATE(1, 3);
  const auto replicas = static_cast<std::uint32_t>(GENERATE(0, 1));
  INFO(over << ", " << servers << " servers, " << replicas << " replicas");
  constexpr std::size_t size = 70000;
  const auto options = patient({.tables = {{.name = "a", .size = size}, {.name = "b", .size = 5}},
                                .servers = servers,
                                .replicas = replicas,
                                .window = 300000});
  run_job(over, 3, options, [&](ps::job& job, muster::group& workers) {
    auto& tables = job.tables();
    std::vector<double> expected(size, 0.0);
    // Every worker knows all pushes. The values are whole numbers, so that the order of sums does not matter.
    for (int worker = 0; worker < workers.size(); ++worker) {
      muster::random_stream draw(11, static_cast<std::uint64_t>(worker));
      std::vector<ps::pending> pushes;
      std::vector<std::vector<float>> memory;
      for (int i = 0; i < 40; ++i) {
        const std::size_t offset = draw.below(size);
        const std::size_t count = draw.below(2) == 0 ? draw.below(50) : draw.below(size - offset + 1);
        std::vector<float> values(std::min(count, size - offset));
        for (auto& value : values) value = static_cast<float>(draw.below(9));
        for (std::size_t k = 0; k < values.size(); ++k) expected[offset + k] += double{values[k]};
        const bool forgotten = draw.below(4) == 0;
        if (worker != workers.rank()) continue;
        memory.push_back(std::move(values));
        pushes.push_back(tables.push_async(0, memory.back(), {.offset = offset}));
        if (!forgotten) continue;
        pushes.clear();  // no call waits for these pushes, which are applied nevertheless
        memory.clear();
      }
      for (auto& push : pushes) push.wait();
    }
    tables.flush();
    muster::barrier(workers);
    std::vector<float> found(size);
    tables.pull(0, found);
    for (std::size_t i = 0; i < size; ++i) require(double{found[i]} == expected[i], "the sums");
    std::vector<float> part(1000);
    tables.pull(0, part, 30000);
    require(std::equal(part.begin(), part.end(), found.begin() + 30000), "a slice");
    muster::barrier(workers);
  });
}

TEST_CASE("a table starts with the values that its servers compute") {
  const auto over = GENERATE(from_range(fabrics()));
  const int servers = GENERATE(1, 3);
  constexpr std::size_t size = 300000;  // of several ranges
  const auto value_at = [](std::size_t element) { return static_cast<float>(element % 1000) - 5.0f; };
  const auto fill = [&](std::size_t first, std::span<float> values) {
    for (std::size_t k = 0; k < values.size(); ++k) values[k] = value_at(first + k);
  };
  const auto options = patient({.tables = {{.name = "a", .size = size, .initial_values = fill}}, .servers = servers});
  run_job(over, 2, options, [&](ps::job& job, muster::group& workers) {
    auto& tables = job.tables();
    std::vector<float> one(100, 1.0f), all(size);
    if (workers.rank() == 0) tables.push(0, one, {.offset = 70000});
    muster::barrier(workers);
    tables.pull(0, all);
    for (std::size_t k = 0; k < size; ++k) {
      const bool pushed = k >= 70000 && k < 70100;
      require(all[k] == value_at(k) + (pushed ? 1.0f : 0.0f), "the values");
    }
    muster::barrier(workers);
  });
}

TEST_CASE("a server's memory limit is the least of its control groups") {
  const temporary_folder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    std::ofstream(folder / name) << text;
  };
  const auto limit = [&] { return ps::detail::memory_limit(folder / "groups", folder / "tree"); };
  constexpr auto none = std::numeric_limits<std::uint64_t>::max();
  CHECK(limit() == none);
  write("groups", "0::/jobs/one\n");
  CHECK(limit() == none);
  write("tree/memory.max", "max\n");
  write("tree/jobs/one/memory.max", "max\n");
  CHECK(limit() == none);
  write("tree/jobs/memory.max", "5000\n");
  CHECK(limit() == 5000);
  write("tree/jobs/one/memory.max", "4000\n");
  CHECK(limit() == 4000);
  write("groups", "3:cpu:/a\n2:memory:/a/b\n0::/\n");
  write("tree/memory/a/memory.limit_in_bytes", "3000\n");
  CHECK(limit() == 3000);
  write("groups", "0::/\n");
  write("tree/memory.max", "2000\n");
  CHECK(limit() == 2000);
}

TEST_CASE("a server whose memory cannot hold its ranges is refused, with the numbers") {
  const ps::job_options options{.tables = {{.name = "a", .size = 1 << 20, .update = "adam:0.1"}, {.name = "sparse"}},
                                .replicas = 1};
  const std::uint64_t all = 3 * sizeof(float) << 20;      // with two arrays of adam
  CHECK(ps::detail::bytes_of_server(options, 1) == all);  // one server has no replicas
  CHECK(ps::detail::bytes_of_server(options, 2) == all);
  CHECK(ps::detail::bytes_of_server(options, 4) == all / 2);
  CHECK_NOTHROW(ps::detail::check_memory(3, all, all));
  CHECK_THROWS_WITH(ps::detail::check_memory(3, all, all - 1),
                    contains("the server at rank 3 cannot hold its ranges") && contains("is 12 MiB") &&
                        contains("limited to 11 MiB"));
}

TEST_CASE("a push and a pull that are larger than the window wait for what is under way, and go") {
  const auto over = GENERATE(from_range(fabrics()));
  INFO(over);
  constexpr std::size_t size = 3000;
  auto options = patient({.tables = {{.name = "w", .size = size, .ranges = 3}}, .servers = 1, .window = 100});
  options.timeout = muster::seconds(10);
  run_job(over, 1, options, [&](ps::job& job, muster::group&) {
    auto& tables = job.tables();
    std::vector<float> pushed(size), found(size);
    std::iota(pushed.begin(), pushed.end(), 1.0f);
    for (int turn = 1; turn <= 3; ++turn) {
      tables.push(0, pushed);
      tables.pull(0, found);
      for (std::size_t i = 0; i < size; ++i) require(found[i] == static_cast<float>(turn) * pushed[i], "the sums");
    }
  });
}

// Pushes and pulls, each by a coroutine that awaits it. Each push adds 1 to each value.
test::routine push_and_pull(test::run_queue& queue, ps::client& tables, std::vector<float>& found, int times) {
  const std::vector<float> ones(found.size(), 1.0f);
  for (int k = 0; k < times; ++k) {
    auto kept = tables.push_async(0, ones);
    co_await kept;
    co_await tables.pull_async(0, found);
    co_await muster::resume_by(tables.pull_async(0, found), [&](auto function) { queue.push_back(function); });
  }
}

TEST_CASE("pushes and pulls are tested, waited for with a limit, and awaited by coroutines") {
  const auto over = GENERATE(from_range(fabrics()));
  CAPTURE(static_cast<int>(over));
  run_job(over, 1, patient({.tables = {{.name = "w", .size = 1000}}, .servers = 1}), [&](ps::job& job, muster::group&) {
    auto& tables = job.tables();
    std::vector<float> ones(1000, 1.0f), found(1000);
    require(ps::pending().test(), "a handle without an operation is done");
    auto push = tables.push_async(0, ones);
    while (!push.test()) {
    }
    require(push.test(), "a complete push remains complete");
    auto pull = tables.pull_async(0, found);
    require(!pull.wait_for(muster::seconds(0)) || pull.version() == 1, "an incomplete pull is not done");
    while (!pull.wait_for(muster::seconds(1e-3))) {
    }
    require(pull.version() == 1 && found[999] == 1.0f, "the pull has the push");
    test::run_queue queue;
    push_and_pull(queue, tables, found, 5).finish();
    require(found[0] == 6.0f, "the coroutine's pushes are applied before its pulls");
  });
}

// The transport borrows large values. An operation that is destroyed unfinished releases its memory at once, and pushes
// are applied.
TEST_CASE("pushes and pulls of large values may be dropped under way", "[slow]") {
  constexpr std::size_t size = ps::table_layout::largest_range + 100000;  // 1.4 MB, in two messages
  constexpr int steps = 30;
  for (const auto over : fabrics()) {
    for (const int servers : {1, 2}) {
      CAPTURE(static_cast<int>(over), servers);
      auto options = patient({.tables = {{.name = "w", .size = size, .ranges = 2}}, .servers = servers});
      options.replicas = servers - 1;
      run_job(over, 2, options, [&](ps::job& job, muster::group& workers) {
        auto& tables = job.tables();
        muster::random_stream draw(static_cast<std::uint64_t>(workers.rank()) + 4711);
        for (int step = 0; step < steps; ++step) {
          std::vector<float> ones(size, 1.0f), found(size);
          {
            auto push = tables.push_async(0, ones);
            auto pull = tables.pull_async(0, found);
            for (auto turns = draw.below(4); turns > 0; --turns) tables.progress();
            if (draw.below(3) == 0) pull.wait();
          }
          std::fill(ones.begin(), ones.end(), 1e6f);
          std::fill(found.begin(), found.end(), -1.0f);
          for (auto turns = draw.below(3); turns > 0; --turns) tables.progress();
          require(std::ranges::count(found, -1.0f) == static_cast<std::ptrdiff_t>(size),
                  "nobody writes there any more");
        }
        tables.flush();
        muster::barrier(workers);
        std::vector<float> found(size);
        tables.pull(0, found);
        require(std::ranges::count(found, 2.0f * steps) == static_cast<std::ptrdiff_t>(size), "all pushes, each once");
      });
    }
  }
}

TEST_CASE("rows under keys add up, and are what they were said to be before the first push") {
  const auto over = GENERATE(from_range(fabrics()));
  const auto replicas = static_cast<std::uint32_t>(GENERATE(0, 1));
  constexpr std::size_t width = 3;
  auto options =
      patient({.tables = {{.name = "rows", .width = width, .initial = 0.5f}}, .servers = 2, .replicas = replicas});
  run_job(over, 2, options, [&](ps::job& job, muster::group& workers) {
    auto& tables = job.tables();
    std::map<std::uint64_t, double> expected;
    for (int worker = 0; worker < workers.size(); ++worker) {
      muster::random_stream draw(12, static_cast<std::uint64_t>(worker));
      for (int i = 0; i < 30; ++i) {
        std::vector<std::uint64_t> keys(draw.below(400));
        std::vector<float> rows;
        for (auto& key : keys) {
          key = muster::mix(draw.below(2000));  // any 64 bits, and some twice
          for (std::size_t k = 0; k < width; ++k) rows.push_back(static_cast<float>(k + 1));
          expected[key] += 1;
        }
        if (worker == workers.rank()) tables.push(0, keys, rows);
      }
    }
    muster::barrier(workers);
    std::vector<std::uint64_t> keys = {1, 2, 3};  // keys without rows
    for (const auto& [key, times] : expected) keys.push_back(key);
    std::vector<float> rows(keys.size() * width);
    tables.pull(0, keys, rows);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      for (std::size_t k = 0; k < width; ++k)
        require(double{rows[i * width + k]} == 0.5 + static_cast<double>(k + 1) * expected[keys[i]], "a row");
    }
    muster::barrier(workers);
  });
}

TEST_CASE("a server's update functions are the library's") {
  const std::string update = GENERATE("assign", "sgd:0.1", "momentum:0.1,0.9", "adagrad:0.1", "adam:0.01");
  INFO(update);
  constexpr std::size_t size = 20000;
  auto options =
      patient({.tables = {{.name = "dense", .size = size, .update = update}, {.name = "sparse", .update = update}}});
  run_job(test::fabric::threads, 1, options, [&](ps::job& job, muster::group&) {
    auto& tables = job.tables();
    std::vector<float> values(size, 0.0f), state(2 * size, 0.0f), pushed(size), found(size), rows(size);
    std::vector<std::uint64_t> keys(size);
    std::iota(keys.begin(), keys.end(), std::uint64_t{1} << 40);
    const auto function = ps::make_update(update);
    muster::random_stream draw(13);
    for (std::uint64_t step = 1; step <= 4; ++step) {
      for (auto& value : pushed) value = static_cast<float>(draw.normal());
      const std::vector<std::span<float>> arrays = {std::span(state).first(size), std::span(state).last(size)};
      function->apply(values, pushed, std::span(arrays).first(function->states()), step, 0.5f);
      auto sent = tables.push_async(0, pushed, {.scale = 0.5f});
      tables.pull(0, found);  // including that push
      sent.wait();
      require(found == values, "dense");
      tables.push(1, keys, pushed, {.scale = 0.5f});
      tables.pull(1, keys, rows);
      require(rows == values, "sparse");
    }
  });
}

// Adam corrects its bias by an element's number of updates. Before the fix, pushes of slices without a range's first
// element were not counted.
TEST_CASE("each element counts its own updates, however pushes are cut, also behind a checkpoint") {
  constexpr std::size_t size = 300;
  const auto options = patient(
      {.tables = {{.name = "w", .size = size, .update = "adam:0.01", .ranges = 2}}, .servers = 2, .replicas = 1});
  run_job(test::fabric::threads, 1, options, [&](ps::job& job, muster::group&) {
    auto& tables = job.tables();
    const auto function = ps::make_update("adam:0.01");
    struct element {
      float value = 0;
      float state[2] = {0, 0};
      std::uint64_t count = 0;
    };
    std::vector<element> expected(size);
    const auto push = [&](muster::random_stream& draw) {
      const std::size_t offset = draw.below(4) == 0 ? 0 : draw.below(size);
      std::vector<float> pushed(draw.below(4) == 0 ? size - offset : draw.below(size - offset + 1));
      for (std::size_t i = 0; i < pushed.size(); ++i) {
        auto& own = expected[offset + i];
        pushed[i] = static_cast<float>(draw.normal());
        const std::span<float> arrays[] = {std::span(own.state).first(1), std::span(own.state).last(1)};
        function->apply(std::span(&own.value, 1), std::span(&pushed[i], 1), arrays, ++own.count, 1);
      }
      tables.push(0, pushed, {.offset = offset});
    };
    const auto check = [&] {
      std::vector<float> found(size);
      tables.pull(0, found);
      for (std::size_t i = 0; i < size; ++i)
        require(std::abs(found[i] - expected[i].value) < 1e-5f, "an element is what its own updates make of it");
    };
    muster::random_stream first(31), next(32);
    for (int i = 0; i < 40; ++i) push(first);
    check();
    const auto saved_values = expected;
    std::vector<std::vector<std::byte>> saved;
    for (ps::range_id range = 0; range < job.layout().ranges(); ++range) saved.push_back(tables.save(range));
    for (int i = 0; i < 10; ++i) push(next);
    check();
    for (const auto& part : saved) tables.restore(0, part);
    expected = saved_values;
    check();
    for (int i = 0; i < 10; ++i) push(next);
    check();
  });
}

TEST_CASE("bulk-synchronous steps are steps by the sum of all workers") {
  const auto over = GENERATE(from_range(fabrics()));
  const auto replicas = static_cast<std::uint32_t>(GENERATE(0, 1));
  constexpr std::size_t size = 3000;
  const auto options = patient({.tables = {{.name = "w", .size = size, .update = "sgd:1"}},
                                .servers = 2,
                                .replicas = replicas,
                                .consistency_model = ps::parse_consistency("bulk")});
  run_job(over, 3, options, [&](ps::job& job, muster::group& workers) {
    auto& tables = job.tables();
    std::vector<float> found(size), pushed(size, static_cast<float>(workers.rank() + 1));
    for (int step = 0; step < 8; ++step) {
      tables.pull(0, found);
      for (const float value : found)
        require(value == static_cast<float>(-6 * step), "every worker sees the same step");
      tables.push(0, pushed);
      tables.next_clock();
    }
  });
}

TEST_CASE("a worker that pulls while others push sees whole pushes") {
  const auto over = GENERATE(from_range(fabrics()));
  INFO(over);
  constexpr std::size_t size = 30000;  // three ranges
  constexpr float pushes = 500;
  const auto replicas = static_cast<std::uint32_t>(GENERATE(0, 1));
  const auto options =
      patient({.tables = {{.name = "w", .size = size, .ranges = 3}}, .servers = 2, .replicas = replicas});
  run_job(over, 3, options, [&](ps::job& job, muster::group& workers) {
    auto& tables = job.tables();
    std::vector<float> values(size, 1.0f);
    if (workers.rank() == 0) {
      for (float i = 0; i < pushes; ++i) tables.push(0, values);
      muster::barrier(workers);
      return;
    }
    float last = 0;
    while (last < pushes) {
      auto pulled = tables.pull_async(0, values);
      pulled.wait();
      for (std::size_t begin = 0; begin < size; begin += size / 3) {
        for (std::size_t i = 0; i < size / 3; ++i) require(values[begin + i] == values[begin], "a push that is whole");
      }
      const float least = *std::min_element(values.begin(), values.end());
      require(static_cast<float>(pulled.version()) == least, "the version of what was seen");
      require(values[0] >= last, "what was seen stays");
      last = values[0];
    }
    muster::barrier(workers);
  });
}

TEST_CASE("no worker is further ahead than the bound") {
  const auto over = GENERATE(from_range(fabrics()));
  constexpr std::uint64_t bound = 2;
  const auto options =
      patient({.tables = {{.name = "w", .size = 64}}, .consistency_model = ps::parse_consistency("bounded:2")});
  run_job(over, 3, options, [&](ps::job& job, muster::group& workers) {
    auto& tables = job.tables();
    std::vector<float> counts(64), mine(1, 1.0f);
    for (std::uint64_t step = 0; step < 20; ++step) {
      tables.pull(0, counts);
      for (int worker = 0; worker < workers.size(); ++worker)
        require(static_cast<std::uint64_t>(counts[static_cast<std::size_t>(worker)]) + bound >= step, "the bound");
      if (workers.rank() == 0 && step % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      tables.push(0, mine, {.offset = static_cast<std::size_t>(workers.rank())});
      tables.next_clock();
    }
  });
}

TEST_CASE("what cannot be is refused in words") {
  const auto refused = [](ps::job_options options) {
    const auto store = std::make_shared<muster::memory_store>();
    test::run_ranks(2, [&](muster::group& world) { ps::job job(world, options, store); });
  };
  CHECK_THROWS_WITH(refused({.tables = {{.name = "a", .size = 1}}, .servers = 2}),
                    contains("choose --servers from 1 to 1"));
  CHECK_THROWS_WITH(refused({.tables = {{.name = "a", .size = 1, .update = "addd"}}}), contains("did you mean 'add'?"));
  CHECK_THROWS_WITH(refused({.tables = {{.name = "a", .size = 1, .update = "sgd:x"}}}),
                    contains("rate 'x' is not a number"));
  CHECK_THROWS_WITH(refused({.tables = {{.name = "a", .size = 9, .most_rows = 1}}}),
                    contains("bound only sparse tables"));
  CHECK_THROWS_WITH(refused({.tables = {{.name = "a"}}, .compress = muster::parse_compression("topk:0.1")}),
                    contains("use float16, bfloat16 or qsgd8"));
  CHECK_THROWS_WITH(
      refused({.tables = {{.name = "a", .size = 9}}, .compress = muster::parse_compression("powersgd:2")}),
      contains("use another method"));
  run_job(test::fabric::threads, 1, patient({.tables = {{.name = "a", .size = 4}, {.name = "b"}}}),
          [](ps::job& job, muster::group&) {
            std::vector<float> five(5);
            const std::vector<std::uint64_t> keys(5);
            const float nan = std::numeric_limits<float>::quiet_NaN();
            const float infinite = std::numeric_limits<float>::infinity();
            // This also is the first request of a worker.
            for (const std::uint32_t table : {0U, 7U}) {
              std::string text;
              try {
                (void)job.tables().next_lease(table);
              } catch (const muster::configuration_error& refusal) {
                text = refusal.what();
              }
              require(text.find("hands out no leases") != std::string::npos, "it has no leases");
            }
            for (const auto& wrong : std::vector<std::function<void()>>{
                     [&] { job.tables().push(0, std::span(five).first(4), {.scale = nan}); },
                     [&] { job.tables().push(1, keys, five, {.scale = -infinite}); },
                     [&] { job.tables().push(0, five); }, [&] { job.tables().push(0, keys, five); },
                     [&] { job.tables().pull(1, five); }, [&] { job.tables().pull(2, five); }, [&] { job.serve(); }}) {
              bool thrown = false;
              try {
                wrong();
              } catch (const muster::configuration_error&) {
                thrown = true;
              }
              require(thrown, "refused");
            }
          });
}
