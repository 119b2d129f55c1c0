// Reads all records of a source twice, shuffled, in batches: muster's part of the measurement of far_sources.py.
//
//   read_source SOURCE [THREADS]
//
// Prints the samples per second in each epoch. The first epoch includes opening the source.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <muster/muster.hpp>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  return muster::run_main(argc, argv, [&](muster::context&) {
    auto start = muster::clock::now();
    muster::loader loader = muster::open_source(argv[1]) | muster::shuffle(1) | muster::batch(128) |
                            muster::prefetch({.batches = 4, .threads = threads});
    for (const char* const kind : {"cold", "warm"}) {
      std::uint64_t samples = 0;
      for (; const auto batch = loader.next({}); loader.commit()) samples += batch.samples.size();
      std::printf("%s %.0f samples/s\n", kind, static_cast<double>(samples) / muster::seconds_since(start));
      loader.next_epoch();
      start = muster::clock::now();
    }
  });
}
