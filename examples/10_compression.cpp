// Costs and savings of gradient codecs: one softmax regression trained with each codec, including a user-defined one.
//
//   $ 10_compression --ranks 2
//   codec         bytes a step   loss in epoch 2
//   none                 16064   0.9...
//   bfloat16              8020   0.9...
//   qsgd8                 4048   0.9...
//   topk:0.05             1608   0.9...
//   powersgd:2            3320   0.9...
//   trim:1                4012   0.9...
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include <muster/muster.hpp>

constexpr std::size_t inputs = 400, classes = 10, samples = 4000;

// Returns clouds of points around one centre for each class.
muster::dataset clouds() {
  auto builder = muster::dataset_builder::dense("clouds", samples, inputs);
  muster::random_stream random(5);
  std::vector<float> centres(classes * inputs);
  for (float& x : centres) x = static_cast<float>(random.normal());
  for (std::size_t k = 0; k < samples; ++k) {
    const std::size_t label = random.below(classes);
    builder.labels()[k] = static_cast<float>(label);
    auto point = builder.row(k);
    for (std::size_t i = 0; i < inputs; ++i)
      point[i] = 0.1f * centres[label * inputs + i] + static_cast<float>(random.normal());
  }
  return builder.finish();
}

// Returns the mean loss of the batch, and sums the gradients over the batch.
double forward_backward(const muster::dataset& data, const muster::minibatch& batch, muster::backward_pass& pass) {
  const auto w = pass.parameter(0), b = pass.parameter(1);
  const auto gw = pass.gradient(0), gb = pass.gradient(1);
  pass.clear();
  double loss = 0;
  for (const auto id : batch.samples) {
    const auto x = data.row(id);
    std::vector<float> p(b.begin(), b.end());
    for (std::size_t c = 0; c < classes; ++c)
      for (std::size_t i = 0; i < inputs; ++i) p[c] += w[c * inputs + i] * x[i];
    const float highest = *std::ranges::max_element(p);
    float all = 0;
    for (float& probability : p) all += probability = std::exp(probability - highest);
    const auto label = static_cast<std::size_t>(data.label(id));
    loss -= std::log(std::max(p[label] / all, 1e-30f));
    for (std::size_t c = 0; c < classes; ++c) {
      const float slope = p[c] / all - (c == label ? 1.0f : 0.0f);
      gb[c] += slope;
      for (std::size_t i = 0; i < inputs; ++i) gw[c * inputs + i] += slope * x[i];
    }
  }
  return loss / static_cast<double>(batch.samples.size());
}

// A user-defined codec, `trim:BYTES`: each value's highest bytes (on a little-endian machine).
struct trim_codec {
  std::size_t kept;  // bytes of a value
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const { return (count * kept + 3) / 4 * 4; }
  void encode(std::span<const float> values, std::uint64_t, std::span<std::byte> encoded) const {
    std::ranges::fill(encoded, std::byte{0});
    for (std::size_t k = 0; k < values.size(); ++k)
      std::memcpy(encoded.data() + k * kept, std::as_bytes(values).data() + (k + 1) * sizeof(float) - kept, kept);
  }
  void decode_add(std::span<const std::byte> encoded, std::uint64_t, float weight, std::span<float> sums) const {
    if (encoded.size() != encoded_bytes(sums.size()))
      throw muster::data_error({.file = "trimmed values"}, "the number of values is wrong; use one model at all ranks");
    for (std::size_t k = 0; k < sums.size(); ++k) {
      float value = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&value) + sizeof value - kept, encoded.data() + k * kept, kept);
      sums[k] += weight * value;
    }
  }
};

muster::any_codec make_trim(muster::spec_reader& from) {
  const trim_codec coder{from.read_whole("bytes", from.value("bytes"), 1, 3)};
  return {coder, {.is_biased = true}};  // the bytes that it drops are added to the next step
}

int main(int argc, char** argv) {
  muster::register_codec("trim", make_trim);  // on every rank
  return muster::run_main(argc, argv, [](muster::context& context, muster::group& world) {
    const auto data = clouds();
    if (world.rank() == 0) std::printf("codec         bytes a step   loss in epoch 2\n");
    for (const char* const codec : {"none", "bfloat16", "qsgd8", "topk:0.05", "powersgd:2", "trim:1"}) {
      auto loader = data | muster::shuffle(1) | muster::batch(100);
      muster::arena arena(context, {{"weights", {classes, inputs}}, {"bias", {classes}}});
      muster::sgd optimizer(arena, {.momentum = 0.9f});
      // Equivalent to --compress on the command line, which the shorter constructor reads.
      muster::training training(context, {.codec = muster::compress(codec)}, arena, optimizer, loader);
      training.run({.epochs = 2, .log = nullptr}, [&](muster::training_step& step) {
        const auto batch = step.next(loader);
        double loss = 0;
        step.backward(batch, [&](auto& part, auto& pass) { loss = forward_backward(data, part, pass); });
        step.update(optimizer, 0.02);
        step.report("loss", loss, batch.samples.size());
      });
      if (world.rank() == 0)
        std::printf("%-12s %13llu   %.4f\n", codec, static_cast<unsigned long long>(training.sync().bytes_sent()),
                    training.epochs().back()["loss"]);
    }
  });
}
