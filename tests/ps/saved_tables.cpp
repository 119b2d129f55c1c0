// Tables in files.
#include <muster/ps/job.hpp>

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/core/update.hpp>

#include "catch.hpp"
#include "jobs.hpp"

TEST_CASE("tables come back from files on another number of servers, with what their updates remember") {
  const std::string update = GENERATE("add", "momentum:0.1,0.9", "adam:0.01");
  const auto over = GENERATE(test::fabric::local, test::fabric::shm);
  INFO(update << " over " << over);
  constexpr std::size_t size = 30000, rows = 700, width = 2;
  const auto folder = std::filesystem::temp_directory_path() / ("muster-tables-" + std::to_string(::getpid()));
  const auto options = [&](int servers) {
    return patient({.tables = {{.name = "dense", .size = size, .update = update},
                               {.name = "sparse", .width = width, .update = update, .initial = 0.5f}},
                    .servers = servers});
  };
  std::vector<std::uint64_t> keys(rows);
  for (std::size_t i = 0; i < rows; ++i) keys[i] = muster::mix(i);
  // One more step of a worker, and what is there then.
  const auto step = [&](ps::client& tables, std::uint64_t number) {
    muster::random_stream draw(17, number);
    std::vector<float> pushed(size), row_values(rows * width), found(size + rows * width);
    for (auto& value : pushed) value = static_cast<float>(draw.normal());
    for (auto& value : row_values) value = static_cast<float>(draw.normal());
    tables.push(0, pushed);
    tables.push(1, keys, row_values);
    tables.pull(0, std::span(found).first(size));
    tables.pull(1, keys, std::span(found).subspan(size));
    return found;
  };
  std::vector<float> expected;
  run_job(over, 2, options(3), [&](ps::job& job, muster::group& workers) {
    require(!ps::load_tables(job, workers, folder), "nothing was saved");
    if (workers.rank() == 0) {
      (void)step(job.tables(), 1);
      (void)step(job.tables(), 2);
    }
    ps::save_tables(job, workers, folder);
    ps::save_tables(job, workers, folder, {.steps = 2, .runs = 1, .at = {.epoch = 3, .position = 4}});  // in its place
    if (workers.rank() == 0) expected = step(job.tables(), 3);
  });
  for (const int servers : {1, 2}) {
    run_job(over, 3, options(servers), [&](ps::job& job, muster::group& workers) {
      const muster::state_position expected_at{.steps = 2, .at = {.epoch = 3, .position = 4}};
      require(ps::load_tables(job, workers, folder).value().at == expected_at, "it is there, and how far the job was");
      if (workers.rank() == 0) require(step(job.tables(), 3) == expected, "it goes on as it would have");
    });
  }
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 3);  // the manifest and a file of each worker
  // One bit: no worker goes on with it.
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() == ".json") continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(100);
    const int byte = bytes.peek();
    bytes.seekp(100);
    bytes.put(static_cast<char>(byte ^ 4));
    break;
  }
  const auto refused = [&](const std::string& why) {
    std::atomic<bool> heard = false;  // from the worker that found it; the others go on with it no more
    run_job(over, 2, options(1), [&](ps::job& job, muster::group& workers) {
      std::string said;
      try {
        (void)ps::load_tables(job, workers, folder);
      } catch (const muster::data_error& refusal) {
        said = refusal.what();
      }
      require(!said.empty(), "it was loaded all the same");
      if (said.find(why) != std::string::npos) heard = true;
    });
    CHECK(heard);
  };
  refused("damaged");
  std::ofstream(folder / "tables.json") << R"({"format": 1, "files": []})";
  refused("has another format (1; this muster reads 2 and 3); use the muster that wrote it");
  std::filesystem::remove_all(folder);
}
