// muster's mpi transport and collectives, on hosts that SimGrid simulates. smpicxx compiles it, smpirun starts it.
//
//   smpirun -np 64 -platform p.xml ... simulate allreduce --bytes 1048576 --how ring
//   ... simulate allreduce --bytes 1048576 --how hierarchical --per-host 16         # within leaves, then between
//   ... simulate step --model resnet20 --batch 32 --compute 0.17 --bucket 262144    # gradients in buckets
//   ... simulate servers --servers 10 --model vgg16 --batch 32 --compute 1.9        # the other ranks are trainers
//
// muster-bench starts it with the platform and all flags (launcher: simgrid, docs/platform.md). Times are simulated:
// computation takes the time of --compute only, and messages take the time of the platform. One line is printed.
#include <mpi.h>
#include <simgrid/s4u.hpp>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <muster/muster.hpp>

#include "../../src/comm/transports/mpi/mpi_transport.hpp"
#include "models.hpp"
#include "servers.hpp"

namespace {

using words = std::map<std::string, std::string>;

double number(const words& flags, const std::string& name) {
  const auto found = flags.find(name);
  if (found == flags.end()) throw muster::configuration_error("--" + name + " is missing (it has no default); give it");
  return std::stod(found->second);
}

muster::algorithm by_name(const std::string& name) {
  for (const auto algorithm : muster::known_algorithms()) {
    if (muster::to_string(algorithm) == name) return algorithm;
  }
  throw muster::configuration_error("unknown algorithm '" + name + "' (see docs/collectives.md); use a known name");
}

/// Returns the seconds from a moment at which all ranks begin to the moment at which the last rank is done.
template <class Call>
double timed(muster::group& world, Call call) {
  const double begin = muster::allreduce(world, simgrid_get_clock(), muster::max) + 1e-3;
  simgrid::s4u::this_actor::sleep_until(begin);
  call();
  return muster::allreduce(world, simgrid_get_clock(), muster::max) - begin;
}

/// A hierarchical allreduce: data are reduced in parts within a host's ranks (or a leaf of the tree), each part is
/// reduced between the hosts, and the parts are gathered. No byte leaves a host twice.
class hierarchy {
 public:
  hierarchy(muster::group& world, int per_host)
      : inner_(world.split(world.rank() / per_host, world.rank())), outer_(world.split(inner_.rank(), world.rank())) {
    if (world.size() % per_host != 0) {
      throw muster::configuration_error("--per-host does not divide the ranks (hosts are alike here); change it");
    }
  }
  void allreduce(std::span<float> data) {
    const std::size_t part = data.size() / static_cast<std::size_t>(inner_.size());
    std::vector<float> mine(part);
    muster::reduce_scatter(inner_, data.first(part * static_cast<std::size_t>(inner_.size())), std::span(mine),
                           muster::sum);
    muster::allreduce(outer_, std::span(mine), muster::sum);
    muster::allgather(inner_, std::span(mine), data.first(part * static_cast<std::size_t>(inner_.size())));
  }

