// Reads a source by emulated accelerators and prints one JSON object: storage SOURCE ACCELERATORS BATCH SECONDS
// THREADS. An accelerator is a thread that takes its part of each global batch, and then sleeps for SECONDS in
// proportion to its samples, as MLPerf Storage's accelerators do. The label of a sample is its number.
// bench/storage/storage.py writes the data, and compares with other readers.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/data.hpp>

namespace {

struct reading {
  double computing = 0;        // seconds in which the accelerator computed
  std::uint64_t bytes = 0;     // of the samples
  std::vector<float> samples;  // their numbers
  std::exception_ptr failure{};
};

void run_accelerator(const muster::data::any_record_source& source, int rank, int world, std::uint64_t batch,
                     double seconds, reading& result) {
  try {
    auto loader =
        source | muster::shuffle(1) | muster::batch(batch * static_cast<std::uint64_t>(world)) | muster::prefetch(2);
    while (const auto rows = loader.next({.rank = rank, .world = world})) {
      result.samples.insert(result.samples.end(), rows.labels.begin(), rows.labels.end());
      result.bytes += rows.bytes.size();
      const double computing = seconds * static_cast<double>(rows.samples.size()) / static_cast<double>(batch);
      std::this_thread::sleep_for(std::chrono::duration<double>(computing));
      result.computing += computing;
      loader.commit();
    }
  } catch (...) {
    result.failure = std::current_exception();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const int accelerators = std::atoi(argv[2]);
  const std::uint64_t batch = std::strtoull(argv[3], nullptr, 10);
  const double seconds = std::atof(argv[4]);
  if (accelerators < 1 || batch == 0 || seconds < 0) return 2;
  try {
    const auto source = muster::open_source(argv[1], {.threads = std::atoi(argv[5])});
    std::vector<reading> readings(static_cast<std::size_t>(accelerators));
    const auto start = muster::clock::now();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < accelerators; ++rank)
      threads.emplace_back([&, rank] {
        run_accelerator(source, rank, accelerators, batch, seconds, readings[static_cast<std::size_t>(rank)]);
      });
    for (std::thread& each : threads) each.join();
    const double elapsed = muster::seconds_since(start);
    double computing = 0;
    std::uint64_t bytes = 0;
    std::vector<float> samples;
    for (const reading& each : readings) {
      if (each.failure) std::rethrow_exception(each.failure);
      computing += each.computing;
      bytes += each.bytes;
      samples.insert(samples.end(), each.samples.begin(), each.samples.end());
    }
    std::ranges::sort(samples);
    std::vector<float> all(source.size());
    std::iota(all.begin(), all.end(), 0.0f);
    std::printf("{\"samples\": %zu, \"each_once\": %s, \"bytes\": %llu, \"seconds\": %.6f, \"utilisation\": %.6f}\n",
                samples.size(), samples == all ? "true" : "false", static_cast<unsigned long long>(bytes), elapsed,
                computing / (elapsed * accelerators));
  } catch (const std::exception& failed) {
    std::fprintf(stderr, "storage: %s\n", failed.what());
    return 1;
  }
}
