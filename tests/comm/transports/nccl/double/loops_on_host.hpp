// TEST DOUBLE: the loops of core/device/launch.hpp on the processor. That header includes this file after
// `block_threads`.
#pragma once

#include <call_on_stream.hpp>

#include <cstddef>

#include <muster/core/device/stream.hpp>

namespace muster { inline namespace v0 { namespace detail {

template <class F, class... T>
void for_each(device_stream_ref stream, std::size_t size, F f, T*... arrays) {
  nccl_double::call_on_stream(stream, [=] {
    for (std::size_t i = 0; i < size; ++i) f(arrays[i]...);
  });
}

template <class F>
void sum_parts(device_stream_ref stream, std::size_t size, std::size_t part, F value, double* sums) {
  nccl_double::call_on_stream(stream, [=] {
    for (std::size_t first = 0; first < size; first += part) {
      double lanes[block_threads] = {};
      for (std::size_t i = 0; i < part && first + i < size; ++i) lanes[i % block_threads] += value(first + i);
      for (std::size_t half = block_threads / 2; half > 0; half /= 2) {
        for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      }
      sums[first / part] = lanes[0];
    }
  });
}

// Each block has a single thread.
inline constexpr unsigned lanes = 1, warps = 1;
constexpr unsigned this_lane() { return 0; }
constexpr unsigned this_warp() { return 0; }
template <unsigned To, class T, unsigned N>
void sum_threads(T (&)[N]) {}
template <unsigned N>
void sum_lanes(float (&)[N]) {}

template <class F>
void for_blocks(device_stream_ref stream, unsigned blocks, F f) {
  nccl_double::call_on_stream(stream, [=] {
    for (unsigned block = 0; block < blocks; ++block) f(block);
  });
}

}}}  // namespace muster::v0::detail