 private:
  muster::group inner_, outer_;
};

void allreduce(muster::group& world, const words& flags) {
  const auto bytes = static_cast<std::size_t>(number(flags, "bytes"));
  const std::string algorithm = flags.at("how");
  std::vector<float> data(bytes / sizeof(float), 1.0f);
  double time = 0;
  if (algorithm == "hierarchical") {
    hierarchy levels(world, static_cast<int>(number(flags, "per-host")));
    time = timed(world, [&] { levels.allreduce(data); });
  } else {
    const muster::collective_options call_options{.algorithm = by_name(algorithm)};
    time = timed(world, [&] { muster::allreduce(world, std::span(data), muster::sum, call_options); });
  }
  for (const float value : data) {
    if (value != static_cast<float>(world.size())) {
      throw muster::configuration_error("a wrong sum (its time would mean nothing); look for the mistake");
    }
  }
  // A switch lets a host send to all others at once. An additional message adds only the sending time of SimGrid's MPI.
  constexpr double next_message = 0.5;
  const double reduction =
      flags.contains("reduction") ? number(flags, "reduction") : 0.0;  // Only the model defines it.
  const muster::transport_costs costs{number(flags, "latency"), 1 / number(flags, "bandwidth"), reduction,
                                      next_message};
  double model = 0;
  if (algorithm != "hierarchical")
    model = muster::estimate(muster::collective::allreduce, by_name(algorithm), bytes, world.size(), costs);
  if (world.rank() == 0) {
    std::printf("allreduce %s ranks %d bytes %zu seconds %.9g model %.9g\n", algorithm.c_str(), world.size(), bytes,
                time, model);
  }
}

/// The memory provider of the arena.
struct plain_memory {
  template <class T>
  muster::buffer<T> allocate(std::size_t size) {
    return muster::buffer<T>(size);
  }
};

/// Simulates a step: a third of the time is the forward pass, and two thirds the backward pass, with equal layers.
/// ResNets and VGG are nearly like this.
void step(muster::group& world, const words& flags) {
  plain_memory memory;
  muster::arena arena(memory, simulation::tensors_of(flags.at("model")));
  muster::gradient_sync sync(arena, {.bucket = static_cast<std::size_t>(number(flags, "bucket"))});
  const double compute = number(flags, "compute");
  const std::size_t tensors = arena.shapes().size();
  const auto pass = [&] {
    smpi_execute(compute / 3);
    auto backward = sync.begin(world);
    backward.add_samples(1);
    for (std::size_t tensor = tensors; tensor-- > 0;) {
      smpi_execute(compute * 2 / 3 / static_cast<double>(tensors));
      backward.ready(tensor);
    }
    backward.wait();
    sync.commit();
  };
  pass();
  const double time = timed(world, pass);
  if (world.rank() == 0) {
    std::printf("step %s ranks %d buckets %zu compute %.9g seconds %.9g throughput %.9g\n", flags.at("model").c_str(),
                world.size(), sync.buckets().size(), compute, time, number(flags, "batch") * world.size() / time);
  }
}

void servers(muster::group& world, const words& flags) {
  const int count = static_cast<int>(number(flags, "servers"));
  std::size_t values = 0;
  for (const auto& shape : simulation::tensors_of(flags.at("model"))) values += shape.size();
  const simulation::service setup{count, values * sizeof(float), number(flags, "compute"),
                                  flags.contains("asynchronous")};
  // Steps of synchronous trainers are all alike. Asynchronous trainers are at different steps, and each has its own
  // rate.
  const int steps = setup.asynchronous ? 4 : 1;
  double own = 0;
  double time = timed(world, [&] { own = simulation::serve_or_train(world, setup, steps); });
  if (setup.asynchronous) {
    const double rate = muster::allreduce(world, own > 0 ? steps / own : 0.0, muster::sum);
    time = (world.size() - count) / rate;
  }
  if (world.rank() == 0) {
    const int trainers = world.size() - count;
    std::printf("servers %d trainers %d bytes %zu compute %.9g seconds %.9g throughput %.9g\n", count, trainers,
                setup.bytes, setup.compute, time, number(flags, "batch") * trainers / time);
  }
}

int run(int argc, char** argv) {
  words flags;
  for (int i = 2; i < argc; ++i) {
    const std::string word(argv[i]);
    if (!word.starts_with("--")) throw muster::configuration_error("'" + word + "' is no flag; drop it");
    const bool alone = i + 1 == argc || std::string(argv[i + 1]).starts_with("--");
    flags[word.substr(2)] = alone ? "" : argv[++i];
  }
  // Declared oversubscribed, so that a waiting rank yields the processor at once: see waiting.cpp. The clock is
  // simulated.
  auto library = muster::detail::mpi_library::acquire();
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  auto transport = std::make_unique<muster::detail::mpi_transport>(std::move(library), comm, /*oversubscribed=*/true);
  muster::group world(std::move(transport), {.timeout = muster::seconds(1e6)});
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "allreduce") {
    allreduce(world, flags);
  } else if (mode == "step") {
    step(world, flags);
  } else if (mode == "servers") {
    servers(world, flags);
  } else {
    throw muster::configuration_error("nothing to simulate (allreduce, step or servers); see the top of simulate.cpp");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulate: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  return 2;
}
