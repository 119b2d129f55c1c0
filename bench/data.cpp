// How fast data becomes samples: LIBSVM text, generated rows, the order of an epoch, the batches of a step.
//   build/release/bench/data [a9a=PATH] [Google Benchmark's flags]
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include <muster/core/random.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/libsvm.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/synthetic.hpp>

namespace {

// Rows of the shape of the epsilon dataset, in its own notation: 2,000 numbers of six digits a line.
std::string dense_text(std::size_t rows) {
  const auto data = muster::synthetic_epsilon(rows, 1);
  std::string text;
  char word[64];
  for (std::size_t i = 0; i < rows; ++i) {
    text += data.label(i) > 0 ? "+1" : "-1";
    for (std::size_t j = 0; j < data.features(); ++j) {
      std::snprintf(word, sizeof word, " %zu:%.6g", j + 1, double(data.row(i)[j]));
      text += word;
    }
    text += '\n';
  }
  return text;
}

// Rows of the shape of a9a: 14 of 123 features, each 1.
std::string sparse_text(std::size_t rows) {
  muster::random_stream random(1);
  std::string text;
  for (std::size_t i = 0; i < rows; ++i) {
    text += random.below(4) == 0 ? "+1 " : "-1 ";
    for (std::uint64_t k = 0; k < 14; ++k) {
      text += std::to_string(1 + 8 * k + random.below(8)) + ":1 ";
    }
    text += '\n';
  }
  return text;
}

void parse(benchmark::State& state, std::string_view text) {
  for (auto _ : state) {
    const auto read = muster::parse_libsvm(text, "text", {.threads = static_cast<int>(state.range(0))});
    benchmark::DoNotOptimize(read.digest());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}

void generate(benchmark::State& state) {
  constexpr std::size_t rows = 10000;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        muster::synthetic_epsilon(rows, 1, {.threads = static_cast<int>(state.range(0))}).digest());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(rows));
}

void shuffle_epoch(benchmark::State& state) {
  const auto size = static_cast<std::uint64_t>(state.range(0));
  muster::permutation order;
  for (std::uint64_t epoch = 0; auto _ : state) {
    order.assign(1, epoch++, size);
    benchmark::DoNotOptimize(order[0]);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void next_batch(benchmark::State& state) {
  auto builder = muster::dataset_builder::dense("empty rows", 1'000'000, 0);
  auto loader = builder.finish() | muster::shuffle(1) | muster::batch(100);
  for (auto _ : state) {
    if (!loader.next({0, 2})) loader.next_epoch();
    benchmark::DoNotOptimize(loader.next({0, 2}).samples.data());
    loader.commit();
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::unique_ptr<muster::text_file> a9a;
  if (argc > 1 && std::strncmp(argv[1], "a9a=", 4) == 0) {
    a9a = std::make_unique<muster::text_file>(argv[1] + 4);
    argv[1] = argv[0];
    --argc;
    ++argv;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const std::string dense = dense_text(1000);
  const std::string sparse = sparse_text(400000);
  const auto add = [](const char* name, std::string_view text) {
    benchmark::RegisterBenchmark(name, [text](benchmark::State& state) { parse(state, text); })
        ->Arg(1)
        ->Arg(2)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  add("libsvm_dense/threads", dense);
  add("libsvm_sparse/threads", sparse);
  if (a9a) add("libsvm_a9a/threads", a9a->text());
  benchmark::RegisterBenchmark("synthetic_epsilon/threads", generate)
      ->Arg(1)
      ->Arg(2)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("permutation", shuffle_epoch)->Arg(100'000)->Arg(10'000'000);
  benchmark::RegisterBenchmark("loader_next_of_100", next_batch);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
