// Collectives of more bytes than an int counts, over any transport: each as a separate call.
#include <muster/muster.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace {

constexpr std::size_t bytes = (std::size_t{1} << 31) + 12346;

std::uint8_t value(std::size_t at, int rank) {
  return static_cast<std::uint8_t>(at >> 9 ^ at * 7 ^ static_cast<std::size_t>(rank) * 37);
}

void require(bool holds, const std::string& name) {
  if (!holds) throw muster::mismatch_error(name + " is wrong");
}

// Checks the first and last elements and a sample between, also beyond 2 GiB.
template <class Expected>
void check(const std::vector<std::uint8_t>& got, const std::string& name, Expected expected) {
  for (std::size_t at = 0; at < got.size(); at += at + 4096 < got.size() && at > 4096 ? 1021 : 1)
    require(got[at] == expected(at), name + " at " + std::to_string(at));
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context&, muster::group& world) {
    const muster::collective_options slow{.timeout = muster::seconds(300)};
    const int me = world.rank();
    std::vector<std::uint8_t> data(bytes), out;
    const auto fill = [&](int as) {
      for (std::size_t at = 0; at < data.size(); ++at) data[at] = value(at, as);
    };
    if (me == 0) fill(5);
    muster::broadcast(world, data, 0, slow);
    check(data, "broadcast", [](std::size_t at) { return value(at, 5); });
    fill(me);
    out.resize(me == 1 ? bytes : 0);
    muster::reduce(world, data, out, muster::max, 1, slow);
    check(out, "reduce", [&](std::size_t at) {
      std::uint8_t most = 0;
      for (int rank = 0; rank < world.size(); ++rank) most = std::max(most, value(at, rank));
      return most;
    });
    out.resize(me == 1 ? bytes * static_cast<std::size_t>(world.size()) : 0);
    muster::gather(world, data, out, 1, slow);
    check(out, "gather", [](std::size_t at) { return value(at % bytes, static_cast<int>(at / bytes)); });
    std::fill(data.begin(), data.end(), std::uint8_t{0});
    muster::scatter(world, out, data, 1, slow);
    check(data, "scatter", [&](std::size_t at) { return value(at, me); });
    out = {};
    std::vector<std::size_t> counts(static_cast<std::size_t>(world.size()));
    counts[1] = bytes;
    counts[0] = 5;
    fill(1);
    data.insert(data.begin(), 5, std::uint8_t{0});
    if (me == 0) std::fill(data.begin(), data.end(), std::uint8_t{7});
    const auto own = std::span(data).subspan(me == 0 ? 0 : 5, counts[static_cast<std::size_t>(me)]);
    muster::allgather(world, own, data, counts, slow);  // one rank has nearly everything
    check({data.begin() + 5, data.end()}, "allgather", [](std::size_t at) { return value(at, 1); });
    require(data[0] == 7 && data[4] == 7, "the small piece");
  });
}
