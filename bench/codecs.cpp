// The rate of gradient compression: bytes of floats per second, one thread, of 1 MiB (a bucket) and 64 MiB.
//   build/release/bench/codecs --benchmark_filter=topk
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/codec/codec.hpp>
#include <muster/core/codec/compression.hpp>
#include <muster/core/codec/powersgd.hpp>
#include <muster/core/random.hpp>

#include "everywhere.hpp"

namespace {

muster::buffer<float> gradient(std::size_t count) {
  muster::buffer<float> values(count);
  muster::random_stream random(1);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

void report(benchmark::State& state, std::size_t count) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(count * sizeof(float)));
}

void copy(benchmark::State& state) {
  const auto values = gradient(static_cast<std::size_t>(state.range(0)) / sizeof(float));
  muster::buffer<float> to(values.size());
  for (auto _ : state) {
    std::memcpy(to.data(), values.data(), values.size() * sizeof(float));
    benchmark::ClobberMemory();
  }
  report(state, values.size());
}

void encode(benchmark::State& state, const char* name) {
  const muster::any_codec coder(muster::parse_compression(name));
  const auto values = gradient(static_cast<std::size_t>(state.range(0)) / sizeof(float));
  muster::buffer<std::byte> encoded(coder.encoded_bytes(values.size()));
  std::uint64_t draw = 0;
  for (auto _ : state) coder.encode(values.span(), ++draw, encoded.span());
  report(state, values.size());
  state.counters["ratio"] = static_cast<double>(encoded.size()) / static_cast<double>(values.span().size_bytes());
}

void decode(benchmark::State& state, const char* name) {
  const muster::any_codec coder(muster::parse_compression(name));
  const auto values = gradient(static_cast<std::size_t>(state.range(0)) / sizeof(float));
  muster::buffer<std::byte> encoded(coder.encoded_bytes(values.size()));
  coder.encode(values.span(), 1, encoded.span());
  muster::buffer<float> sums(values.size());
  for (auto _ : state) coder.decode_add(encoded.span(), 1, 0.5f, sums.span());
  report(state, values.size());
}

void feedback(benchmark::State& state, const char* name) {
  const muster::any_codec coder(muster::parse_compression(name));
  const auto values = gradient(static_cast<std::size_t>(state.range(0)) / sizeof(float));
  muster::buffer<std::byte> encoded(coder.encoded_bytes(values.size()));
  muster::buffer<float> residual(values.size()), next(values.size());
  std::uint64_t draw = 0;
  for (auto _ : state) {
    muster::encode_with_feedback(coder, values.span(), residual.span(), ++draw, encoded.span(), next.span());
    std::swap(residual, next);
  }
  report(state, values.size());
}

void vote(benchmark::State& state) {
  constexpr std::size_t voters = 4;
  const auto values = gradient(static_cast<std::size_t>(state.range(0)) / sizeof(float));
  const std::size_t bytes = muster::sign_codec().encoded_bytes(values.size());
  muster::buffer<std::byte> all(voters * bytes);
  for (std::size_t voter = 0; voter < voters; ++voter)
    muster::sign_codec().encode(values.span(), 0, all.span().subspan(voter * bytes, bytes));
  muster::buffer<float> voted(values.size());
  for (auto _ : state) muster::majority_vote(all.span(), voters, bytes, voted.span());
  report(state, values.size());
}

// Measures the complete computation of a rank for a square matrix in a step.
void powersgd(benchmark::State& state) {
  std::size_t side = 1;
  while (4 * side * side * sizeof(float) <= static_cast<std::size_t>(state.range(0))) side *= 2;
  const muster::low_rank_shape shape{side, side, static_cast<std::size_t>(state.range(1))};
  const auto matrix = gradient(side * side);
  muster::buffer<float> left(shape.left_size()), right(shape.right_size()), residual(side * side), result(side * side);
  muster::low_rank_refill(shape, 1, right.span());
  for (auto _ : state) {
    muster::low_rank_left(shape, matrix.span(), right.span(), left.span());
    muster::orthonormalise(shape, left.span());
    muster::low_rank_right(shape, matrix.span(), left.span(), right.span());
    std::memcpy(residual.data(), matrix.data(), matrix.size() * sizeof(float));
    muster::low_rank_add(shape, left.span(), right.span(), -1.0f, residual.span());
    muster::low_rank_add(shape, left.span(), right.span(), 1.0f, result.span());
  }
  report(state, matrix.size());
}

void both_sizes(benchmark::internal::Benchmark* benchmark_case) { benchmark_case->Arg(1 << 20)->Arg(64 << 20); }

void enrol(muster::context&) {
  both_sizes(benchmark::RegisterBenchmark("copy", copy));
  for (const char* name : {"float16", "bfloat16", "qsgd8", "sign", "topk:0.1", "topk:0.01"}) {
    both_sizes(benchmark::RegisterBenchmark((std::string("encode/") + name).c_str(), encode, name));
    both_sizes(benchmark::RegisterBenchmark((std::string("decode_add/") + name).c_str(), decode, name));
  }
  for (const char* name : {"sign", "topk:0.1"})
    both_sizes(benchmark::RegisterBenchmark((std::string("with_feedback/") + name).c_str(), feedback, name));
  both_sizes(benchmark::RegisterBenchmark("majority_vote/4", vote));
  for (const int rank : {1, 2, 4})
    benchmark::RegisterBenchmark("powersgd", powersgd)->Args({1 << 20, rank})->Args({64 << 20, rank});
}

}  // namespace

int main(int argc, char** argv) { return bench::run_everywhere(argc, argv, enrol); }
