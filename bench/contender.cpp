#include "contender.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include <muster/comm/algorithms/chooser.hpp>

#include "ranks.hpp"

namespace bench {

void workspace::resize(std::size_t bytes) {
  const auto count = bytes / sizeof(float);
  const bool threads_here = context_->transport_name() == "threads" || context_->world().rank() == 0;
  of_threads_.clear();
  of_threads_.resize(threads_here ? static_cast<std::size_t>(context_->ranks()) : 1, std::vector<float>(count));
  registered_ = {};  // Released before the next allocation, so that both do not exist at once.
  if (context_->transport_name() == "shm") registered_ = context_->allocate<float>(count);
}

namespace {

muster::collective kind_of(op operation) {
  switch (called(operation)) {
    case op::broadcast:
      return muster::collective::broadcast;
    case op::reduce:
      return muster::collective::reduce;
    default:
      return muster::collective::allreduce;
  }
}

void call_muster(op operation, muster::group& world, std::span<float> data, const muster::collective_options& options) {
  switch (called(operation)) {
    default:
      muster::allreduce(world, data, muster::sum, options);
      break;
    case op::broadcast:
      muster::broadcast(world, data, 0, options);
      break;
    case op::reduce:
      muster::reduce(world, data, data, muster::sum, 0, options);
      break;
  }
}

std::vector<double> time_group(op operation, muster::group& world, std::span<float> data, repeats count,
                               const muster::collective_options& options) {
  check_result(operation, world.rank(), world.size(), data,
               [&](std::span<float> all) { call_muster(operation, world, all, options); });
  return slowest_times(operation, world, data, count, [&] { call_muster(operation, world, data, options); });
}

// Binds each thread to its own core. mpirun binds each process to a core, which all its threads inherit, and two
// threads that spin on one core wait for each other's time slices. If there are more threads than cores, a thread may
// use all cores.
void use_own_core(int rank, int ranks) {
  const long cores = std::min<long>(sysconf(_SC_NPROCESSORS_ONLN), CPU_SETSIZE);
  cpu_set_t set;
  CPU_ZERO(&set);
  for (long core = 0; core < cores; ++core) {
    if (ranks > cores || core == rank) CPU_SET(core, &set);
  }
  // Applies to the calling thread. If it is not permitted, the measured times are worse.
  sched_setaffinity(0, sizeof set, &set);
}

std::vector<double> time_threads(op operation, int ranks, workspace& memory, repeats count,
                                 muster::algorithm algorithm) {
  const auto hub = std::make_shared<muster::thread_hub>(ranks);
  std::vector<double> times;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      use_own_core(rank, ranks);
      muster::group world(std::make_unique<muster::thread_transport>(hub, rank));
      auto mine = time_group(operation, world, memory.plain(rank), count, {.algorithm = algorithm});
      if (rank == 0) times = std::move(mine);
    });
  }
  threads.clear();  // Joins the threads.
  return times;
}

// Measures the transport's own allreduce without a deadline, a check for failed ranks or a group. The difference from a
// call of the group shows what the deadline, check and group cost.
std::vector<double> time_bare(muster::group& apart, std::uint64_t& sequence, std::span<float> data, repeats count) {
  auto& transport = apart.transport();
  auto call =
      muster::detail::make_call(muster::collective::allreduce, data, data, data.size(),
                                {.algorithm = muster::algorithm::native}, 0, muster::reduction::of<float>(muster::sum));
  const auto once = [&] {
    muster::request pending;
    call.sequence = ++sequence;
    transport.native(call, pending);
    while (!transport.test(pending)) {
    }
  };
  check_result(op::allreduce, apart.rank(), apart.size(), data, [&](std::span<float>) { once(); });
  auto stamps = call_stamps(op::allreduce, data, count, once, once);
  muster::allreduce(apart, stamps, muster::max);
  return seconds_of(stamps);
}

// Lets the other processes sleep while rank 0's threads work; otherwise the processes would occupy the cores.
void wait_asleep(muster::group& world) {
  auto all_there = muster::barrier_async(world, {.timeout = muster::seconds(600)});
  while (!all_there.test()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Returns the library's choice, and on request each algorithm by its name.
std::vector<muster::algorithm> algorithms(op operation, bool by_name, bool native) {
  std::vector<muster::algorithm> list{muster::algorithm::automatic};
  if (!by_name) return list;
  for (const auto algorithm : muster::algorithms_of(kind_of(operation))) {
    if (algorithm != muster::algorithm::native || native) list.push_back(algorithm);
  }
  return list;
}

std::string suffix(muster::algorithm algorithm) {
  return algorithm == muster::algorithm::automatic ? "" : "_" + std::string(to_string(algorithm));
}

void add_threads(std::vector<contender>& list, op operation, muster::context& context, bool by_name) {
  const int ranks = context.ranks();
  for (const auto algorithm : algorithms(operation, by_name, false)) {
    list.push_back(
        {operation, "muster_local" + suffix(algorithm), ranks, [=, &context](workspace& memory, repeats count) {
           if (context.transport_name() == "threads") return time_threads(operation, ranks, memory, count, algorithm);
           std::vector<double> times;
           if (context.world().rank() == 0) times = time_threads(operation, ranks, memory, count, algorithm);
           wait_asleep(context.world());
           return times;
         }});
  }
}

void add_group(std::vector<contender>& list, op operation, const std::string& name, muster::group& world,
               bool by_name) {
  for (const auto algorithm : algorithms(operation, by_name, true)) {
    list.push_back({operation, name + suffix(algorithm), world.size(), [=, &world](workspace& memory, repeats count) {
                      return time_group(operation, world, memory.plain(), count, {.algorithm = algorithm});
                    }});
  }
  if (!by_name || called(operation) != op::allreduce) return;
  list.push_back({operation, name + "_reproducible", world.size(), [=, &world](workspace& memory, repeats count) {
                    return time_group(operation, world, memory.plain(), count, {.reproducible = true});
                  }});
}

}  // namespace

std::vector<contender> muster_contenders(op operation, muster::context& context, muster::group* over_mpi,
                                         bool by_name) {
  std::vector<contender> list;
  if (context.transport_name() == "shm") {
    auto& world = context.world();
    list.push_back({operation, "muster_shm_registered", world.size(), [=, &world](workspace& memory, repeats count) {
                      return time_group(operation, world, memory.registered(), count, {});
                    }});
    add_group(list, operation, "muster_shm", world, by_name);
    if (operation == op::allreduce && !world.transport().oversubscribed()) {  // The bare allreduce spins.
      const auto apart = std::make_shared<muster::group>(world.duplicate());
      list.push_back({operation, "muster_shm_bare", world.size(),
                      [=, sequence = std::uint64_t{0}](workspace& memory, repeats count) mutable {
                        return time_bare(*apart, sequence, memory.plain(), count);
                      },
                      smallest});
    }
  }
  if (context.transport_name() == "tcp") add_group(list, operation, "muster_tcp", context.world(), by_name);
  add_threads(list, operation, context, by_name);
  if (over_mpi == nullptr) return list;
  add_group(list, operation, "muster_mpi", *over_mpi, by_name);
  if (by_name) {
    list.push_back({operation, "muster_mpi_native_checked", over_mpi->size(), [=](workspace& memory, repeats count) {
                      const auto before = over_mpi->settings();
                      auto checked = before;
                      checked.check_full = true;
                      over_mpi->set_settings(checked);
                      auto times = time_group(operation, *over_mpi, memory.plain(), count,
                                              {.algorithm = muster::algorithm::native});
                      over_mpi->set_settings(before);
                      return times;
                    }});
  }
  return list;
}

}  // namespace bench
