// Allreduces of a single size, started on request: tests/comm/across_hosts.py counts the bytes on the wire meanwhile.
//
// usage: test_traffic BYTES ITERATIONS
// Prints "ready", waits for a line, prints "done SECONDS" (of the median call), waits for another line.
#include <muster/muster.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    auto& world = context.world();
    const std::size_t count = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 4) / sizeof(float);
    const int iterations = argc > 2 ? std::atoi(argv[2]) : 1;
    auto data = context.allocate<float>(count);
    std::fill(data.begin(), data.end(), 1.0f);
    muster::allreduce(world, data, muster::max);  // establishes connections, windows, pages
    std::string line;
    std::printf("ready\n");
    std::fflush(stdout);
    std::getline(std::cin, line);
    std::vector<double> seconds;
    for (int i = 0; i < iterations; ++i) {
      const auto begin = muster::clock::now();
      muster::allreduce(world, data, muster::max);
      seconds.push_back(muster::seconds_since(begin));
    }
    muster::allreduce(world, seconds, muster::max);
    std::nth_element(seconds.begin(), seconds.begin() + iterations / 2, seconds.end());
    std::printf("done %.9g\n", seconds[static_cast<std::size_t>(iterations / 2)]);
    std::fflush(stdout);
    std::getline(std::cin, line);
    if (data[count - 1] != 1.0f) throw std::runtime_error("a wrong result");
  });
}
