// Convolutions of the models by layer, pass and backend, one thread.
//
//   build/release/bench/conv [--benchmark_filter=16x32x32.*]
//
// A name is channels x height x width > output channels / kernel and stride / pass / backend; "peak" is the rate of the
// core's fused multiply-adds.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "convolution.hpp"
#include "everywhere.hpp"
#include "processor.hpp"

namespace {

void convolve(benchmark::State& state, const std::string& backend, const nn::convolution_shape& shape,
              const std::string& pass) {
  const nn::flush_denormals flush;
  const auto convolution = nn::make_convolution<float>(backend, shape, nn::find_kernels<float>());
  std::vector<float> weights(shape.weights(), 0.01f), slopes(shape.weights());
  constexpr std::size_t batch = 32;
  std::vector<float> in(batch * shape.in.size()), out(batch * shape.out().size());
  for (std::size_t k = 0; k < convolution->block(); ++k) {
    for (const auto& view : {convolution->input(k), convolution->slope(k)}) {
      for (std::size_t y = 0; y < view.height; ++y) {
        for (std::size_t x = 0; x < view.width * view.channels; ++x) {
          view.data[y * view.row_step + x] = static_cast<float>((x + y) % 7) * 0.1f;
        }
      }
    }
  }
  for (auto _ : state) {
    convolution->begin(weights);
    for (std::size_t first = 0; first < batch; first += convolution->block()) {
      const std::size_t count = std::min(convolution->block(), batch - first);
      if (pass == "forward") convolution->forward(count, nullptr, out.data() + first * shape.out().size());
      if (pass == "data") convolution->backward_data(count, in.data() + first * shape.in.size(), false);
      if (pass == "weights") convolution->backward_weights(count, nullptr, slopes.data());
    }
  }
  state.counters["GFLOP/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * batch * shape.operations() * 1e-9, benchmark::Counter::kIsRate);
}

#ifdef __AVX2__
/// Measures twelve independent sums in this machine's widest vectors: the peak rate of its fused multiply-adds.
void peak(benchmark::State& state) {
#ifdef __AVX512F__
  constexpr int width = 64;
#else
  constexpr int width = 32;
#endif
  using vector [[gnu::vector_size(width)]] = float;
  vector sums[12] = {};
  vector a = vector{} + 0.999f, b = vector{} + 0.001f;
  asm volatile("" : "+v"(a), "+v"(b));
  constexpr int rounds = 10000, operations = 2 * 12 * width / 4;
  for (auto _ : state) {
    for (int round = 0; round < rounds; ++round) {
// Otherwise the sums would be in memory.
#pragma GCC unroll 12
      for (int i = 0; i < 12; ++i) {
        vector sum = sums[i] * a + b;
        asm volatile("" : "+v"(sum));
        sums[i] = sum;
      }
    }
  }
  state.counters["GFLOP/s"] = benchmark::Counter(static_cast<double>(state.iterations()) * rounds * operations * 1e-9,
                                                 benchmark::Counter::kIsRate);
}
#endif

void enrol(muster::context&) {
#ifdef __AVX2__
  benchmark::RegisterBenchmark("peak", peak);
#endif
  const nn::convolution_shape shapes[] = {
      {{32, 32, 3}, 16, 3, 1, 1},  {{32, 32, 16}, 16, 3, 1, 1}, {{32, 32, 16}, 32, 3, 2, 1},
      {{16, 16, 32}, 32, 3, 1, 1}, {{16, 16, 32}, 64, 3, 2, 1}, {{8, 8, 64}, 64, 3, 1, 1},
      {{32, 32, 16}, 32, 1, 2, 0}, {{8, 8, 256}, 256, 3, 1, 1}, {{4, 4, 512}, 512, 3, 1, 1},
      {{32, 32, 64}, 64, 3, 1, 1}, {{2, 2, 512}, 512, 3, 1, 1}, {{28, 28, 1}, 32, 3, 1, 0},
      {{13, 13, 32}, 64, 3, 1, 0}, {{5, 5, 64}, 64, 3, 1, 0}};
  for (const auto& shape : shapes) {
    for (const std::string pass : {"forward", "data", "weights"}) {
      for (const auto backend : nn::convolution_names()) {
        const std::string name = std::to_string(shape.in.channels) + "x" + std::to_string(shape.in.height) + "x" +
                                 std::to_string(shape.in.width) + ">" + std::to_string(shape.out_channels) + "/k" +
                                 std::to_string(shape.kernel) + "s" + std::to_string(shape.stride) + "/" + pass + "/" +
                                 std::string(backend);
        benchmark::RegisterBenchmark(name.c_str(), [backend, shape, pass](benchmark::State& state) {
          convolve(state, std::string(backend), shape, pass);
        });
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return bench::run_everywhere(argc, argv, enrol); }
