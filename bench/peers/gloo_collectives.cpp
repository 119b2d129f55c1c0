// Gloo's allreduces over TCP on the loopback, without muster, under the same protocol as bench/collectives:
//   build/release/bench/peers/gloo_collectives RANKS [BYTES...]
// The ranks are processes that this program starts. Rows: gloo_<algorithm> (Gloo's own thread moves the data), _sync
// (the calling thread moves the data), _busy (the calling thread also polls), and gloo_default, the default algorithm
// of `gloo::allreduce`. With --turns=FOLDER after RANKS the program takes turns (bench/turns.hpp).
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>

#include "../turns.hpp"

namespace {

using context_ptr = std::shared_ptr<gloo::rendezvous::Context>;
using call = std::function<void()>;

// A rank's connections, in a mode of Gloo for moving data.
enum class mode { threaded, sync, busy };
constexpr const char* mode_suffix[] = {"", "_sync", "_busy"};

context_ptr connect(const std::string& folder, int rank, int ranks, mode way) {
  gloo::transport::tcp::attr where;
  where.iface = "lo";
  auto device = gloo::transport::tcp::CreateDevice(where);
  gloo::rendezvous::FileStore store(folder);
  gloo::rendezvous::PrefixStore apart("way" + std::to_string(static_cast<int>(way)), store);
  auto connections = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  connections->connectFullMesh(apart, device);
  for (int peer = 0; peer < ranks && way != mode::threaded; ++peer) {
    if (peer != rank) connections->getPair(peer)->setSync(true, way == mode::busy);
  }
  return connections;
}

template <class Algorithm>
call by(const context_ptr& over, std::span<float> data) {
  auto call = std::make_shared<Algorithm>(over, std::vector<float*>{data.data()}, static_cast<int>(data.size()));
  return [call] { call->run(); };
}

class rank_of_gloo {
 public:
  rank_of_gloo(const std::string& folder, int rank, int ranks) : rank_(rank), ranks_(ranks) {
    // With more ranks than cores, ranks that poll delay the ranks for which they wait: milliseconds a call.
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    for (const mode way : {mode::threaded, mode::sync, mode::busy}) {
      if (way == mode::busy && ranks > cores) continue;
      ways_.push_back(connect(folder, rank, ranks, way));
      for (const char* const name : {"gloo_ring", "gloo_ring_chunked", "gloo_halving_doubling"})
        names_.push_back(name + std::string(mode_suffix[static_cast<int>(way)]));
    }
    names_.emplace_back("gloo_default");
  }

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  [[nodiscard]] std::vector<double> time(bench::op operation, const std::string& name, std::span<float> data,
                                         bench::repeats count) const {
    const call once = find(name, data);
    bench::check_result(bench::op::allreduce, rank_, ranks_, data, [&](std::span<float>) { once(); });
    auto stamps = bench::call_stamps(
        operation, data, count,
        [&] {
          gloo::BarrierOptions options(ways_[0]);
          gloo::barrier(options);
        },
        once);
    gloo::AllreduceOptions options(ways_[0]);
    options.setOutput(stamps.data(), stamps.size());
    options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t n) {
      gloo::max<std::int64_t>(static_cast<std::int64_t*>(out), static_cast<const std::int64_t*>(a),
                              static_cast<const std::int64_t*>(b), n);
    });
    gloo::allreduce(options);
    return bench::seconds_of(stamps);
  }

 private:
  [[nodiscard]] call find(const std::string& name, std::span<float> data) const {
    if (name == "gloo_default") {
      return [this, data] {
        gloo::AllreduceOptions options(ways_[0]);
        options.setOutput(data.data(), data.size());
        options.setReduceFunction([](void* out, const void* a, const void* b, std::size_t n) {
          gloo::sum<float>(static_cast<float*>(out), static_cast<const float*>(a), static_cast<const float*>(b), n);
        });
        gloo::allreduce(options);
      };
    }
    const auto way = name.ends_with("_busy") ? 2u : name.ends_with("_sync") ? 1u : 0u;
    if (name.starts_with("gloo_ring_chunked")) return by<gloo::AllreduceRingChunked<float>>(ways_.at(way), data);
    if (name.starts_with("gloo_ring")) return by<gloo::AllreduceRing<float>>(ways_.at(way), data);
    return by<gloo::AllreduceHalvingDoubling<float>>(ways_.at(way), data);
  }

  int rank_;
  int ranks_;
  std::vector<context_ptr> ways_;
  std::vector<std::string> names_;
};

void take_turns(bench::turns turns, const rank_of_gloo& gloo, int rank) {
  std::vector<float> data;
  while (const auto turn = turns.next()) {
    data.resize(turn->bytes / sizeof(float));
    // The command line has no contender name; it selects all contenders.
    const auto list = turn->contender.empty() ? gloo.names() : std::vector<std::string>{turn->contender};
    for (const auto& name : list) {
      (void)gloo.time(turn->operation, name, data, bench::warm_up_for(turn->operation, turn->bytes));
      const auto times = gloo.time(turn->operation, name, data, bench::repeats_for(turn->operation, turn->bytes));
      auto taken = *turn;
      taken.contender = name;
      if (rank == 0) bench::print_result(taken, times);
    }
  }
}

void use_own_core(int rank, int ranks) {
  const long cores = std::min<long>(sysconf(_SC_NPROCESSORS_ONLN), CPU_SETSIZE);
  if (ranks > cores) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(rank, &set);
  sched_setaffinity(0, sizeof set, &set);
}

int run(int rank, int ranks, const std::string& store, int argc, char** argv) {
  try {
    // Gloo's threads are created before this thread is bound, so that they may run on any core.
    const rank_of_gloo gloo(store, rank, ranks);
    use_own_core(rank, ranks);
    if (rank == 0) bench::print_ready(gloo.names(), "Gloo of Debian 12 (libgloo-dev)");
    const auto folder = bench::folder_of_turns(argc, argv);
    const bench::op once[] = {bench::op::allreduce};
    take_turns(folder ? bench::turns(*folder, rank) : bench::turns(argc, argv, once), gloo, rank);
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "gloo_collectives: error: %s\n", failure.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  if (ranks < 2) {
    std::fputs("usage: gloo_collectives RANKS [BYTES...] (RANKS is 2 or more)\n", stderr);
    return 2;
  }
  char store[] = "/tmp/muster_gloo_XXXXXX";
  if (mkdtemp(store) == nullptr) {
    std::perror("gloo_collectives: mkdtemp");
    return 1;
  }
  std::vector<pid_t> others;
  int status = 0;
  int rank = 0;
  const pid_t parent = getpid();
  for (int r = 1; r < ranks && rank == 0; ++r) {
    const pid_t child = fork();
    if (child < 0) std::perror("gloo_collectives: fork");
    if (child < 0) break;
    if (child > 0) others.push_back(child);
    if (child == 0) rank = r;
  }
  if (rank != 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 1;
    return run(rank, ranks, store, argc - 1, argv + 1);
  }
  if (static_cast<int>(others.size()) + 1 == ranks) status = run(0, ranks, store, argc - 1, argv + 1);
  for (const pid_t other : others) {
    int ended = 0;
    if (status != 0) kill(other, SIGKILL);
    if (waitpid(other, &ended, 0) != other || ended != 0) status = 1;
  }
  std::error_code ignored;
  std::filesystem::remove_all(store, ignored);
  return status;
}
