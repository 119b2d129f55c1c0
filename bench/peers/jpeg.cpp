// Images per second that a loader produces from a folder of JPEG files for training: a random window in each image,
// resized to 224 x 224, mirrored at random, normalised to floats.
//
//   jpeg FOLDER [THREADS] [EPOCHS]
//
// Prints a line for each epoch. The first epoch warms up. jpeg.py creates the folder and runs the peers.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <muster/muster.hpp>

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1, epochs = argc > 3 ? std::atoi(argv[3]) : 3;
  muster::image_options normalised;
  normalised.mean = {0.485f, 0.456f, 0.406f};
  normalised.deviation = {0.229f, 0.224f, 0.225f};
  // The caller helps with the batch for which it waits.
  auto loader = muster::open_source("images:" + folder) | muster::shuffle(1) | muster::batch(128) |
                muster::augment(muster::random_jpeg_crop()) | muster::map(muster::normalise(normalised)) |
                muster::prefetch({.batches = 4, .threads = threads - 1});
  for (int epoch = 0; epoch <= epochs; ++epoch, loader.next_epoch()) {
    const auto start = muster::clock::now();
    std::size_t images = 0;
    float use = 0;
    for (; const auto batch = loader.next({}); loader.commit()) {
      images += batch.samples.size();
      use += batch.values<float>()[0];
    }
    const double rate = static_cast<double>(images) / muster::seconds_since(start);
    std::printf("%s %.1f images/s%s\n", epoch == 0 ? "warming up:" : "epoch:", rate, use == 0.125f ? "!" : "");
  }
}
