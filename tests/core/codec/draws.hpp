// Inputs for tests of codecs: the same on every machine, since the tests compare the bits of the results.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <muster/core/codec/compression.hpp>
#include <muster/core/random.hpp>

#include "trim.hpp"

inline const std::vector<std::string> span_codecs = {"none", "float16",  "bfloat16",  "qsgd8",
                                                     "sign", "topk:0.1", "stride:10", "trim:2"};

inline muster::any_codec codec_named(const std::string& name) {
  return muster::any_codec(muster::parse_compression(name));
}

/// Returns values of both signs with magnitudes over five decades, like gradients; an eighth of the values are 0.
inline std::vector<float> draw_gradient(muster::random_stream& random, std::size_t size) {
  std::vector<float> values(size);
  for (auto& value : values) {
    const auto exponent = static_cast<int>(random.below(16)) - 12;
    value = random.below(8) == 0 ? 0.0f : static_cast<float>(std::ldexp(random.uniform() * 2.0 - 1.0, exponent));
  }
  return values;
}

/// The encoded form, aligned to 4 bytes.
struct encoded_form {
  std::vector<std::uint32_t> words;
  std::size_t bytes;

  explicit encoded_form(std::size_t size) : words((size + 3) / 4), bytes(size) {}
  [[nodiscard]] std::span<std::byte> span() { return std::as_writable_bytes(std::span(words)).first(bytes); }
};

template <muster::codec C>
encoded_form encode(const C& coder, const std::vector<float>& values, std::uint64_t draw) {
  encoded_form result(coder.encoded_bytes(values.size()));
  coder.encode(values, draw, result.span());
  return result;
}

template <muster::codec C>
std::vector<float> decode(const C& coder, encoded_form& encoded, std::size_t size, std::uint64_t draw) {
  std::vector<float> values(size);
  coder.decode_add(encoded.span(), draw, 1.0f, values);
  return values;
}

template <muster::codec C>
std::vector<float> there_and_back(const C& coder, const std::vector<float>& values, std::uint64_t draw) {
  auto encoded = encode(coder, values, draw);
  return decode(coder, encoded, values.size(), draw);
}

inline double squares(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

inline double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return sum;
}
