// Speed of sums over devices and of loops on one device: printed if there is a device, without a limit.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>

#include <muster/core/clock.hpp>
#include <muster/core/device/kernels.hpp>
#include <muster/core/update.hpp>
#include <muster/train/device/gradients.hpp>

#include "catch.hpp"
#include "devices.hpp"

using muster::bfloat16;
using muster::device_buffer;
using muster::device_span;
using muster::device_stream_ref;
using muster::float16;
using muster::nccl::communicator;

namespace {

/// Returns the median duration in seconds of a call that waits for its end.
template <class Call>
double median_seconds(int times, const Call& call) {
  call();
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    const auto begin = muster::clock::now();
    call();
    all.push_back(muster::seconds_since(begin));
  }
  std::nth_element(all.begin(), all.begin() + times / 2, all.end());
  return all[static_cast<std::size_t>(times / 2)];
}

using arrays = std::array<device_span<float>, 4>;

/// A loop over the elements of arrays that hold 2, `second`, 0 and 0.
struct measured_loop {
  const char* name;
  double bytes;  ///< bytes to move for an element: each input is read once, each output written once
  float second;
  std::size_t result;  ///< index of the array whose mean square afterwards is `mean_square`
  double mean_square;
  void (*run)(const arrays& at, device_span<double> sums, device_stream_ref stream);
};

template <class Half>
device_span<Half> halves(device_span<float> at) {
  return {reinterpret_cast<Half*>(at.data()), at.size()};
}
template <class Half>
float two_halves(float value) {
  return std::bit_cast<float>(Half(value).bits * 0x10001u);
}
template <class Half>
void to_halves(const arrays& at, device_span<double>, device_stream_ref stream) {
  muster::convert(at[0], halves<Half>(at[1]), stream);
}
template <class Half>
void to_floats(const arrays& at, device_span<double>, device_stream_ref stream) {
  muster::convert(device_span<const Half>(halves<Half>(at[1])), at[0], stream);
}

constexpr muster::sgd_step<float> sgd{.learning_rate = 0.5f},
    momentum{.learning_rate = 0.5f, .momentum = 0.5f, .nesterov = true};
constexpr muster::adam_step<float> adam{.learning_rate = 0.5};

/// Returns the square of a parameter 2 after a step with gradient 1, computed on the host.
template <class Step>
double square_after(const Step& step) {
  float parameter = 2, gradient = 1, first = 0, second = 0;
  muster::update(step, std::span(&parameter, 1), std::span<const float>(&gradient, 1),
                 {std::span(&first, 1), std::span(&second, 1)});
  return static_cast<double>(parameter) * static_cast<double>(parameter);
}
double square_of_half(float value) { return (static_cast<double>(value) * static_cast<double>(value) + 1) / 2; }

const measured_loop loops[] = {
    {"copy", 8, 1, 0, 1, [](auto& at, auto, auto on) { muster::copy(at[1], at[0], on); }},
    {"fill", 4, 1, 0, 9, [](auto& at, auto, auto on) { muster::fill(at[0], 3, on); }},
    {"scale", 8, 1, 0, 1, [](auto& at, auto, auto on) { muster::scale(at[0], 0.5f, on); }},
    {"sum of squares", 4, 1, 0, 4, [](auto& at, auto sums, auto on) { muster::sum_of_squares(at[0], sums, on); }},
    {"to float16", 6, 1, 1, square_of_half(two_halves<float16>(2)), to_halves<float16>},
    {"from float16", 6, two_halves<float16>(1), 0, 1, to_floats<float16>},
    {"to bfloat16", 6, 1, 1, square_of_half(two_halves<bfloat16>(2)), to_halves<bfloat16>},
    {"from bfloat16", 6, two_halves<bfloat16>(1), 0, 1, to_floats<bfloat16>},
    {"sgd", 12, 1, 0, square_after(sgd), [](auto& at, auto, auto on) { muster::update(sgd, at[0], at[1], {}, on); }},
    {"sgd, momentum", 20, 1, 0, square_after(momentum),
     [](auto& at, auto, auto on) { muster::update(momentum, at[0], at[1], {at[2]}, on); }},
    {"adam", 28, 1, 0, square_after(adam), [](auto& at, auto, auto on) {
       muster::update(adam, at[0], at[1], {at[2], at[3]}, on);
     }}};

void print(const std::string& name, std::size_t bytes, double seconds, double speed, double copied) {
  std::printf("%-18s %6zu KiB %8.1f us %5.0f GB/s %4.0f %%\n", name.c_str(), bytes >> 10, seconds * 1e6, speed * 1e-9,
              100 * speed / copied);
}

