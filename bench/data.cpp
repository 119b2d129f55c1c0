// The rate at which data are converted to samples: text of LIBSVM and CSV, records by mmap, generated rows, the order
// of an epoch, the batches of a step. bench/peers/data_text.py runs it beside scikit-learn, numpy and pandas.
//   build/release/bench/data [a9a=PATH] [write=FOLDER] [Google Benchmark's flags]
// write= writes the text to a folder, for other programs to read, and measures nothing.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include <muster/data/dataset_builder.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/sources/libsvm.hpp>
#include <muster/data/sources/synthetic.hpp>

#include <muster/data/order/permutation.hpp>
#include "data_sources.hpp"
#include "everywhere.hpp"

namespace {

void parse(benchmark::State& state, std::string_view text) {
  for (auto _ : state) {
    const auto read = muster::data::parse_libsvm(text, "text", {.threads = static_cast<int>(state.range(0))});
    benchmark::DoNotOptimize(read.digest());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}

void generate(benchmark::State& state) {
  constexpr std::size_t rows = 10000;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        muster::data::synthetic_epsilon(rows, 1, {.threads = static_cast<int>(state.range(0))}).digest());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(rows));
}

void shuffle_epoch(benchmark::State& state) {
  const auto size = static_cast<std::uint64_t>(state.range(0));
  muster::data::detail::permutation order;
  for (std::uint64_t epoch = 0; auto _ : state) {
    order.assign(1, epoch++, size);
    benchmark::DoNotOptimize(order[0]);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void next_batch(benchmark::State& state) {
  auto builder = muster::data::dataset_builder::dense("empty rows", 1'000'000, 0);
  auto loader = builder.finish() | muster::shuffle(1) | muster::batch(100);
  for (auto _ : state) {
    if (!loader.next({0, 2})) loader.next_epoch();
    benchmark::DoNotOptimize(loader.next({0, 2}).samples.data());
    loader.commit();
  }
}

void enrol(const source_texts& texts, const muster::data::mapped_file* a9a) {
  register_sources(texts);
  if (a9a) {
    benchmark::RegisterBenchmark("libsvm_a9a/threads", [a9a](benchmark::State& state) { parse(state, a9a->text()); })
        ->Arg(1)
        ->Arg(2)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("synthetic_epsilon/threads", generate)
      ->Arg(1)
      ->Arg(2)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("permutation", shuffle_epoch)->Arg(100'000)->Arg(10'000'000);
  benchmark::RegisterBenchmark("loader_next_of_100", next_batch);
}

}  // namespace

int main(int argc, char** argv) try {
  std::unique_ptr<muster::data::mapped_file> a9a;
  std::string folder;
  while (argc > 1 && std::strchr(argv[1], '=') != nullptr && argv[1][0] != '-') {
    const std::string word = argv[1];
    if (word.starts_with("a9a=")) {
      a9a = std::make_unique<muster::data::mapped_file>(word.substr(4));
    } else if (word.starts_with("write=")) {
      folder = word.substr(6);
    } else {
      break;
    }
    argv[1] = argv[0];
    --argc;
    ++argv;
  }
  const source_texts texts{dense_libsvm_text(1000), sparse_libsvm_text(400000), csv_text(30000)};
  if (!folder.empty()) {
    write_texts(texts, folder);
    return 0;
  }
  return bench::run_everywhere(argc, argv, [&](muster::context&) { enrol(texts, a9a.get()); });
} catch (const std::exception& failed) {
  std::fprintf(stderr, "data: error: %s\n", failed.what());
  return muster::exit_status_of(std::current_exception());
}
