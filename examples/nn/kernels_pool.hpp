// Maxima over windows, and their backward pass.
#pragma once

#include "kernels_vector.hpp"

namespace nn { namespace {

template <class T, std::size_t Width>
struct pool_kernels {
  /// The lines of a window that are inside the image: a half-open range, counted in the window.
  struct part {
    std::size_t first, last;
    part(std::size_t at, const pool_window& window, std::size_t side)
        : first(at * window.stride < window.padding ? window.padding - at * window.stride : 0), last(window.kernel) {
      const std::size_t left = side + window.padding - at * window.stride;
      if (last > left) last = left;
    }
  };

  template <bool Scaled, bool Relu>
  static void pool_as(const image_view<const T>& from, const pointwise<T>& f, const pool_window& window,
                      const image_view<T>& to, T* taps) {
    vectors<T, Width>::over_channels(
        from.channels, [&]<std::size_t B>(std::size_t c) __attribute__((always_inline)) {
          using v = typename vectors<T, Width>::template some<B>;
          typename v::value scale[v::count], shift[v::count];
          if constexpr (Scaled) {
            NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
              scale[b] = v::get(f.scale + c + b * v::step);
              shift[b] = v::get(f.shift + c + b * v::step);
            }
          }
          // With ReLU, a number must be above zero to be the maximum. Without such a number, the tap is "none".
          const auto least = v::all(Relu ? T{0} : static_cast<T>(-__builtin_inf())), none = v::all(Relu ? T{-1} : T{0});
          for (std::size_t y = 0; y < to.height; ++y) {
            const part rows(y, window, from.height);
            for (std::size_t x = 0; x < to.width; ++x) {
              const part columns(x, window, from.width);
              typename v::value largest[v::count], tap[v::count];
              NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
                largest[b] = least;
                tap[b] = none;
              }
              for (std::size_t r = rows.first; r < rows.last; ++r) {
                const T* const row = from.data + (y * window.stride + r - window.padding) * from.row_step + c;
                for (std::size_t k = columns.first; k < columns.last; ++k) {
                  const T* const in = row + (x * window.stride + k - window.padding) * from.channels;
                  const auto here = v::all(static_cast<T>(r * window.kernel + k));
                  NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
                    auto value = v::get(in + b * v::step);
                    if constexpr (Scaled) value = value * scale[b] + shift[b];
                    tap[b] = value > largest[b] ? here : tap[b];
                    largest[b] = value > largest[b] ? value : largest[b];
                  }
                }
              }
              const std::size_t at = (y * to.width + x) * to.channels + c;
              NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
                v::put(to.data + y * to.row_step + x * to.channels + c + b * v::step, largest[b]);
                v::put(taps + at + b * v::step, tap[b]);
              }
            }
          }
        });
  }

  static void pool(const image_view<const T>& from, const pointwise<T>& f, const pool_window& window,
                   const image_view<T>& to, T* taps) {
    if (f.scale != nullptr) {
      return f.relu ? pool_as<true, true>(from, f, window, to, taps) : pool_as<true, false>(from, f, window, to, taps);
    }
    f.relu ? pool_as<false, true>(from, f, window, to, taps) : pool_as<false, false>(from, f, window, to, taps);
  }

  static void clear(T* row, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) row[i] = T{0};
  }

  template <bool Add>
  static void unpool_as(const image_view<const T>& slope, const T* taps, const pool_window& window,
                        const image_view<T>& to) {
    vectors<T, Width>::over_channels(
        slope.channels, [&]<std::size_t B>(std::size_t c) __attribute__((always_inline)) {
          using v = typename vectors<T, Width>::template some<B>;
          for (std::size_t y = 0; y < slope.height; ++y) {
            const part rows(y, window, to.height);
            for (std::size_t x = 0; x < slope.width; ++x) {
              const part columns(x, window, to.width);
              typename v::value given[v::count], tap[v::count];
              NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
                given[b] = v::get(slope.data + y * slope.row_step + x * slope.channels + c + b * v::step);
                tap[b] = v::get(taps + (y * slope.width + x) * slope.channels + c + b * v::step);
              }
              for (std::size_t r = rows.first; r < rows.last; ++r) {
                T* const row = to.data + (y * window.stride + r - window.padding) * to.row_step + c;
                for (std::size_t k = columns.first; k < columns.last; ++k) {
                  T* const out = row + (x * window.stride + k - window.padding) * to.channels;
                  const auto here = v::all(static_cast<T>(r * window.kernel + k));
                  NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
                    auto value = tap[b] == here ? given[b] : v::all(T{0});
                    if constexpr (Add) value += v::get(out + b * v::step);
                    v::put(out + b * v::step, value);
                  }
                }
              }
            }
          }
        });
  }

  static void unpool(const image_view<const T>& slope, const T* taps, const pool_window& window,
                     const image_view<T>& to, bool add) {
    if (add) return unpool_as<true>(slope, taps, window, to);
    // Windows that tile the image set every number except the numbers right of and below the last windows.
    const bool tiled = window.stride == window.kernel && window.padding == 0;
    const std::size_t rows = tiled ? slope.height * window.kernel : 0, columns = slope.width * window.kernel;
    for (std::size_t y = 0; y < rows; ++y) {
      clear(to.data + y * to.row_step + columns * to.channels, (to.width - columns) * to.channels);
    }
    for (std::size_t y = rows; y < to.height; ++y) clear(to.data + y * to.row_step, to.width * to.channels);
    tiled ? unpool_as<false>(slope, taps, window, to) : unpool_as<true>(slope, taps, window, to);
  }
};

}  // namespace
}  // namespace nn
