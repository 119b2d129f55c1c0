// Tagging: each video has several of 3,862 labels. A linear model with a sigmoid for each label, on a parameter server,
// fed by TFRecord shards of SequenceExamples in the form of YouTube-8M: `labels` of a video, and for each second of it
// `audio`, 128 bytes. The example generates the shards: two of twelve labels a video, each present in every second.
//
//   $ 11_tagging --ranks 3
//   512 videos in 4 shards, 2 workers: the best guess is a label of the video in ... of 100
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include <Eigen/Core>
#include <muster/core/crc32c.hpp>
#include <muster/muster.hpp>

constexpr std::size_t classes = 3862, features = 128, seconds = 3, most_labels = 4, videos = 512, shards = 4;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
// Returns a field of a protocol buffer: a length with seven bits in each byte, and content with this length.
std::string field(int number, const std::string& content) {
  std::string bytes(1, static_cast<char>(number << 3 | 2));
  for (auto left = content.size(); bytes += static_cast<char>((left & 127) | (left > 127 ? 128 : 0)), left > 127;)
    left >>= 7;
  return bytes + content;
}
std::string make_video(muster::random_stream& random) {
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
void write_shard(std::size_t shard) {
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

// Computes the mean over the seconds of each video, with 1 for the bias, and sets 1 for each label.
void unpack(const muster::minibatch& part, matrix& x, matrix& y) {
  const auto count = static_cast<Eigen::Index>(part.samples.size());
  x = matrix::Constant(count, features + 1, 1);
  y = matrix::Zero(count, classes);
  for (Eigen::Index i = 0; i < count; ++i) {
    const auto record = part.record(static_cast<std::size_t>(i));
    for (std::size_t k = 0; k < features; ++k) {
      float sum = 0;
      for (std::size_t s = 0; s < seconds; ++s) sum += static_cast<float>(record[s * features + k]) / 128 - 1;
      x(i, static_cast<Eigen::Index>(k)) = sum / seconds;
    }
    for (std::size_t k = 0; k < most_labels; ++k) {
      std::int64_t label = -1;
      std::memcpy(&label, record.data() + seconds * features + k * sizeof label, sizeof label);
      if (label >= 0) y(i, label) = 1;
    }
  }
}

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context, muster::group& world) {
    for (std::size_t shard = 0; shard < shards && world.rank() == 0; ++shard) write_shard(shard);
    muster::barrier(world);
    matrix weights(features + 1, classes), gradient(features + 1, classes), x, y;
    const auto flat = [](matrix& of) { return std::span(of.data(), (features + 1) * classes); };
    const muster::ps::table_spec table{.name = "weights", .size = flat(weights).size(), .update = "adagrad:0.1"};
    muster::ps::job job(context, world, muster::ps::chosen_options(context.configuration(), {table}));
    if (job.is_server()) return job.serve();
    auto loader = muster::open_source(
                      "tfrecord:videos-0,videos-1,videos-2,videos-3?features=audio:uint8[..3x128],"
                      "labels:int64[..4]") |
                  muster::shuffle(1) | muster::batch(32) | muster::prefetch(2);
    std::uint64_t hits = 0;  // in the last epoch, each counted before the step that learns from the video
    for (; loader.epoch() < 4; loader.next_epoch()) {
      hits = 0;
      while (const auto part = loader.next({job.worker(), job.workers()})) {
        job.tables().pull(0, flat(weights));
        unpack(part, x, y);
        const matrix scores = x * weights;
        for (Eigen::Index i = 0, best = 0; i < scores.rows(); ++i) {
          scores.row(i).maxCoeff(&best);
          hits += y(i, best) == 1;
        }
        // The gradient of the cross-entropy for each label's sigmoid.
        const matrix error = (1 / (1 + (-scores.array()).exp())).matrix() - y;
        gradient.noalias() = x.transpose() * error / static_cast<float>(part.global_size);
        job.tables().push(0, flat(gradient));
        job.tables().next_clock();
        loader.commit();
      }
    }
    auto workers = job.connect_workers();
    hits = muster::allreduce(workers, hits, muster::sum);
    if (hits < videos * 8 / 10) throw std::runtime_error("only " + std::to_string(hits) + " guesses are right");
    if (job.worker() == 0)
      std::printf("%d videos in %d shards, %d workers: the best guess is a label of the video in %d of 100\n",
                  int{videos}, int{shards}, job.workers(), static_cast<int>(hits * 100 / videos));
    job.finish();
  });
}
