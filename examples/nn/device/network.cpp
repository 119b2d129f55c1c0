#include "network.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>
#include <muster/core/float16.hpp>
#include <muster/data/classes.hpp>

#include "steps.hpp"

namespace nn::device {
namespace {

/// Upper limit in seconds for a pass.
constexpr muster::seconds patience{60};

/// Number of channels that a matrix unit processes at once.
constexpr std::size_t least_channels = 16;

/// Returns the size rounded up to the alignment at which weights begin in the common array.
constexpr std::size_t aligned(std::size_t size) { return (size + 127) / 128 * 128; }

[[noreturn]] void refuse(const char* layer) {
  throw muster::configuration_error(std::string("a network on a device has no ") + layer +
                                    " (this model needs it); use --device cpu");
}

}  // namespace

template <class A>
network<A>::network(const extent& input, multiplication precision, muster::device_stream_ref stream)
    : stream_(stream), given_(input), convolutions_(stream, precision) {
  auto& in = make({input.height, input.width, std::max(input.channels, least_channels)});
  in.outside = true;
  in.used = input.channels;
}
template <class A>
network<A>::~network() = default;

// ---- construction ----

template <class A>
activation<A>& network<A>::make(const extent& shape) {
  widest_ = std::max(widest_, shape.channels);
  return activations_.emplace_back(shape);
}

template <class A>
norm& network<A>::make_norm(std::size_t channels) {
  const std::size_t scale = parameters_++, shift = parameters_++;
  return norms_.emplace_back(channels, scale, shift);
}

template <class A>
activation<A>& network<A>::make_weighted(activation<A>& in, const convolution_shape& shape, std::size_t used,
                                         std::size_t out_channels, bool bias) {
  auto& out = make(shape.out());
  out.used = out_channels;
  auto step = std::make_unique<convolve_step<A>>(in, out, convolutions_.make(shape));
  step->first_weight = weights_size_;
  step->weights = shape.weights();
  weights_size_ += aligned(shape.weights());
  const std::size_t weights = parameters_++;
  const auto bias_index = bias ? std::optional(parameters_++) : std::nullopt;
  if (bias) step->completes.push_back(*bias_index);
  step->completes.push_back(weights);
  weighted_.push_back({step.get(), shape, used, out_channels, weights, bias_index});
  steps_.push_back(std::move(step));
  written_.push_back(&out);
  return out;
}

template <class A>
activation<A>& network<A>::convolve(activation<A>& in, const convolve_options& options) {
  return make_weighted(in, {in.shape(), options.channels, options.kernel, options.stride, options.padding}, in.used,
                       options.channels, options.bias);
}

template <class A>
activation<A>& network<A>::dense(activation<A>& in, std::size_t size) {
  if (&in == &input()) refuse("dense layer of the network's input");
  const std::size_t numbers = in.shape().size();
  return make_weighted(in, {{1, 1, numbers}, (size + 15) / 16 * 16, 1, 1, 0},
                       in.shape().size() == in.shape().channels ? in.used : numbers, size, true);
}

template <class A>
activation<A>& network<A>::normalise(activation<A>& in) {
  in.normalised = &make_norm(in.shape().channels);
  return in;
}

template <class A>
activation<A>& network<A>::relu(activation<A>& in) noexcept {
  in.rectified = true;
  return in;
}

template <class A>
activation<A>& network<A>::normalised_view(activation<A>& in) {
  auto& out = make(in.shape());
  out.is_view = true;
  steps_.push_back(std::make_unique<combine_step<A>>(out, std::vector{reader<A>(in)}));
  written_.push_back(&out);
  return relu(normalise(out));
}

template <class A>
activation<A>& network<A>::add(activation<A>& a, activation<A>& b) {
  auto& out = make(a.shape());
  out.is_sum = true;
  steps_.push_back(std::make_unique<combine_step<A>>(out, std::vector{reader<A>(a), reader<A>(b)}));
  written_.push_back(&out);
  ++a.sums;
  ++b.sums;
  return out;
}

template <class A>
activation<A>& network<A>::pad_shortcut(activation<A>& in, std::size_t channels, std::size_t stride) {
  const auto cut = [&](std::size_t side) { return (side + stride - 1) / stride; };
  auto& out = make({cut(in.shape().height), cut(in.shape().width), channels});
  steps_.push_back(std::make_unique<shortcut_step<A>>(in, out, stride));
  written_.push_back(&out);
  return out;
}

template <class A>
activation<A>& network<A>::max(activation<A>& in, const pool_window& window) {
  const auto cut = [&](std::size_t side) { return (side + 2 * window.padding - window.kernel) / window.stride + 1; };
  auto& out = make({cut(in.shape().height), cut(in.shape().width), in.shape().channels});
  steps_.push_back(std::make_unique<max_step<A>>(in, out, window));
  written_.push_back(&out);
  return out;
}

template <class A>
activation<A>& network<A>::average(activation<A>& in) {
  auto& out = make({1, 1, in.shape().channels});
  steps_.push_back(std::make_unique<average_step<A>>(in, out));
  written_.push_back(&out);
  return out;
}

template <class A>
activation<A>& network<A>::sigmoid(activation<A>& in) {
  auto& out = make(in.shape());
  steps_.push_back(std::make_unique<sigmoid_step<A>>(in, out));
  written_.push_back(&out);
  return out;
}

template <class A>
activation<A>& network<A>::drop(activation<A>& in, double probability) {
  if (in.used != in.shape().channels) refuse("dropout of channels that are no multiple of 16");
  auto& out = make(in.shape());
  steps_.push_back(std::make_unique<drop_step<A>>(in, out, probability, ++dropouts_));
  written_.push_back(&out);
  return out;
}

template <class A>
void network<A>::finish(activation<A>& out) {
  output_ = &out;
  for (auto& each : activations_) {
    const bool function = !each.is_view && (each.normalised != nullptr || (each.rectified && !each.is_sum));
    each.folded = function && !each.rectified && each.readers == 1 && each.sums == 1;
    each.has_function = function && !each.folded;
  }
  std::vector<std::unique_ptr<step<A>>> all;
  for (std::size_t k = 0; k < steps_.size(); ++k) {
    all.push_back(std::move(steps_[k]));
    if (written_[k]->has_function) all.push_back(std::make_unique<combine_step<A>>(*written_[k]));
  }
  steps_ = std::move(all);
  for (auto at = steps_.rbegin(); at != steps_.rend(); ++at) (*at)->take_turns();
}

template <class A>
void network<A>::bind(muster::device_arena& arena, std::span<float> statistics) {
  if (arena.shapes().size() != parameters_) {
    throw muster::configuration_error("the parameters are of another network (they are " +
                                      std::to_string(arena.shapes().size()) + ", and this one has " +
                                      std::to_string(parameters_) + "); make both from one model");
  }
  arena_ = &arena;
  statistics_ = statistics;
  device_statistics_ = muster::device_buffer<float>(statistics.size());
  host_statistics_ = muster::pinned_buffer<float>(statistics.size());
  std::size_t at = 0;
  for (auto& each : norms_) {
    each.bind(arena, device_statistics_.span().subspan(at, 2 * each.channels).data());
    at += 2 * each.channels;
  }
  weights_ = muster::device_buffer<A>(2 * weights_size_);
  weight_gradients_ = muster::device_buffer<A>(weights_size_);
  std::vector<std::int32_t> places(2 * weights_size_, -1);
  for (const auto& each : weighted_) {
    const auto& shape = each.shape;
    const auto first = static_cast<std::size_t>(arena.parameter(each.weights).data() - arena.parameters().data());
    const std::size_t taps = shape.kernel * shape.kernel;
    for (std::size_t out = 0; out < each.out; ++out) {
      for (std::size_t tap = 0; tap < taps; ++tap) {
        for (std::size_t in = 0; in < each.in; ++in) {
          const auto place = static_cast<std::int32_t>(first + (tap * each.in + in) * each.out + out);
          places[each.of->first_weight + (out * taps + tap) * shape.in.channels + in] = place;
          places[weights_size_ + each.of->first_weight + (in * taps + tap) * shape.out_channels + out] = place;
        }
      }
    }
    each.of->bind({weights_.span().data(), weights_.span().data() + weights_size_}, weight_gradients_.span().data(),
                  each.bias ? arena.parameter(*each.bias).data() : nullptr,
                  each.bias ? arena.gradient(*each.bias).data() : nullptr);
  }
  weight_places_ = muster::device_buffer<std::int32_t>(places.size());
  muster::copy(std::span<const std::int32_t>(places), weight_places_.span(), stream_);
  muster::wait_for(stream_, muster::deadline_after(patience));
  scratch_ = std::make_unique<column_scratch>(widest_);
  totals_ = muster::device_buffer<double>(3);
  host_totals_ = muster::pinned_buffer<double>(3);
}

template <class A>
void network<A>::reserve(std::size_t images) {
  if (images > reserved_) {
    recorded_.clear();
    for (auto& each : activations_) {
      const std::size_t size = images * each.shape().size();
      each.raw_values = muster::device_buffer<A>(size);
      if (each.has_function) each.read_values = muster::device_buffer<A>(size);
      if (!each.outside) each.slopes = muster::device_buffer<A>(size);
    }
    for (auto& each : steps_) each->reserve(images);
    images_ = muster::device_buffer<float>(images * given_.size());
    labels_ = muster::device_buffer<float>(images);
    logits_ = muster::device_buffer<float>(images * output_->used);
    host_images_ = muster::pinned_buffer<float>(images_.size());
    host_labels_ = muster::pinned_buffer<float>(labels_.size());
    host_logits_ = muster::pinned_buffer<float>(logits_.size());
    reserved_ = images;
  }
  if (!prepared_.insert(images).second) return;
  for (auto& each : steps_) each->prepare(images);
}

// ---- computation ----

template <class A>
void network<A>::forward(const pass_on_device& now, std::span<const float> images) {
  const auto given = images_.span().first(images.size());
  muster::copy(std::span<const float>(host_images_.span().first(images.size())), given, stream_);
  muster::copy(std::span<const float>(host_statistics_.span()), device_statistics_.span(), stream_);
  widen<A>(given.data(), {now.images * given_.height * given_.width, given_.channels}, input().shape().channels,
           input().raw(), stream_);
  pack_weights<A>(arena_->parameters().data(), weight_places_.span().data(), 2 * weights_size_, weights_.span().data(),
                  stream_);
  for (auto& each : steps_) each->forward(now);
}

template <class A>
void network<A>::backward(const pass_on_device& now, const pass& of) {
  const auto add_weights = [&](std::size_t first, std::size_t count) {
    add_weight_gradients<A>(weight_gradients_.span().data() + first, weight_places_.span().data() + first, count,
                            arena_->gradients().data(), stream_);
  };
  for (auto at = steps_.rbegin(); at != steps_.rend(); ++at) {
    (*at)->backward(now);
    if (!of.ready) continue;
    if ((*at)->weights > 0) add_weights((*at)->first_weight, (*at)->weights);
    for (const std::size_t each : (*at)->completes) of.ready(each);
  }
  if (!of.ready) add_weights(0, weights_size_);
}

template <class A>
void network<A>::train(std::span<const float> images, std::span<const float> labels, double scale, const pass& now) {
  images_under_way_ = now.images;
  if (now.images == 0) {
    for (std::size_t each = 0; now.ready && each < parameters_; ++each) now.ready(each);
    return;
  }
  const std::size_t classes = output_->used;
  for (const float label : labels) (void)muster::class_of(label, classes);
  reserve(now.images);
  std::ranges::copy(images, host_images_.span().begin());
  std::ranges::copy(labels, host_labels_.span().begin());
  std::ranges::copy(statistics_, host_statistics_.span().begin());
  for (auto& each : steps_) each->begin(now);
  const auto work = [&] {
    const pass_on_device here{now.images, true, stream_, scratch_.get()};
    muster::copy(std::span<const float>(host_labels_.span().first(now.images)), labels_.span().first(now.images),
                 stream_);
    forward(here, images);
    softmax_cross_entropy<A>(output_->values(), labels_.span().data(), {now.images, output_->size.channels}, classes,
                             scale, output_->gradient(), totals_.span().data(), *scratch_, stream_);
    muster::copy(muster::device_span<const double>(totals_.span()), host_totals_.span(), stream_);
    muster::copy(muster::device_span<const float>(device_statistics_.span()), host_statistics_.span(), stream_);
    backward(here, now);
  };
  if (now.ready)
    work();
  else
    recorded_.run({now.images, true, scale}, stream_, work);
}

template <class A>
totals network<A>::finish_training() {
  const std::size_t images = std::exchange(images_under_way_, 0);
  if (images == 0) return {};
  muster::wait_for(stream_, muster::deadline_after(patience));
  std::ranges::copy(host_statistics_.span(), statistics_.begin());
  const auto found = host_totals_.span();
  return {found[0], images, static_cast<std::uint64_t>(found[1]), static_cast<std::uint64_t>(found[2])};
}

template <class A>
std::span<const float> network<A>::predict(std::span<const float> images, std::size_t count) {
  if (count == 0) return {};
  reserve(count);
  std::ranges::copy(images, host_images_.span().begin());
  std::ranges::copy(statistics_, host_statistics_.span().begin());
  const std::size_t logits = count * output_->used;
  recorded_.run({count, false, 0.0}, stream_, [&] {
    forward({count, false, stream_, scratch_.get()}, images);
    to_floats<A>(output_->values(), {count, output_->size.channels}, output_->used, logits_.span().data(), stream_);
    muster::copy(muster::device_span<const float>(logits_.span().first(logits)), host_logits_.span().first(logits),
                 stream_);
  });
  muster::wait_for(stream_, muster::deadline_after(patience));
  return host_logits_.span().first(logits);
}

template class network<float>;
template class network<muster::bfloat16>;

}  // namespace nn::device
