// Functions applied to every number of an image.
#pragma once

#include "kernels_vector.hpp"

namespace nn { namespace {

template <class T, std::size_t Width>
struct pointwise_kernels {
  template <bool Scaled, bool Relu, bool Add>
  static void apply_as(const image_view<const T>& from, const pointwise<T>& f, const image_view<T>& to) {
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
          for (std::size_t y = 0; y < from.height; ++y) {
            const T* x = from.data + y * from.row_step + c;
            T* z = to.data + y * to.row_step + c;
            for (std::size_t n = 0; n < from.width; ++n, x += from.channels, z += to.channels) {
              NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
                auto value = v::get(x + b * v::step);
                if constexpr (Scaled) value = value * scale[b] + shift[b];
                if constexpr (Relu) value = v::positive(value);
                if constexpr (Add) value += v::get(z + b * v::step);
                v::put(z + b * v::step, value);
              }
            }
          }
        });
  }

  static void apply(const image_view<const T>& from, const pointwise<T>& f, const image_view<T>& to, bool add) {
    const bool scaled = f.scale != nullptr;
    if (scaled) {
      if (f.relu) return add ? apply_as<true, true, true>(from, f, to) : apply_as<true, true, false>(from, f, to);
      return add ? apply_as<true, false, true>(from, f, to) : apply_as<true, false, false>(from, f, to);
    }
    if (f.relu) return add ? apply_as<false, true, true>(from, f, to) : apply_as<false, true, false>(from, f, to);
    return add ? apply_as<false, false, true>(from, f, to) : apply_as<false, false, false>(from, f, to);
  }

  static void moments(const image_view<const T>& image, const T* pivot, T* sum, T* squares) {
    vectors<T, Width>::over_channels(
        image.channels, [&]<std::size_t B>(std::size_t c) __attribute__((always_inline)) {
          using v = typename vectors<T, Width>::template some<B>;
          typename v::value middle[v::count], sums[v::count] = {}, products[v::count] = {};
          NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) middle[b] = v::get(pivot + c + b * v::step);
          for (std::size_t y = 0; y < image.height; ++y) {
            const T* x = image.data + y * image.row_step + c;
            for (std::size_t n = 0; n < image.width; ++n, x += image.channels) {
              NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
                const auto value = v::get(x + b * v::step) - middle[b];
                sums[b] += value;
                products[b] += value * value;
              }
            }
          }
          NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
            v::put(sum + c + b * v::step, v::get(sum + c + b * v::step) + sums[b]);
            v::put(squares + c + b * v::step, v::get(squares + c + b * v::step) + products[b]);
          }
        });
  }

  template <bool Scaled, bool Relu, bool Sum>
  static void mask_as(const image_view<const T>& values, const pointwise<T>& f, const image_view<T>& gradient,
                      const T* of, const T* pivot, T* sum, T* products) {
    vectors<T, Width>::over_channels(
        values.channels, [&]<std::size_t B>(std::size_t c) __attribute__((always_inline)) {
          using v = typename vectors<T, Width>::template some<B>;
          typename v::value scale[v::count], shift[v::count], middle[v::count], sums[v::count] = {},
                                                                                slopes[v::count] = {};
          NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
            if constexpr (Scaled) {
              scale[b] = v::get(f.scale + c + b * v::step);
              shift[b] = v::get(f.shift + c + b * v::step);
            }
            if constexpr (Sum) middle[b] = v::get(pivot + c + b * v::step);
          }
          for (std::size_t y = 0; y < values.height; ++y) {
            const T* x = values.data + y * values.row_step + c;
            const T* z = of + y * values.row_step + c;
            T* g = gradient.data + y * gradient.row_step + c;
            for (std::size_t n = 0; n < values.width;
                 ++n, x += values.channels, z += values.channels, g += values.channels) {
              NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
                auto slope = v::get(g + b * v::step);
                if constexpr (Relu) {
                  auto value = v::get(x + b * v::step);
                  if constexpr (Scaled) value = value * scale[b] + shift[b];
                  slope = v::where_positive(value, slope);
                  v::put(g + b * v::step, slope);
                }
                if constexpr (Sum) {
                  sums[b] += slope;
                  slopes[b] += slope * (v::get(z + b * v::step) - middle[b]);
                }
              }
            }
          }
          if constexpr (Sum) {
            NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
              v::put(sum + c + b * v::step, v::get(sum + c + b * v::step) + sums[b]);
              v::put(products + c + b * v::step, v::get(products + c + b * v::step) + slopes[b]);
            }
          }
        });
  }

  static void mask(const image_view<const T>& values, const pointwise<T>& f, const image_view<T>& gradient, const T* of,
                   const T* pivot, T* sum, T* products) {
    const bool scaled = f.scale != nullptr;
    if (sum != nullptr) {
      if (!f.relu) return mask_as<false, false, true>(values, f, gradient, of, pivot, sum, products);
      if (scaled) return mask_as<true, true, true>(values, f, gradient, of, pivot, sum, products);
      return mask_as<false, true, true>(values, f, gradient, of, pivot, sum, products);
    }
    if (!f.relu) return;
    if (scaled) return mask_as<true, true, false>(values, f, gradient, of, pivot, sum, products);
    mask_as<false, true, false>(values, f, gradient, of, pivot, sum, products);
  }

  template <bool Add>
  static void combine_as(const image_view<const T>& gradient, const image_view<const T>& values, const T* a,
                         const T* b_, const T* d, const image_view<T>& to) {
    vectors<T, Width>::over_channels(
        values.channels, [&]<std::size_t B>(std::size_t c) __attribute__((always_inline)) {
          using v = typename vectors<T, Width>::template some<B>;
          typename v::value first[v::count], second[v::count], third[v::count];
          NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
            first[b] = v::get(a + c + b * v::step);
            second[b] = v::get(b_ + c + b * v::step);
            third[b] = v::get(d + c + b * v::step);
          }
          for (std::size_t y = 0; y < values.height; ++y) {
            const T* g = gradient.data + y * gradient.row_step + c;
            const T* x = values.data + y * values.row_step + c;
            T* z = to.data + y * to.row_step + c;
            for (std::size_t n = 0; n < values.width;
                 ++n, g += values.channels, x += values.channels, z += to.channels) {
              NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) {
                auto value = v::get(g + b * v::step) * first[b] + (v::get(x + b * v::step) * second[b] + third[b]);
                if constexpr (Add) value += v::get(z + b * v::step);
                v::put(z + b * v::step, value);
              }
            }
          }
        });
  }

  static void combine(const image_view<const T>& gradient, const image_view<const T>& values, const T* a, const T* b,
                      const T* d, const image_view<T>& to, bool add) {
    add ? combine_as<true>(gradient, values, a, b, d, to) : combine_as<false>(gradient, values, a, b, d, to);
  }

  static void add_pixels(const image_view<const T>& image, T* sum) {
    vectors<T, Width>::over_channels(
        image.channels, [&]<std::size_t B>(std::size_t c) __attribute__((always_inline)) {
          using v = typename vectors<T, Width>::template some<B>;
          typename v::value sums[v::count];
          NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) sums[b] = v::get(sum + c + b * v::step);
          for (std::size_t y = 0; y < image.height; ++y) {
            const T* x = image.data + y * image.row_step + c;
            for (std::size_t n = 0; n < image.width; ++n, x += image.channels) {
              NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) sums[b] += v::get(x + b * v::step);
            }
          }
          NN_UNROLL for (std::size_t b = 0; b < v::count; ++b) v::put(sum + c + b * v::step, sums[b]);
        });
  }
};

}  // namespace
}  // namespace nn
