#include "convolution_tiles.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <type_traits>

#include <muster/core/float16.hpp>

#include "tile_products.hpp"

namespace nn::device {
namespace {

/// Returns the largest divisor of `channels` that is at most `most` and a multiple of a matrix unit's width, or 0.
template <class A>
int chunk_of(int channels, int most) {
  constexpr int step = 32 / static_cast<int>(sizeof(A));
  for (int chunk = most / step * step; chunk >= step; chunk -= step) {
    if (channels % chunk == 0) return chunk;
  }
  return 0;
}

int largest_range(const tap_geometry& of, int pixels_here) {
  int most = 0;
  for (int first = 0; first < of.pixels; first += pixels_here) {
    const auto range = of.range(first, std::min(pixels_here, of.pixels - first));
    most = std::max(most, range.end - range.first);
  }
  return most;
}

/// The division of a product into blocks that fit the shared memory, with enough blocks to keep the device busy.
struct plan {
  product_sizes sizes{};
  int tiles = 0, warps = 0, memory = 0, blocks_x = 0, blocks_y = 0;
};

constexpr int most_memory = 200 * 1024;
constexpr int processors = 132;  // Number of multiprocessors that need work.

template <class A>
plan plan_gather(const tap_geometry& of, int channels, int columns) {
  plan best;
  const int taps = of.kernel * of.kernel;
  for (const int tiles : {8, 4, 2}) {
    for (const int warps : {8, 4, 2}) {
      if (tiles > 2 && columns <= 4 * tiles) continue;  // Half as many blocks would be enough.
      const int rows = largest_range(of, 16 * warps);
      int chunk = 0, memory = 0;
      for (const int most : {64, 32, 16}) {
        chunk = chunk_of<A>(channels, most);
        memory = 8 * tiles * pitch_of<A>(taps * chunk) + (rows + 1) * pitch_of<A>(chunk);
        if (memory <= most_memory) break;
      }
      if (chunk == 0 || memory > most_memory) continue;
      const plan candidate{
          {of, channels, columns, chunk, rows},   tiles, warps, memory, (of.pixels + 16 * warps - 1) / (16 * warps),
          (columns + 8 * tiles - 1) / (8 * tiles)};
      const bool busy = candidate.blocks_x * candidate.blocks_y >= processors * 3 / 2 && memory <= most_memory / 2;
      if (best.tiles == 0 || (candidate.blocks_x * candidate.blocks_y > best.blocks_x * best.blocks_y))
        best = candidate;
      if (busy) return candidate;
    }
  }
  return best;
}

template <class A>
plan plan_weights(const tap_geometry& of, int channels, int columns) {
  if (columns % 16 != 0) return {};
  plan result;
  result.warps = 8;
  const int rows = largest_range(of, 32 * result.warps);
  for (const int tiles : {8, 4, 2}) {
    if (channels % (8 * tiles) != 0) continue;
    const int sums = result.warps * 16 * taps_at_once * 8 * tiles * 4;
    const int memory = std::max(sums, 32 * result.warps * row_bytes + (32 * result.warps + 1) * column_pitch_of<A>(16) +
                                          (rows + 1) * column_pitch_of<A>(8 * tiles));
    if (memory > most_memory) continue;
    result.tiles = tiles;
    result.memory = memory;
    break;
  }
  if (result.tiles == 0) return {};
  result.sizes = {of, channels, columns, 8 * result.tiles, rows};
  const int taps = of.kernel * of.kernel;
  result.blocks_y = (taps + taps_at_once - 1) / taps_at_once * (columns / 16) * (channels / (8 * result.tiles));
  const int pieces = (of.pixels + 32 * result.warps - 1) / (32 * result.warps);
  result.blocks_x = std::max(1, std::min(pieces, 3 * processors / result.blocks_y));
  return result;
}

template <class Kernel, class... Arguments>
void start_plan(Kernel kernel, const plan& by, muster::device_stream_ref stream, const Arguments&... arguments) {
  start_kernel(kernel, by.blocks_x, by.blocks_y, 32 * by.warps, by.memory, stream, by.sizes, arguments...);
}

template <class A, int Split>
class tiles final : public convolver<A> {
 public:
  tiles(const convolution_shape& shape, muster::device_stream_ref stream) : shape_(shape), stream_(stream) {}

