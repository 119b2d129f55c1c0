// The command line of a program that trains on images.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <muster/core/env.hpp>
#include <muster/data/loader.hpp>
#include <muster/train/tracker.hpp>

#include "../pipeline.hpp"
#include "models.hpp"

namespace CLI {
class App;
}

namespace images {

struct options {
  std::string program{};
  std::string data = "cifar-like:5000";
  std::string test{};         ///< Empty: the test images of `data`.
  std::uint64_t limit = 0;    ///< Number of training images; 0: all.
  double holdout = 0;         ///< Share of the training images that replaces the test images.
  std::uint32_t side = 224;   ///< Side in pixels to which JPEG images are scaled.
  bool grey = false;          ///< JPEG images become grey, with one channel.
  bool scaled_alone = false;  ///< See image_data.
  bool augment = true;
  std::string model{};  ///< Name of a model_description.
  std::uint64_t epochs = 3;
  std::uint64_t steps = 0;       ///< 0: no limit.
  double max_train_seconds = 0;  ///< 0: no limit.
  std::uint64_t batch = 128;     ///< Images in a step over all initial ranks.
  /// 0: `batch` is constant when ranks join or leave; otherwise each rank's batch is constant.
  std::uint64_t batch_per_rank = 0;
  std::string schedule = "step:0.1,epochs=2,factor=0.1";
  std::string optimizer = "nesterov:0.9,decay=1e-4";
  muster::goal goal{};
  bool stop_at_goal = false;
  std::uint64_t seed = 1;
  bool share_statistics = false;
  nn::execution execution{};
  std::string device = "cpu";  ///< Or "cuda".
  /// Precision of a device's products: "float32", "tf32", "bfloat16" (also for activations).
  std::string precision = "tf32";
  examples::stages stages{};
  std::string checkpoint{};  ///< A folder; empty: none.
  bool resume = false;
  std::string init{};      ///< A file; empty: the parameters begin at random.
  std::string save{};      ///< A file; empty: the model is not saved.
  bool save_best = false;  ///< Saves the model of the epoch with the best validation accuracy, not of the last epoch.
  std::string json{};      ///< Empty: no report.
};

/// The differences between the programs.
struct program {
  std::string name;
  std::string about;
  options defaults{};
  bool mlbench = false;  ///< Adds the presets of MLBench's task 1a.
  /// Adds the flags that select the model. Returns a function that yields the model's name after the flags are parsed.
  std::function<std::function<std::string()>(CLI::App&)> add_flags;
};

/// Parses the command line of a job of `ranks` ranks, after muster has removed its own flags. Throws
/// muster::configuration_error.
options parse_options(int argc, char** argv, int ranks, const muster::settings& settings, const program& which);

/// Returns the text that --help prints.
std::string help_text(const program& which);

/// Returns the options that determine the numbers of a run in one line.
std::string describe(const options& chosen);

/// Returns the requested batches, over all ranks or for each rank.
muster::batch batches_of(const options& chosen);

}  // namespace images
