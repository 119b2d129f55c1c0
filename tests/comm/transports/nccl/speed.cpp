// How long a sum over devices takes: printed where there is a device, and not judged.
#include <algorithm>
#include <cstdio>

#include <muster/core/clock.hpp>
#include <muster/core/device/kernels.hpp>

#include "catch.hpp"
#include "devices.hpp"

using muster::device_buffer;
using muster::device_stream_ref;
using muster::nccl::communicator;

namespace {

/// Median seconds of a call that waits for its end.
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
        if (bytes > (std::size_t{1} << 20)) continue;  // says nothing about a device
#endif
        device_buffer<float> data(bytes / sizeof(float)), other(bytes / sizeof(float));
        const auto registered = all.register_memory(data.span());
        muster::fill(data.span(), 1.0f, stream);
        all.allreduce(data.span(), muster::sum, stream).wait();
        const auto host = devices::on_host(data.span(), stream);
        if (!std::ranges::all_of(host, [&](float value) { return value == static_cast<float>(ranks); }))
          throw std::runtime_error("a sum of " + std::to_string(bytes) + " bytes is wrong");
        muster::clear(data.span(), stream);
        const double seconds = median_seconds(20, [&] { all.allreduce(data.span(), muster::sum, stream).wait(); });
        const double copied = median_seconds(20, [&] {
          muster::copy(data.span(), other.span(), stream);
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
