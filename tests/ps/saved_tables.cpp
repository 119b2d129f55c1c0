// Tables in files.
#include <muster/ps/job.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/core/update.hpp>

#include <muster/ps/table_files.hpp>
#include "catch.hpp"
#include "jobs.hpp"

TEST_CASE("tables come back from files on another number of servers, with what their updates remember", "[slow]") {
  const std::string update = GENERATE("add", "momentum:0.1,0.9", "adam:0.01");
  const auto over = GENERATE(test::fabric::threads, test::fabric::shm);
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
  // Makes one more step of a worker, and returns the values after it.
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
    // Replaces the previous save.
    ps::save_tables(job, workers, folder, {.steps = 2, .runs = 1, .data = {.epoch = 3, .position = 4}});
    if (workers.rank() == 0) expected = step(job.tables(), 3);
  });
  for (const int servers : {1, 2}) {
    run_job(over, 3, options(servers), [&](ps::job& job, muster::group& workers) {
      const muster::state_position expected_at{.steps = 2, .data = {.epoch = 3, .position = 4}};
      require(ps::load_tables(job, workers, folder).value().position == expected_at,
              "it is there, and how far the job was");
      if (workers.rank() == 0) require(step(job.tables(), 3) == expected, "it goes on as it would have");
    });
  }
  // The manifest and a file for each worker.
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 3);
  // After a single bit changes, no worker continues with the file.
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
    std::atomic<bool> has_reason = false;  // set by the worker that found the error; the other workers stop too
    run_job(over, 2, options(1), [&](ps::job& job, muster::group& workers) {
      std::string text;
      try {
        (void)ps::load_tables(job, workers, folder);
      } catch (const muster::data_error& refusal) {
        text = refusal.what();
      }
      require(!text.empty(), "it was loaded all the same");
      if (text.find(why) != std::string::npos) has_reason = true;
    });
    CHECK(has_reason);
  };
  refused("damaged");
  const auto manifest = folder / "tables.json";
  std::string text(std::istreambuf_iterator<char>(std::ifstream(manifest).rdbuf()), {});
  const std::string files = R"("files": [)";
  text.insert(text.find(files) + files.size(), "7,");
  std::ofstream(manifest) << text;
  refused("is no manifest of tables");
  for (const char* const part : {"", "[2]", R"({"format": 2, "files": []})"}) {
    std::ofstream(manifest) << part;
    refused("is no manifest of tables");
  }
  std::ofstream(manifest) << R"({"format": 1, "files": []})";
  refused("has another format (1; this muster reads 2 and 3); use the muster that wrote it");
  std::filesystem::remove_all(folder);
}

namespace {

constexpr std::size_t some = 9000;

ps::job_options one_table(int servers, const char* model) {
  return patient({.tables = {{.name = "dense", .size = some}},
                  .servers = servers,
                  .consistency_model = ps::parse_consistency(model)});
}

std::vector<float> all_of(ps::client& tables) {
  std::vector<float> found(some);
  tables.pull(0, found);
  return found;
}

}  // namespace

TEST_CASE("what is assigned or restored counts however old it is, also where old pushes are dropped") {
  const auto folder = std::filesystem::temp_directory_path() / ("muster-of-any-age-" + std::to_string(::getpid()));
  std::vector<float> values(some);
  for (std::size_t i = 0; i < some; ++i) values[i] = static_cast<float>(i);
  run_job(test::fabric::threads, 1, one_table(3, "async,drop=1"), [&](ps::job& job, muster::group& workers) {
    constexpr std::size_t piece = 100;  // many pieces in a range, and no pull before
    for (std::size_t at = 0; at < some; at += piece) job.tables().assign(0, std::span(values).subspan(at, piece), at);
    require(all_of(job.tables()) == values, "something that was assigned is not there");
    ps::save_tables(job, workers, folder);
  });
  run_job(test::fabric::threads, 1, one_table(1, "async,drop=0"), [&](ps::job& job, muster::group& workers) {
    require(ps::load_tables(job, workers, folder).has_value(), "nothing was saved");
    require(all_of(job.tables()) == values, "something that was restored is not there");
  });
  std::filesystem::remove_all(folder);
}

