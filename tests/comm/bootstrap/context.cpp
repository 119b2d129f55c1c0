#include <muster/comm/context.hpp>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/core/error.hpp>
#include "catch.hpp"
#include "command_line.hpp"
#include "heard_log.hpp"

namespace {

muster::launch_env detect(const std::map<std::string, std::string>& variables) {
  return muster::detect_launch([&](const char* name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    if (at == variables.end()) return std::nullopt;
    return at->second;
  });
}

}  // namespace

TEST_CASE("alone, the world is one rank over self") {
  test::command_line line({"app", "--epochs", "3"});
  muster::context context(line.argc, line.argv());
  CHECK(context.world().size() == 1);
  CHECK(context.transport_name() == "self");
  CHECK(line.argc == 3);
  CHECK(muster::allreduce(context.world(), 2.5, muster::mean) == 2.5);
}

TEST_CASE("with --ranks N a context runs the body as N ranks, each with its own world") {
  test::command_line line({"app", "--ranks", "5"});
  muster::context context(line.argc, line.argv());
  CHECK(context.ranks() == 5);
  CHECK(context.transport_name() == "threads");
  CHECK_THROWS_AS(context.world(), muster::configuration_error);
  std::atomic<int> sum{0};
  context.run([&](muster::group& world) {
    if (&context.world() != &world) throw std::runtime_error("the world of a thread is its own");
    sum += muster::allreduce(world, world.rank(), muster::sum);
  });
  CHECK(sum == 5 * 10);
}

TEST_CASE("the settings reach the groups") {
  test::command_line line({"app", "--ranks", "3", "--algorithm", "ring", "--timeout", "7"});
  muster::context context(line.argc, line.argv());
  context.run([](muster::group& world) {
    if (world.settings().timeout != muster::seconds(7)) throw std::runtime_error("timeout");
    if (world.chosen(muster::collective::allreduce, 4) != muster::algorithm::ring) throw std::runtime_error("ring");
    if (world.chosen(muster::collective::broadcast, 4) != muster::algorithm::tree)
      throw std::runtime_error("no ring there");
  });
}

TEST_CASE("rules reach the groups, those of threads and those that are split from them too") {
  test::command_line line(
      {"app", "--ranks", "3", "--algorithm",
       "allreduce:0-1000:tree,allreduce:1000-inf:ring,allreduce:1k-2k:halving_doubling,broadcast:chain"});
  muster::context context(line.argc, line.argv());
  context.run([](muster::group& world) {
    const auto chosen = [&](std::size_t bytes) { return world.chosen(muster::collective::allreduce, bytes); };
    if (chosen(999) != muster::algorithm::tree) throw std::runtime_error("the first rule");
    if (chosen(1000) != muster::algorithm::ring) throw std::runtime_error("the second rule");
    if (chosen(1024) != muster::algorithm::halving_doubling) throw std::runtime_error("the third rule");
    if (chosen(2048) != muster::algorithm::ring) throw std::runtime_error("behind the third rule");
    auto pair = world.split(world.rank() == 0 ? 1 : 0);
    if (pair.size() == 2 && pair.chosen(muster::collective::broadcast, 4) != muster::algorithm::chain)
      throw std::runtime_error("the rules of a split group");
  });
}

TEST_CASE("a body that throws at one rank ends the run at all, with its own reason") {
  test::command_line line({"app", "--ranks", "4"});
  muster::context context(line.argc, line.argv());
  CHECK_THROWS_WITH(context.run([](muster::group& world) {
    if (world.rank() == 2) throw muster::data_error({"x.txt", 1, 0}, "empty (no records) give another");
    muster::barrier(world);
  }),
                    "x.txt:1: empty (no records) give another");
  context.run([](muster::group& world) { muster::barrier(world); });  // the next run uses new threads
}

TEST_CASE("a rank that is a thread and returns early is a mismatch at the others, at once") {
  test::command_line line({"app", "--ranks", "3", "--timeout", "100"});
  muster::context context(line.argc, line.argv());
  CHECK_THROWS_AS(context.run([](muster::group& world) {
    if (world.rank() == 1) return;
    muster::barrier(world);
  }),
                  muster::mismatch_error);
}

TEST_CASE("a second context beside one that lives is refused") {
  test::command_line line({"app"});
  std::optional<muster::context> first(std::in_place, line.argc, line.argv());
  CHECK_THROWS_WITH(muster::context(line.argc, line.argv()), contains("a second context") && contains("pass"));
  first.reset();
  CHECK_THROWS_AS(
      [&] {
        test::command_line bad({"app", "--ranks", "0"});
        muster::context refused(bad.argc, bad.argv());
      }(),
      muster::configuration_error);
  muster::context next(line.argc, line.argv());  // after a context that ended, and one that could not be created
  CHECK(next.world().size() == 1);
}

#ifdef MUSTER_HAS_TCP
TEST_CASE("ranks of an elastic job that never meet say so, and where they cannot it is refused") {
  test::heard_log log;
  {
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    test::command_line line({"app", "--elastic", "on"});
    const muster::context context(line.argc, line.argv());
  }
  CHECK_THAT(log.text(), contains("the 2 ranks of the job never met (--elastic is on"));
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
  test::command_line threads({"app", "--elastic", "on", "--ranks", "4"});
  CHECK_THROWS_WITH(muster::context(threads.argc, threads.argv()), contains("--ranks asks for 4 ranks as threads"));
}
#endif

