// Tagging: each video has several of 3,862 labels. A linear model with a sigmoid for each label, on a parameter server
// with a row of weights for each label. A step pulls and pushes the rows of its videos' labels and of some other
// labels. The data are TFRecord shards of SequenceExamples in the form of YouTube-8M: `labels` of a video, and for each
// second of it `audio`, 128 bytes. The example generates the shards: two of twelve labels a video, each present in
// every second.
//
//   $ 11_tagging --ranks 3
//   512 videos in 4 shards, 2 workers: the best guess is a label of the video in ... of 100
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <Eigen/Core>
#include <muster/core/crc32c.hpp>
#include <muster/muster.hpp>

constexpr std::size_t classes = 3862, features = 128, seconds = 3, most_labels = 4, videos = 512, shards = 4;
constexpr std::size_t other_labels = 128, rows_at_once = 512;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using label_lists = std::vector<std::vector<std::uint64_t>>;  // by video

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

// Appends the mean over the seconds of each video, with 1 for the bias, and the labels.
void unpack(const muster::minibatch& part, matrix& x, label_lists& labels) {
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

// Returns the labels of the videos and some others, in ascending order.
std::vector<std::uint64_t> rows_of(const label_lists& labels, muster::random_stream& random) {
  std::vector<std::uint64_t> rows(other_labels);
  for (auto& row : rows) row = random.below(classes);
  for (const auto& of_video : labels) rows.insert(rows.end(), of_video.begin(), of_video.end());
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

matrix pull(muster::ps::client& tables, std::span<const std::uint64_t> rows) {
  matrix weights(static_cast<Eigen::Index>(rows.size()), features + 1);
  tables.pull(0, rows, std::span(weights.data(), rows.size() * (features + 1)));
  return weights;
}

// Returns the number of videos whose best guess among all labels is right. Pulls some of the rows at a time.
std::uint64_t count_hits(muster::ps::client& tables, const matrix& x, const label_lists& labels) {
  std::vector<float> best(labels.size(), -std::numeric_limits<float>::infinity());
  std::vector<std::uint64_t> guesses(labels.size()), rows;
  for (std::uint64_t first = 0; first < classes; first += rows.size()) {
    rows.resize(std::min(rows_at_once, classes - first));
    std::iota(rows.begin(), rows.end(), first);
    const matrix scores = x * pull(tables, rows).transpose();
    for (std::size_t i = 0; i < labels.size(); ++i) {
      Eigen::Index at = 0;
      const float score = scores.row(static_cast<Eigen::Index>(i)).maxCoeff(&at);
      if (score <= best[i]) continue;
      best[i] = score;
      guesses[i] = first + static_cast<std::uint64_t>(at);
    }
  }
  std::uint64_t hits = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) hits += std::ranges::count(labels[i], guesses[i]) > 0 ? 1 : 0;
  return hits;
}

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context& context, muster::group& world) {
    for (std::size_t shard = 0; shard < shards && world.rank() == 0; ++shard) write_shard(shard);
    muster::barrier(world);
    const muster::ps::table_spec table{.name = "weights", .width = features + 1, .update = "adagrad:0.1"};
    muster::ps::job job(context, world, muster::ps::chosen_options(context.configuration(), {table}));
    if (job.is_server()) return job.serve();
    auto loader = muster::open_source(
                      "tfrecord:videos-0,videos-1,videos-2,videos-3?features=audio:uint8[..3x128],"
                      "labels:int64[..4]") |
                  muster::shuffle(1) | muster::batch(32) | muster::prefetch(2);
    muster::random_stream random(1, static_cast<std::uint64_t>(job.worker()));
    matrix x;
    label_lists labels;
    for (; loader.epoch() < 4; loader.next_epoch()) {
      while (const auto part = loader.next({job.worker(), job.workers()})) {
        x.resize(0, features + 1);
        labels.clear();
        unpack(part, x, labels);
        const auto rows = rows_of(labels, random);
        const matrix scores = x * pull(job.tables(), rows).transpose();
        // The gradient of the cross-entropy for the sigmoid of each of these labels.
        matrix error = (1 / (1 + (-scores.array()).exp())).matrix();
        for (std::size_t i = 0; i < labels.size(); ++i)
          for (const auto label : labels[i])
            error(static_cast<Eigen::Index>(i), std::ranges::lower_bound(rows, label) - rows.begin()) -= 1;
        const matrix gradient = error.transpose() * x / static_cast<float>(part.global_size);
        job.tables().push(0, rows, std::span(gradient.data(), rows.size() * (features + 1)));
        job.tables().next_clock();
        loader.commit();
      }
    }
    auto workers = job.connect_workers();
    muster::barrier(workers);  // all workers have pushed
    x.resize(0, features + 1);
    labels.clear();
    while (const auto part = loader.next({job.worker(), job.workers()})) {
      unpack(part, x, labels);
      loader.commit();
    }
    const auto hits = muster::allreduce(workers, count_hits(job.tables(), x, labels), muster::sum);
    if (hits < videos * 8 / 10) throw std::runtime_error("only " + std::to_string(hits) + " guesses are right");
    if (job.worker() == 0)
      std::printf("%d videos in %d shards, %d workers: the best guess is a label of the video in %d of 100\n",
                  int{videos}, int{shards}, job.workers(), static_cast<int>(hits * 100 / videos));
    job.finish();
  });
}
