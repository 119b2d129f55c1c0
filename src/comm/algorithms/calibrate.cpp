#include <algorithm>
#include <map>

#include <muster/comm/algorithms/profile.hpp>
#include <muster/comm/block.hpp>
#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/reduce.hpp>
#include <muster/comm/collectives/reduce_scatter.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/clock.hpp>

namespace muster::inline v0 {
namespace {

constexpr collective measured[] = {collective::allreduce, collective::broadcast,      collective::reduce,
                                   collective::allgather, collective::reduce_scatter, collective::all_to_all};
constexpr std::size_t smallest = 64;
constexpr std::size_t largest = std::size_t{16} << 20;
constexpr std::size_t rounds = 5;

// As many calls as take some milliseconds: no size takes long, even where ranks wait for a core, and none is one call.
std::size_t calls_in_a_round(double seconds_a_call) {
  constexpr double round_time = 4e-3;
  return static_cast<std::size_t>(std::clamp(round_time / std::max(seconds_a_call, 1e-9), 3.0, 100.0));
}

// The buffers of all calls, of which each size uses a part.
struct memory {
  buffer<float> in;
  buffer<float> out;
};

void call_once(group& world, memory& buffers, collective kind, std::size_t count, algorithm how) {
  const auto whole = buffers.in.span().first(count);
  const auto result = buffers.out.span().first(count);
  const auto mine = block_of(count, world.rank(), world.size()).count;
  const options by{.algorithm = how};
  switch (kind) {
    case collective::allreduce:
      return allreduce(world, whole, sum, by);
    case collective::broadcast:
      return broadcast(world, whole, 0, by);
    case collective::reduce:
      return reduce(world, whole, result.first(world.rank() == 0 ? count : 0), sum, 0, by);
    case collective::allgather:
      return allgather(world, whole.first(mine), result, by);
    case collective::reduce_scatter:
      return reduce_scatter(world, whole, result.first(mine), sum, by);
    default:
      return all_to_all(world, whole, result, by);
  }
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<measured_time> calibrate(group& world) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const bool with_native = world.abilities().native_collectives;
  auto* const source = world.transport().memory();  // that of programs that care
  memory buffers{buffer<float>(largest / sizeof(float), source), buffer<float>(largest / sizeof(float), source)};
  std::vector<measured_time> all;
  for (const collective kind : measured) {
    for (std::size_t bytes = smallest; bytes <= largest; bytes *= 4) {
      const std::size_t count = std::max(bytes / sizeof(float) / ranks, std::size_t{1}) * ranks;  // for all_to_all
      std::map<algorithm, std::vector<double>> times;
      std::map<algorithm, std::size_t> calls;
      const auto known = algorithms_of(kind);
      for (std::size_t round = 0; round <= rounds; ++round) {
        for (std::size_t turn = 0; turn < known.size(); ++turn) {
          const algorithm how = known[(turn + round) % known.size()];  // each follows each of the others
          if (how == algorithm::native && !with_native) continue;
          std::vector<double> taken(round == 0 ? 3 : calls[how]);
          for (double& time : taken) {
            barrier(world);  // a root that runs ahead would hide what its call costs the others
            const auto begin = clock::now();
            call_once(world, buffers, kind, count, how);
            time = seconds_since(begin);
          }
          allreduce(world, taken, max);
          if (round == 0) {  // to warm up, and to see how many are a round
            calls[how] = calls_in_a_round(median(taken));
          } else {
            times[how].insert(times[how].end(), taken.begin(), taken.end());
          }
        }
      }
      for (const algorithm how : known) {
        if (times.contains(how)) all.push_back({kind, how, count * sizeof(float), median(times[how])});
      }
    }
  }
  return all;
}

}  // namespace muster::inline v0
