// Tagging: each video has several of 3,862 labels. A linear model with a sigmoid for each label, on a parameter server
// with a row of weights for each label. A step pulls and pushes the rows of its videos' labels and of some other
// labels. The data are TFRecord shards of SequenceExamples in the form of YouTube-8M: `labels` of a video, and for each
// second of it `audio`, 128 bytes. The example generates the shards: two of twelve labels a video, each present in
// every second.
//
//   $ 11_tagging --ranks 3
//   512 videos in 4 shards, 2 workers: the best guess is a label of the video in ... of 100
#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <Eigen/Core>
#include <muster/muster.hpp>

#include "tagging/videos.hpp"

constexpr std::size_t other_labels = 128, rows_at_once = 512;

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