TEST_CASE("a save takes the place of a manifest that is damaged") {
  const auto folder = std::filesystem::temp_directory_path() / ("muster-over-damaged-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto foreign = folder / "notes.txt";
  std::ofstream(foreign) << "mine";
  for (const char* const part : {"{", "7", R"({"files": 7})", R"({"files": ["notes.txt"]})"}) {
    std::ofstream(folder / "tables.json") << part;
    run_job(test::fabric::threads, 1, one_table(1, "async"), [&](ps::job& job, muster::group& workers) {
      ps::save_tables(job, workers, folder);
      require(ps::load_tables(job, workers, folder).has_value(), "it is read");
    });
    CHECK(std::filesystem::exists(foreign));
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("a save removes no file that it names, also where the one before named it too") {
  const auto folder = std::filesystem::temp_directory_path() / ("muster-named-again-" + std::to_string(::getpid()));
  run_job(test::fabric::threads, 1, one_table(1, "async"), [&](ps::job& job, muster::group& workers) {
    const auto files = [&] {
      std::vector<std::filesystem::path> found;
      for (const auto& file : std::filesystem::directory_iterator(folder)) {
        if (file.path().extension() != ".json") found.push_back(file.path().filename());
      }
      return found;
    };
    ps::save_tables(job, workers, folder);
    const auto first = files();
    require(first.size() == 1, "there is one file");
    std::filesystem::remove(folder / first.front());  // as if another worker had not written the file yet
    ps::save_tables(job, workers, folder);
    require(files() == first, "it has the same name, and is there");
    require(ps::load_tables(job, workers, folder).has_value(), "and is read");
  });
  std::filesystem::remove_all(folder);
}

TEST_CASE("of two jobs that save into one folder the second is refused, and the first one's tables stay") {
  const auto folder = std::filesystem::temp_directory_path() / ("muster-two-jobs-" + std::to_string(::getpid()));
  const auto save = [&](ps::job& job, muster::group& workers, float value, int* status = nullptr) -> std::string {
    if (workers.rank() == 0) job.tables().assign(0, std::vector<float>(some, value));
    try {
      ps::save_tables(job, workers, folder);
    } catch (const muster::error& refused) {
      if (status != nullptr) *status = refused.exit_status();
      return refused.what();
    }
    return {};
  };
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(folder), {}); };
  const auto is_all = [&](float value) {
    bool is_equal = false;
    run_job(test::fabric::threads, 1, one_table(1, "async"), [&](ps::job& job, muster::group& workers) {
      require(ps::load_tables(job, workers, folder).has_value(), "nothing was saved");
      is_equal = all_of(job.tables()) == std::vector<float>(some, value);
    });
    return is_equal;
  };
  SECTION("one after the other") {
    run_job(test::fabric::threads, 1, one_table(1, "async"), [&](ps::job& first, muster::group& workers) {
      require(!ps::load_tables(first, workers, folder), "nothing was saved");
      run_job(test::fabric::threads, 1, one_table(1, "async"), [&](ps::job& second, muster::group& second_workers) {
        require(!ps::load_tables(second, second_workers, folder), "nothing was saved");
        require(save(second, second_workers, 2).empty(), "the first save is accepted");
        require(save(second, second_workers, 3).empty(), "a job replaces its own tables");
      });
      for (int k = 0; k < 2; ++k) {
        const auto problem = save(first, workers, 1);
        require(problem.find("belong to another job") != std::string::npos, "the save is refused");
        require(problem.find("give each job its own folder") != std::string::npos, "the error has a suggestion");
      }
    });
    CHECK(files() == 2);
    CHECK(is_all(3));
    run_job(test::fabric::threads, 1, one_table(1, "async"), [&](ps::job& later, muster::group& workers) {
      require(ps::load_tables(later, workers, folder).has_value(), "the tables are there");
      require(save(later, workers, 4).empty(), "a job replaces the tables that it loaded");
    });
    CHECK(files() == 2);
    CHECK(is_all(4));
  }
  SECTION("at the same time") {
    constexpr int jobs = 3;
    for (int round = 0; round < 5; ++round) {
      std::filesystem::remove_all(folder);
      std::barrier ready(jobs);
      std::vector<std::string> problems(jobs);
      std::vector<std::array<int, 2>> statuses(jobs);
      {
        std::vector<std::jthread> threads;
        for (int k = 0; k < jobs; ++k) {
          threads.emplace_back([&, k] {
            run_job(test::fabric::threads, 2, one_table(2, "async"), [&](ps::job& job, muster::group& workers) {
              require(!ps::load_tables(job, workers, folder), "nothing was saved");
              if (workers.rank() == 0) ready.arrive_and_wait();
              const auto index = static_cast<std::size_t>(k);
              int& status = statuses[index][static_cast<std::size_t>(workers.rank())];
              auto problem = save(job, workers, static_cast<float>(k + 1), &status);
              if (workers.rank() == 0) problems[index] = std::move(problem);
            });
          });
        }
      }
      CHECK(std::ranges::count(problems, "") == 1);
      for (const auto& [first_status, second_status] : statuses) CHECK(first_status == second_status);
      const auto winner = std::ranges::find(problems, "") - problems.begin();
      CHECK(is_all(static_cast<float>(winner + 1)));
      CHECK(files() == 3);  // the manifest, and a file from each of the winner's workers
    }
  }
  SECTION("by servers without workers") {
    const std::vector<ps::table_spec> tables = {{.name = "dense", .size = some, .ranges = 1}};
    const ps::table_layout layout(tables, 1);
    const auto until = muster::deadline_after(muster::seconds(60));
    const auto outcome_of = [&](const ps::detail::saved_folders& folders) {
      ps::detail::save_by_servers save(std::make_shared<muster::memory_store>(), "saved", folder, folders);
      save.add(layout, 1, {.ranges = {0}}, until);
      return save.outcome(until).value();
    };
    ps::detail::saved_folders first("first"), second("second");
    first.note_owner(folder);
    second.note_owner(folder);
    CHECK(outcome_of(first).empty());
    CHECK(outcome_of(first).empty());
    CHECK_THAT(outcome_of(second), contains("belong to another job"));
    CHECK(files() == 2);
    ps::detail::saved_folders third("third");
    third.note_owner(folder);
    CHECK(outcome_of(third).empty());
    CHECK_THAT(outcome_of(first), contains("belong to another job"));
    CHECK(files() == 2);
  }
  std::filesystem::remove_all(folder);
}

namespace {

/// A store that carries out every operation, and then loses the answer to every other swap.
class losing_store final : public muster::any_store {
 public:
  muster::store_entry get(std::string_view key, muster::clock::time_point until) override {
    return store_.get(key, until);
  }
  muster::store_swap compare_and_swap(std::string_view key, std::uint64_t expected,
                                      std::optional<std::string_view> value, muster::clock::time_point until,
                                      muster::store_life life = muster::store_life::of_store) override {
    auto done = store_.compare_and_swap(key, expected, value, until, life);
    if (++swaps_ % 2 == 1) throw muster::timeout_error("compare_and_swap", {}, "the answer was lost");
    return done;
  }
  std::optional<muster::store_entry> watch(std::string_view key, std::uint64_t version, muster::clock::time_point until,
                                           const std::stop_token& stop) override {
    return store_.watch(key, version, until, stop);
  }
  [[nodiscard]] std::string where() const override { return store_.where(); }

 private:
  muster::memory_store store_;
  int swaps_ = 0;
};

}  // namespace

TEST_CASE("servers that save without workers add their files once, also where the store's answer was lost") {
  const auto folder = std::filesystem::temp_directory_path() / ("muster-added-once-" + std::to_string(::getpid()));
  const std::vector<ps::table_spec> tables = {{.name = "dense", .size = some, .ranges = 3}};
  const ps::table_layout layout(tables, 2);
  const auto store = std::make_shared<losing_store>();
  const auto until = muster::deadline_after(muster::seconds(60));
  ps::detail::save_by_servers first(store, "saved", folder), second(store, "saved", folder);
  const auto add = [&](ps::detail::save_by_servers& save, std::uint32_t self, std::vector<ps::range_id> ranges) {
    save.add(layout, self, {.ranges = std::move(ranges)}, until);
  };
  CHECK_THROWS_AS(add(first, 1, {0, 1}), muster::timeout_error);
  add(first, 1, {0, 1});
  CHECK(!first.outcome(until));
  add(second, 2, {2});
  CHECK(first.outcome(until) == "");
  // The manifest and a file for each server.
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 3);
  std::filesystem::remove_all(folder);
}