TEST_CASE("settings that contradict each other are refused") {
  const auto refuses = [](std::vector<std::string> words) {
    test::command_line line(std::move(words));
    CHECK_THROWS_AS(muster::context(line.argc, line.argv()), muster::configuration_error);
  };
  refuses({"app", "--ranks", "2", "--transport", "self"});
  refuses({"app", "--ranks", "0"});
  refuses({"app", "--transport", "pigeon"});
  refuses({"app", "--algorithm", "rings"});
  refuses({"app", "--algorithm", "allreduce:0-4k:chain"});
  refuses({"app", "--ranks", "2", "--algorithm", "native"});
  refuses({"app", "--timeout", "0"});
}

TEST_CASE("a name of the host has its effect or is refused") {
  muster::launch_env launch;
  launch.kind = muster::launch_env::launcher::open_mpi;
  launch.size = launch.local_size = 4;
  const auto planned = [&](std::vector<std::string> words) -> std::string {
    words.insert(words.begin(), "app");
    test::command_line line(std::move(words));
    try {
      return std::string(muster::detail::plan_world(muster::settings(line.argc, line.argv()), launch).transport.name);
    } catch (const muster::configuration_error& refused) {
      return refused.what();
    }
  };
  CHECK(planned({}) == "shm");
  CHECK(planned({"--host", "a"}) == "hierarchical");
  CHECK(planned({"--host", "a", "--transport", "shm"}).starts_with("--host sets the host of the rank"));
  launch = {};
  CHECK(planned({"--host", "a", "--ranks", "2"}).starts_with("--host sets the host of the rank"));
  CHECK(planned({"--host", "a"}) == "self");  // one rank is alone on any host
}

TEST_CASE("the launcher is found by its variables") {
  using launcher = muster::launch_env::launcher;
  CHECK(detect({}).kind == launcher::none);
  const auto open_mpi = detect({{"OMPI_COMM_WORLD_RANK", "2"},
                                {"OMPI_COMM_WORLD_SIZE", "4"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"RANK", "9"},
                                {"WORLD_SIZE", "10"}});
  CHECK(open_mpi.kind == launcher::open_mpi);
  CHECK(open_mpi.rank == 2);
  CHECK(open_mpi.size == 4);
  CHECK(open_mpi.local_rank == 1);
  CHECK(detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}}).kind == launcher::pmi);
  const auto by_hand = detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node1"}});
  CHECK(by_hand.size == 2);
  CHECK(by_hand.start_name.empty());
  CHECK(detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}}).start_name ==
        "node1.29500");
  CHECK(detect({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}}).kind == launcher::slurm);
  CHECK(detect({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}, {"PMIX_RANK", "1"}}).kind ==
        launcher::pmix);
  // Sizes that were set by hand for a process that PMIx started.
  CHECK(detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PMIX_RANK", "0"}}).kind == launcher::pmix);
  CHECK(detect({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).kind == launcher::none);  // a shell inside an allocation
  for (const char* const step : {"4294967290", "4294967291"}) {  // the steps of salloc, and of the script of sbatch
    CHECK(detect({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", step}, {"SLURM_STEP_NUM_TASKS", "1"}})
              .kind == launcher::none);
  }
  const auto step =
      detect({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  CHECK(step.size == 2);
  CHECK_FALSE(step.speaks_mpi());  // srun --mpi=none provides no PMI
  const auto of_torchrun = detect({{"SLURM_PROCID", "1"},
                                   {"SLURM_NTASKS", "2"},
                                   {"SLURM_STEP_ID", "0"},
                                   {"RANK", "5"},
                                   {"WORLD_SIZE", "8"},
                                   {"PMIX_RANK", "1"},
                                   {"TORCHELASTIC_RUN_ID", "none"}});
  CHECK(of_torchrun.kind == launcher::generic);
  CHECK(of_torchrun.rank == 5);
  CHECK(of_torchrun.size == 8);
}

TEST_CASE("a launcher environment that contradicts itself is refused by the variable's name") {
  const auto refused = [](const std::map<std::string, std::string>& variables) -> std::string {
    try {
      detect(variables);
    } catch (const muster::configuration_error& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("RANK=2 and WORLD_SIZE=2 contradict") != std::string::npos);
  CHECK(refused({{"RANK", "0"}}).find("WORLD_SIZE is not") != std::string::npos);
  CHECK(refused({{"OMPI_COMM_WORLD_SIZE", "2"}}).find("OMPI_COMM_WORLD_RANK is not") != std::string::npos);
  CHECK(refused({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}).find("RANK cannot be '-1'") != std::string::npos);
  CHECK(refused({{"RANK", "0"}, {"WORLD_SIZE", "two"}}).find("WORLD_SIZE cannot be 'two'") != std::string::npos);
  CHECK(refused({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "0"}}).find("contradict") !=
        std::string::npos);
}
