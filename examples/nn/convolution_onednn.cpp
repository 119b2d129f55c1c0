#include "convolution_onednn.hpp"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include <omp.h>
#include <dnnl.hpp>

#include <muster/core/buffer.hpp>

namespace nn {
namespace {

using dnnl::memory;

dnnl::engine& engine() {
  static dnnl::engine instance(dnnl::engine::kind::cpu, 0);
  return instance;
}

memory::dim dim(std::size_t value) { return static_cast<memory::dim>(value); }

class onednn_convolution final : public convolution<float> {
 public:
  explicit onednn_convolution(const convolution_shape& shape)
      : convolution<float>(shape),
        stream_(engine()),
        block_(std::clamp<std::size_t>(8192 / (shape.out().height * shape.out().width), 1, 32)),
        input_(block_ * shape.in.size()),
        slope_(block_ * shape.out().size()),
        sum_(block_ * shape.in.size()),
        weight_sum_(shape.weights()) {}

  [[nodiscard]] std::size_t block() const noexcept override { return block_; }
  [[nodiscard]] image_view<float> input(std::size_t k) noexcept override { return view(input_, shape().in, k); }
  [[nodiscard]] image_view<float> slope(std::size_t k) noexcept override { return view(slope_, shape().out(), k); }
  void begin(std::span<const float> weights) override {
    omp_set_num_threads(1);  // Limits oneDNN to this thread; lanes use the other threads.
    weights_ = weights;
  }

  void forward(std::size_t images, const float* bias, float* out) override {
    auto& with = prepared(images);
    with.forward.execute(stream_, {{DNNL_ARG_SRC, of(with.in, input_.data())},
                                   {DNNL_ARG_WEIGHTS, of(with.weights, const_cast<float*>(weights_.data()))},
                                   {DNNL_ARG_DST, of(with.out, out)},
                                   {DNNL_ARG_SCRATCHPAD, of(with.forward_scratch, scratch_)}});
    stream_.wait();
    const std::size_t channels = shape().out_channels;
    for (std::size_t i = 0; bias != nullptr && i < images * shape().out().size(); ++i) out[i] += bias[i % channels];
  }

  void backward_data(std::size_t images, float* in, bool add) override {
    auto& with = prepared(images);
    float* const to = add ? sum_.data() : in;
    with.data.execute(stream_, {{DNNL_ARG_DIFF_DST, of(with.out, slope_.data())},
                                {DNNL_ARG_WEIGHTS, of(with.weights, const_cast<float*>(weights_.data()))},
                                {DNNL_ARG_DIFF_SRC, of(with.in, to)},
                                {DNNL_ARG_SCRATCHPAD, of(with.data_scratch, scratch_)}});
    stream_.wait();
    for (std::size_t i = 0; add && i < images * shape().in.size(); ++i) in[i] += sum_[i];
  }

  void backward_weights(std::size_t images, const float* slopes, float* weights) override {
    auto& with = prepared(images);
    with.slopes.execute(
        stream_, {{DNNL_ARG_SRC, of(with.in, input_.data())},
                  {DNNL_ARG_DIFF_DST, of(with.out, slopes != nullptr ? const_cast<float*>(slopes) : slope_.data())},
                  {DNNL_ARG_DIFF_WEIGHTS, of(with.weights, weight_sum_.data())},
                  {DNNL_ARG_SCRATCHPAD, of(with.slopes_scratch, scratch_)}});
    stream_.wait();
    for (std::size_t i = 0; i < weight_sum_.size(); ++i) weights[i] += weight_sum_[i];
  }

 private:
  /// The primitives that oneDNN creates for a number of images.
  struct primitives {
    memory::desc in, weights, out, forward_scratch, data_scratch, slopes_scratch;
    dnnl::primitive forward, data, slopes;
  };

  static image_view<float> view(std::vector<float>& all, const extent& size, std::size_t k) noexcept {
    return {all.data() + k * size.size(), size.height, size.width, size.channels, size.width * size.channels};
  }
  static memory of(const memory::desc& description, float* data) { return {description, engine(), data}; }
  static memory of(const memory::desc& description, muster::buffer<std::byte>& bytes) {
    return {description, engine(), bytes.data()};
  }

  primitives& prepared(std::size_t images) {
    const auto found = primitives_.find(images);
    if (found != primitives_.end()) return found->second;
    const auto& s = shape();
    const extent out = s.out();
    using tag = memory::format_tag;
    constexpr auto f32 = memory::data_type::f32;
    primitives with;
    with.in = {{dim(images), dim(s.in.channels), dim(s.in.height), dim(s.in.width)}, f32, tag::nhwc};
    with.weights = {{dim(s.out_channels), dim(s.in.channels), dim(s.kernel), dim(s.kernel)}, f32, tag::hwio};
    with.out = {{dim(images), dim(out.channels), dim(out.height), dim(out.width)}, f32, tag::nhwc};
    const memory::dims strides(2, dim(s.stride)), before(2, dim(s.padding));
    const auto behind_of = [&](std::size_t in, std::size_t outputs) {  // The last stride may leave pixels unused.
      return dim((outputs - 1) * s.stride + s.kernel) - dim(in) - dim(s.padding);
    };
    const memory::dims behind = {behind_of(s.in.height, out.height), behind_of(s.in.width, out.width)};
    constexpr auto direct = dnnl::algorithm::convolution_auto;
    // oneDNN's own scratchpad belongs to the thread that creates a primitive, and lanes move between threads.
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, direct, with.in, with.weights, with.out, strides, before, behind},
        attributes, engine());
    const dnnl::convolution_backward_data::primitive_desc data(
        {direct, with.in, with.weights, with.out, strides, before, behind}, attributes, engine(), forward);
    const dnnl::convolution_backward_weights::primitive_desc slopes(
        {direct, with.in, with.weights, with.out, strides, before, behind}, attributes, engine(), forward);
    with.forward = dnnl::convolution_forward(forward);
    with.data = dnnl::convolution_backward_data(data);
    with.slopes = dnnl::convolution_backward_weights(slopes);
    with.forward_scratch = forward.scratchpad_desc();
    with.data_scratch = data.scratchpad_desc();
    with.slopes_scratch = slopes.scratchpad_desc();
    const std::size_t most =
        std::max({with.forward_scratch.get_size(), with.data_scratch.get_size(), with.slopes_scratch.get_size()});
    if (most > scratch_.size()) scratch_ = muster::buffer<std::byte>(most);
    return primitives_.emplace(images, std::move(with)).first->second;
  }

  dnnl::stream stream_;
  std::size_t block_;
  std::vector<float> input_, slope_, sum_, weight_sum_;
  std::span<const float> weights_;
  std::unordered_map<std::size_t, primitives> primitives_;
  muster::buffer<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<convolution<float>> make_onednn_convolution(const convolution_shape& shape) {
  return std::make_unique<onednn_convolution>(shape);
}

}  // namespace nn
