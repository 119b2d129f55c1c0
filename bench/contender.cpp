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
  registered_ = {};  // before the next, so that both are not there at once
  if (context_->transport_name() == "shm") registered_ = context_->allocate<float>(count);
}

namespace {

muster::collective kind_of(op what) {
  switch (called(what)) {
    case op::broadcast:
      return muster::collective::broadcast;
    case op::reduce:
      return muster::collective::reduce;
    default:
      return muster::collective::allreduce;
  }
}

void call_muster(op what, muster::group& world, std::span<float> data, muster::algorithm how) {
  switch (called(what)) {
    default:
      muster::allreduce(world, data, muster::sum, {.algorithm = how});
      break;
    case op::broadcast:
      muster::broadcast(world, data, 0, {.algorithm = how});
      break;
    case op::reduce:
      muster::reduce(world, data, data, muster::sum, 0, {.algorithm = how});
      break;
  }
}

std::vector<double> time_group(op what, muster::group& world, std::span<float> data, repeats count,
                               muster::algorithm how) {
  check_result(what, world.rank(), world.size(), data,
               [&](std::span<float> all) { call_muster(what, world, all, how); });
  return slowest_times(what, world, data, count, [&] { call_muster(what, world, data, how); });
}

// mpirun binds each process to a core of its own, which all its threads inherit. So each thread gets one of its own too
// (two that spin on one core wait for each other's time slices), or all where there are more threads than cores.
void use_own_core(int rank, int ranks) {
  const long cores = std::min<long>(sysconf(_SC_NPROCESSORS_ONLN), CPU_SETSIZE);
  cpu_set_t set;
  CPU_ZERO(&set);
  for (long core = 0; core < cores; ++core) {
    if (ranks > cores || core == rank) CPU_SET(core, &set);
  }
  sched_setaffinity(0, sizeof set, &set);  // of the calling thread; where it is not allowed the numbers are worse
}

std::vector<double> time_threads(op what, int ranks, workspace& memory, repeats count, muster::algorithm how) {
  const auto hub = std::make_shared<muster::thread_hub>(ranks);
  std::vector<double> times;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      use_own_core(rank, ranks);
      muster::group world(std::make_unique<muster::thread_transport>(hub, rank));
      auto mine = time_group(what, world, memory.plain(rank), count, how);
      if (rank == 0) times = std::move(mine);
    });
  }
  threads.clear();  // joins
  return times;
}

// The transport's own allreduce with nothing around it: no deadline, no look for ranks that gave up, no group. What a
// call of the group takes beyond that is the price of these.
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

// Lets the other processes sleep while rank 0's threads work: they would take their cores.
void wait_asleep(muster::group& world) {
  auto all_there = muster::barrier_async(world, {.timeout = muster::seconds(600)});
  while (!all_there.test()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// What the library chooses, and on request each algorithm by its name.
std::vector<muster::algorithm> algorithms(op what, bool by_name, bool native) {
  std::vector<muster::algorithm> list{muster::algorithm::automatic};
  if (!by_name) return list;
  for (const auto how : muster::algorithms_of(kind_of(what))) {
    if (how != muster::algorithm::native || native) list.push_back(how);
  }
  return list;
}

std::string suffix(muster::algorithm how) {
  return how == muster::algorithm::automatic ? "" : "_" + std::string(to_string(how));
}

void add_threads(std::vector<contender>& list, op what, muster::context& context, bool by_name) {
  const int ranks = context.ranks();
  for (const auto how : algorithms(what, by_name, false)) {
    list.push_back({what, "muster_local" + suffix(how), ranks, [=, &context](workspace& memory, repeats count) {
                      if (context.transport_name() == "threads") return time_threads(what, ranks, memory, count, how);
                      std::vector<double> times;
                      if (context.world().rank() == 0) times = time_threads(what, ranks, memory, count, how);
                      wait_asleep(context.world());
                      return times;
                    }});
  }
}

void add_group(std::vector<contender>& list, op what, const std::string& name, muster::group& world, bool by_name) {
  for (const auto how : algorithms(what, by_name, true)) {
    list.push_back({what, name + suffix(how), world.size(), [=, &world](workspace& memory, repeats count) {
                      return time_group(what, world, memory.plain(), count, how);
                    }});
  }
}

}  // namespace

std::vector<contender> muster_contenders(op what, muster::context& context, muster::group* over_mpi, bool by_name) {
  std::vector<contender> list;
  if (context.transport_name() == "shm") {
    auto& world = context.world();
    list.push_back({what, "muster_shm_registered", world.size(), [=, &world](workspace& memory, repeats count) {
                      return time_group(what, world, memory.registered(), count, muster::algorithm::automatic);
                    }});
    add_group(list, what, "muster_shm", world, by_name);
    if (what == op::allreduce && !world.transport().oversubscribed()) {  // it spins
      const auto apart = std::make_shared<muster::group>(world.duplicate());
      list.push_back({what, "muster_shm_bare", world.size(),
                      [=, sequence = std::uint64_t{0}](workspace& memory, repeats count) mutable {
                        return time_bare(*apart, sequence, memory.plain(), count);
                      },
                      smallest});
    }
  }
  if (context.transport_name() == "tcp") add_group(list, what, "muster_tcp", context.world(), by_name);
  add_threads(list, what, context, by_name);
  if (over_mpi == nullptr) return list;
  add_group(list, what, "muster_mpi", *over_mpi, by_name);
  if (by_name) {
    list.push_back({what, "muster_mpi_native_checked", over_mpi->size(), [=](workspace& memory, repeats count) {
                      const auto before = over_mpi->settings();
                      auto checked = before;
                      checked.check_full = true;
                      over_mpi->set_settings(checked);
                      auto times = time_group(what, *over_mpi, memory.plain(), count, muster::algorithm::native);
                      over_mpi->set_settings(before);
                      return times;
                    }});
  }
  return list;
}

}  // namespace bench