/// Measures PowerSGD for a square matrix of `bytes` bytes on a single rank. Its kernels read or write seven floats for
/// each element. The matrix of ones has rank 1, so its sum is exact.
void measure_powersgd(std::size_t bytes, int passes, double copied) {
  const auto side = static_cast<std::size_t>(std::sqrt(static_cast<double>(bytes / sizeof(float))));
  devices::run(1, [&](communicator& all, device_stream_ref stream) {
    for (const std::size_t rank : {1u, 4u}) {
      muster::device_arena arena({{"matrix", {side, side}}}, stream);
      const auto gradients = muster::powersgd_on(arena, all, rank);
      const muster::gradient_bucket bucket{{0, side * side}, {0}};
      gradients->attach(std::span(&bucket, 1));
      muster::fill(arena.gradients(), 1, stream);
      const auto run = [&](int times) {
        gradients->begin(nullptr, 0);
        for (int i = 0; i < times; ++i) gradients->start(0);
        gradients->wait(0);
        gradients->finish();
        muster::wait_for(stream, muster::deadline_after(devices::patience));
      };
      run(1);
      device_buffer<double> sums(muster::sum_scratch(side * side));
      muster::sum_of_squares(arena.gradients(), sums.span(), stream);
      const double sum = devices::on_host(sums.span().first(1), stream)[0];
      CHECK(sum / static_cast<double>(side * side) == Approx(1).epsilon(1e-4));
      const double seconds = median_seconds(3, [&] { run(passes); }) / passes;
      print("PowerSGD, rank " + std::to_string(rank), bytes, seconds, 28 * static_cast<double>(side * side) / seconds,
            copied);
    }
  });
}

#ifdef MUSTER_TEST_DOUBLE
constexpr const char* on = nccl_double::name;
#else
constexpr const char* on = "NCCL";
#endif

}  // namespace

TEST_CASE("the sum of device buffers of any size is right, and its latency and bandwidth are printed") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    devices::run(ranks, [&](communicator& all, device_stream_ref stream) {
      for (const std::size_t bytes :
           {std::size_t{4}, std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{64} << 20}) {
#ifdef MUSTER_TEST_DOUBLE
        if (bytes > (std::size_t{1} << 20)) continue;  // larger sizes have no meaning on the double
#endif
        device_buffer<float> data(bytes / sizeof(float)), copy_of_data(bytes / sizeof(float));
        const auto registered = all.register_memory(data.span());
        muster::fill(data.span(), 1.0f, stream);
        all.allreduce(data.span(), muster::sum, stream).wait();
        const auto host = devices::on_host(data.span(), stream);
        if (!std::ranges::all_of(host, [&](float value) { return value == static_cast<float>(ranks); }))
          throw std::runtime_error("a sum of " + std::to_string(bytes) + " bytes is wrong");
        muster::clear(data.span(), stream);
        const double seconds = median_seconds(20, [&] { all.allreduce(data.span(), muster::sum, stream).wait(); });
        const double copied = median_seconds(20, [&] {
          muster::copy(data.span(), copy_of_data.span(), stream);
          muster::wait_for(stream, muster::deadline_after(devices::patience));
        });
        if (all.rank() == 0) {
          std::printf("%s: %d ranks, %zu bytes: allreduce %.1f us, %.2f GB/s; a copy on the device %.1f us\n", on,
                      ranks, bytes, seconds * 1e6, static_cast<double>(bytes) / seconds * 1e-9, copied * 1e6);
        }
      }
    });
  }
}

// On the double, where a speed has no meaning, the arrays are small and there is one pass.
TEST_CASE("loops over device memory of any size are right, and their bandwidth is printed") {
  MUSTER_NEEDS_DEVICE();
#ifdef MUSTER_TEST_DOUBLE
  constexpr std::size_t most = std::size_t{1} << 20;
  constexpr int passes = 1;
#else
  constexpr std::size_t most = std::size_t{256} << 20;
  constexpr int passes = 16;
#endif
  constexpr std::size_t all = 2 * most / sizeof(float);
  const muster::device_stream stream;
  const auto done = [&] { muster::wait_for(stream, muster::deadline_after(devices::patience)); };
  std::array<device_buffer<float>, 4> memory;
  for (auto& array : memory) array = device_buffer<float>(all);
  device_buffer<double> sums(muster::sum_scratch(all));
  std::printf("%s: share of the speed of a copy on the device\n", on);
  for (const std::size_t bytes : {most >> 8, most >> 4, most >> 2, most}) {
    const std::size_t size = bytes / sizeof(float);
    // a different part of memory each time, so that no cache holds it
    const auto pass = [&](const measured_loop& loop) {
      for (std::size_t first = 0; first < all; first += size) {
        arrays at;
        for (std::size_t k = 0; k < at.size(); ++k) at[k] = memory[k].span().subspan(first, size);
        loop.run(at, sums.span(), stream);
      }
    };
    double copied = 0;
    for (const auto& loop : loops) {
      const float values[] = {2, loop.second, 0, 0};
      for (std::size_t k = 0; k < memory.size(); ++k) muster::fill(memory[k].span(), values[k], stream);
      pass(loop);
      muster::sum_of_squares(memory[loop.result].span(), sums.span(), stream);
      const double sum = devices::on_host(sums.span().first(1), stream)[0];
      CAPTURE(loop.name, bytes);
      CHECK(sum / static_cast<double>(all) == Approx(loop.mean_square).epsilon(1e-12));

      const double seconds = median_seconds(3,
                                            [&] {
                                              for (int i = 0; i < passes; ++i) pass(loop);
                                              done();
                                            }) *
                             static_cast<double>(size) / (passes * static_cast<double>(all));
      const double speed = loop.bytes * static_cast<double>(size) / seconds;
      if (copied == 0) copied = speed;
      print(loop.name, bytes, seconds, speed, copied);
    }
    if (bytes >= most >> 2) measure_powersgd(bytes, passes, copied);
  }
}