  /// Returns true if there is a plan for each of the convolution's products.
  [[nodiscard]] bool fits() {
    const auto& all = plans(1);
    return all.forward.tiles != 0 && all.data.tiles != 0 && all.weights.tiles != 0;
  }
  void prepare(std::size_t images, A*, const packed_weights<A>&, A*, A*, A*) override { (void)plans(images); }

  void forward(std::size_t images, const A* in, const packed_weights<A>& weights, A* out) override {
    gather(plans(images).forward, in, weights.by_out, out, false);
  }
  void backward_data(std::size_t images, const A* slope, const packed_weights<A>& weights, A* gradient,
                     bool adds) override {
    gather(plans(images).data, slope, weights.by_in, gradient, adds);
  }
  void backward_weights(std::size_t images, const A* in, const A* slope, A* gradient) override {
    const auto& all = plans(images);
    const plan& by = all.weights;
    float* const partial = all.partial.span().data();
    switch (by.tiles) {
      case 8:
        start_plan(weight_product<A, Split, 8>, by, stream_, in, slope, partial);
        break;
      case 4:
        start_plan(weight_product<A, Split, 4>, by, stream_, in, slope, partial);
        break;
      default:
        start_plan(weight_product<A, Split, 2>, by, stream_, in, slope, partial);
    }
    const int size = static_cast<int>(shape_.weights());
    start_kernel(sum_partials<A>, (size + 63) / 64, 1, 256, 256 * 4, stream_, static_cast<const float*>(partial),
                 by.blocks_x, size, gradient);
  }

 private:
  struct all_plans {
    plan forward, data, weights;
    mutable muster::device_buffer<float> partial;
  };

  const all_plans& plans(std::size_t images) {
    auto& plans = plans_[images];
    if (plans == nullptr) {
      const int in = static_cast<int>(shape_.in.channels), out = static_cast<int>(shape_.out_channels);
      plans = std::make_unique<all_plans>();
      plans->forward = plan_gather<A>(tap_geometry(shape_, images, false), in, out);
      plans->data = plan_gather<A>(tap_geometry(shape_, images, true), out, in);
      plans->weights = plan_weights<A>(tap_geometry(shape_, images, false), in, out);
      plans->partial =
          muster::device_buffer<float>(static_cast<std::size_t>(plans->weights.blocks_x) * shape_.weights());
    }
    return *plans;
  }

  void gather(const plan& by, const A* source, const A* weights, A* out, bool adds) {
    switch (by.tiles) {
      case 8:
        return start_plan(gather_product<A, Split, 8>, by, stream_, source, weights, out, adds);
      case 4:
        return start_plan(gather_product<A, Split, 4>, by, stream_, source, weights, out, adds);
      default:
        return start_plan(gather_product<A, Split, 2>, by, stream_, source, weights, out, adds);
    }
  }

  convolution_shape shape_;
  muster::device_stream_ref stream_;
  std::map<std::size_t, std::unique_ptr<all_plans>> plans_;
};

}  // namespace

template <class A>
std::unique_ptr<convolver<A>> make_tiles(const convolution_shape& shape, multiplication precision,
                                         muster::device_stream_ref stream) {
  const auto make = [&]<int Split>() -> std::unique_ptr<convolver<A>> {
    auto convolution_by_tiles = std::make_unique<tiles<A, Split>>(shape, stream);
    return convolution_by_tiles->fits() ? std::move(convolution_by_tiles) : nullptr;
  };
  if constexpr (std::is_same_v<A, float>) {
    if (precision == multiplication::float32) return make.template operator()<3>();
  }
  return make.template operator()<1>();
}

template std::unique_ptr<convolver<float>> make_tiles(const convolution_shape&, multiplication,
                                                      muster::device_stream_ref);
template std::unique_ptr<convolver<muster::bfloat16>> make_tiles(const convolution_shape&, multiplication,
                                                                 muster::device_stream_ref);

}  // namespace nn::device
