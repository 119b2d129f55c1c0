// Ranges that are saved while a job runs: which file counts, and how much workers hold.
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/rendezvous/memory_store.hpp>
#include <muster/core/error.hpp>
#include <muster/ps/job.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "ps/range_files.hpp"

namespace ps = muster::ps;

namespace {

std::shared_ptr<muster::any_store> make_store() {
  return std::make_shared<muster::any_store>(std::make_unique<muster::memory_store>());
}

class folder {
 public:
  folder() { std::filesystem::create_directories(path_); }
  ~folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("muster-recovery-" + std::to_string(::getpid()));
};

ps::detail::range_files::result await(ps::detail::range_files& files) {
  const auto until = muster::clock::now() + std::chrono::seconds(20);
  while (muster::clock::now() < until) {
    if (auto one = files.take()) return std::move(*one);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw std::runtime_error("nothing comes of it");
}

}  // namespace

TEST_CASE("what was saved is what is taken over, and a former owner changes nothing any more") {
  const folder where;
  const auto store = make_store();
  ps::detail::range_files former(store, "ps/1", where.path());
  ps::detail::range_files next(store, "ps/1", where.path());
  former.load(7, 2);
  auto came = await(former);
  CHECK((came.loads && came.state.empty()));  // nothing was saved yet
  former.save(7, 2, 10, "ten");
  came = await(former);
  CHECK((!came.loads && came.done && came.index == 10));
  former.save(7, 2, 20, std::string(100000, 'x'));
  CHECK(await(former).done);
  next.load(7, 5);
  came = await(next);
  CHECK((came.range == 7 && came.epoch == 5 && came.state == std::string(100000, 'x')));
  former.save(7, 2, 30, "thirty");
  CHECK(!await(former).done);
  former.load(7, 4);  // is told nothing
  next.save(7, 5, 21, "twenty-one");
  CHECK(await(next).done);
  next.load(7, 6);
  CHECK(await(next).state == "twenty-one");
  CHECK(!former.take());
  // One file a range: what does not count any more goes.
  const auto count = std::distance(std::filesystem::recursive_directory_iterator(where.path()),
                                   std::filesystem::recursive_directory_iterator());
  CHECK(count == 2);  // and its folder
}

TEST_CASE("two who take a range over one after the other have the same, whoever saves meanwhile") {
  const folder where;
  const auto store = make_store();
  ps::detail::range_files writer(store, "ps/1", where.path());
  for (std::uint64_t index = 1; index <= 50; ++index) writer.save(0, 1, index, std::to_string(index));
  ps::detail::range_files one(store, "ps/1", where.path());
  ps::detail::range_files other(store, "ps/1", where.path());
  one.load(0, 2);
  const auto first = await(one).state;
  other.load(0, 3);
  CHECK(await(other).state == first);
  std::uint64_t last = 0;  // that its writer could tell anybody of
  for (int i = 0; i < 50; ++i) {
    const auto told = await(writer);
    if (told.done) last = told.index;
  }
  CHECK(first == (last == 0 ? "" : std::to_string(last)));
}

TEST_CASE("workers that hold little wait until it is saved, and all of it counts") {
  const auto over = GENERATE(test::fabric::local, test::fabric::shm);
  INFO(over);
  const folder where;
  constexpr std::size_t size = 40000;
  ps::job_options options{.tables = {{.name = "a", .size = size}, {.name = "rows"}}, .servers = 2};
  options.recover = where.path();
  options.save_every = muster::seconds(0.05);
  options.retry = muster::seconds(0.05);
  options.silence = muster::seconds(20);
  options.timeout = muster::seconds(60);
  options.hold = 400000;  // two and a half of the pushes
  const auto store = make_store();
  test::run_ranks(over, 4, [&](muster::group& world) {
    ps::job job(world, options, store);
    auto workers = world.split(job.is_server() ? 0 : 1);
    if (job.is_server()) return job.serve();
    auto& tables = job.tables();
    const std::vector<float> ones(size, 1.0f);
    const std::vector<std::uint64_t> keys = {1, 2};
    const std::vector<float> rows = {1.0f, 2.0f};
    for (int step = 0; step < 25; ++step) {
      tables.push(0, ones);
      tables.push(1, keys, rows);
      tables.next_clock();
    }
    muster::barrier(workers);
    std::vector<float> found(size);
    tables.pull(0, found);
    if (std::any_of(found.begin(), found.end(), [](float one) { return one != 50.0f; }))
      throw std::runtime_error("the sums");
    muster::barrier(workers);
    job.finish();
  });
  CHECK(std::filesystem::is_empty(where.path()));  // the job is over
}

TEST_CASE("a folder that servers cannot write to is refused") {
  const folder where;
  const auto file = where.path() / "file";
  std::ofstream(file) << "no folder";
  ps::job_options options{.tables = {{.name = "a", .size = 4}}};
  options.recover = file;
  const auto store = make_store();
  CHECK_THROWS_AS(test::run_ranks(2, [&](muster::group& world) { ps::job job(world, options, store); }), muster::error);
}
