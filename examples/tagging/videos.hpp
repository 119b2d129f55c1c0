// Videos in the form of YouTube-8M, for 11_tagging: SequenceExamples in TFRecord shards.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <Eigen/Core>
#include <muster/core/crc32c.hpp>
#include <muster/muster.hpp>

inline constexpr std::size_t classes = 3862, features = 128, seconds = 3, most_labels = 4, videos = 512, shards = 4;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using label_lists = std::vector<std::vector<std::uint64_t>>;  // by video

// Returns a field of a protocol buffer: a length with seven bits in each byte, and content with this length.
inline std::string field(int number, const std::string& content) {
  std::string bytes(1, static_cast<char>(number << 3 | 2));
  for (auto left = content.size(); bytes += static_cast<char>((left & 127) | (left > 127 ? 128 : 0)), left > 127;)
    left >>= 7;
  return bytes + content;
}
inline std::string make_video(muster::random_stream& random) {
  const std::uint64_t labels[] = {311 * random.below(12), 311 * random.below(12)};
  std::string numbers, steps;
  for (const auto label : labels) numbers += {static_cast<char>((label & 127) | 128), static_cast<char>(label >> 7)};
  for (std::size_t second = 0; second < seconds; ++second) {
    std::string audio(features, '\0');
    for (std::size_t k = 0; k < features; ++k) {
      double value = 128 + 15 * random.normal();
      for (const auto label : labels) value += muster::mix(label * features + k) % 2 == 0 ? 25 : -25;
      audio[k] = static_cast<char>(std::clamp(value, 0.0, 255.0));
    }
    steps += field(1, field(1, field(1, audio)));  // a Feature with a BytesList of one value
  }
  const auto entry = [](const char* key, const std::string& value) {
    return field(1, field(1, key) + field(2, value));
  };
  return field(1, entry("labels", field(3, field(1, numbers)))) + field(2, entry("audio", steps));
}

// Writes each video after its length. A checksum follows the length, and another checksum the video.
inline void write_shard(std::size_t shard) {
  std::ofstream file("videos-" + std::to_string(shard), std::ios::binary);
  muster::random_stream random(shard);
  for (std::size_t k = 0; k < videos / shards; ++k) {
    const std::string video = make_video(random);
    const std::uint64_t size = video.size();
    for (const auto& part : {std::string(reinterpret_cast<const char*>(&size), sizeof size), video}) {
      const std::uint32_t sum = std::rotr(muster::crc32c(std::as_bytes(std::span(part))), 15) + 0xa282ead8U;
      (file << part).write(reinterpret_cast<const char*>(&sum), sizeof sum);
    }
  }
}

// Appends the mean over the seconds of each video, with 1 for the bias, and the labels.
inline void unpack(const muster::minibatch& part, matrix& x, label_lists& labels) {
  for (std::size_t video = 0; video < part.samples.size(); ++video) {
    const auto record = part.record(video);
    x.conservativeResize(x.rows() + 1, features + 1);
    x.bottomRows(1).setOnes();
    for (std::size_t k = 0; k < features; ++k) {
      float sum = 0;
      for (std::size_t s = 0; s < seconds; ++s) sum += static_cast<float>(record[s * features + k]) / 128 - 1;
      x(x.rows() - 1, static_cast<Eigen::Index>(k)) = sum / seconds;
    }
    auto& of_video = labels.emplace_back();
    for (std::size_t k = 0; k < most_labels; ++k) {
      std::int64_t label = -1;
      std::memcpy(&label, record.data() + seconds * features + k * sizeof label, sizeof label);
      if (label >= 0 && std::ranges::count(of_video, static_cast<std::uint64_t>(label)) == 0)
        of_video.push_back(static_cast<std::uint64_t>(label));
    }
  }
}
