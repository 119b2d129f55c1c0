// Prints a digest of the bits of every reduction, codec and update of parameters, for comparison between programs that
// were compiled in different ways.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <muster/collectives.hpp>
#include <muster/core/codec/compression.hpp>
#include <muster/core/convert.hpp>
#include <muster/core/float16.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/random.hpp>
#include <muster/core/update.hpp>

namespace {

constexpr std::size_t count = 1003;

template <class T>
std::uint64_t digest_of(const std::vector<T>& values) {
  return muster::digest().add(std::as_bytes(std::span(values))).value();
}

template <class T>
std::vector<T> draw(std::uint64_t seed) {
  muster::random_stream stream(seed);
  std::vector<T> values;
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {
      values.push_back(static_cast<T>(stream.below(7) + 1));
    } else {
      values.push_back(T(static_cast<float>(stream.normal())));
    }
  }
  return values;
}

void print(muster::group& world, const std::string& name, std::uint64_t digest) {
  if (world.rank() == 0) std::printf("%s %016llx\n", name.c_str(), static_cast<unsigned long long>(digest));
}

template <class T>
void reduce(muster::group& world, const char* type) {
  const auto run = [&](const char* name, auto operation) {
    auto values = draw<T>(static_cast<std::uint64_t>(world.rank()) + 1);
    muster::allreduce(world, values, operation);
    print(world, std::string(name) + " of " + type, digest_of(values));
  };
  run("sum", muster::sum);
  run("product", muster::product);
  run("min", muster::min);
  run("max", muster::max);
  run("mean", muster::mean);
  run("the program's own operation", [](T a, T b) { return a < b ? b : a; });
}

void encode(muster::group& world, const std::string& name) {
  const muster::any_codec codec(muster::parse_compression(name));
  const auto values = draw<float>(9);
  std::vector<std::byte> encoded(codec.encoded_bytes(values.size()));
  codec.encode(values, 3, encoded);
  auto sums = draw<float>(10);
  codec.decode_add(encoded, 3, 0.37f, sums);
  print(world, "codec " + name + " encoded", digest_of(encoded));
  print(world, "codec " + name + " added", digest_of(sums));
}

template <class Step>
void update(muster::group& world, const char* name, const Step& step) {
  auto parameters = draw<typename Step::value>(11);
  std::vector<typename Step::value> first(count), second(count);
  for (std::uint64_t k = 1; k <= 5; ++k) {
    const auto gradients = draw<typename Step::value>(20 + k);
    if (step.states() == 0) muster::update<Step>(step, parameters, gradients);
    if (step.states() == 1) muster::update<Step>(step, parameters, gradients, {first});
    if (step.states() == 2) muster::update<Step>(step, parameters, gradients, {first, second});
  }
  print(world, std::string("update ") + name, digest_of(parameters));
}

template <class T>
void update_all(muster::group& world, const std::string& type) {
  update(world, ("sgd of " + type).c_str(), muster::sgd_step<T>{.learning_rate = T(0.1), .decay = T(0.01)});
  update(world, ("momentum of " + type).c_str(),
         muster::sgd_step<T>{.learning_rate = T(0.1), .momentum = T(0.9), .nesterov = true, .decay = T(0.01)});
  update(world, ("adam of " + type).c_str(), muster::adam_step<T>{.learning_rate = 0.01, .decay = 0.1, .count = 3});
  update(world, ("adagrad of " + type).c_str(), muster::adagrad_step<T>{.learning_rate = T(0.1), .decay = T(0.01)});
  update(world, ("lars of " + type).c_str(), muster::lars_step<T>{.learning_rate = T(0.1), .decay = T(0.01)});
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context&, muster::group& world) {
    reduce<float>(world, "float");
    reduce<double>(world, "double");
    reduce<muster::float16>(world, "float16");
    reduce<muster::bfloat16>(world, "bfloat16");
    reduce<std::int8_t>(world, "int8");
    reduce<std::int32_t>(world, "int32");
    reduce<std::int64_t>(world, "int64");
    for (const char* const codec : {"none", "float16", "bfloat16", "qsgd8", "sign", "topk:0.1"}) encode(world, codec);
    update_all<float>(world, "float");
    update_all<double>(world, "double");
  });
}
