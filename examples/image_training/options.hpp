// What the command line of a program that trains on images asks for.
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
  std::string test{};         ///< empty: those that belong to `data`
  std::uint64_t limit = 0;    ///< training images; 0: all
  double holdout = 0;         ///< share of them that takes the place of the test images
  std::uint32_t side = 224;   ///< of images that are JPEG files
  bool scaled_alone = false;  ///< see image_data
  bool augment = true;
  std::string model{};  ///< a model_description's name
  std::uint64_t epochs = 3;
  std::uint64_t steps = 0;           ///< 0: no limit
  double max_train_seconds = 0;      ///< 0: no limit
  std::uint64_t batch = 128;         ///< over all ranks, as the job starts
  std::uint64_t batch_per_rank = 0;  ///< 0: `batch` stays when ranks come or go; else this does
  std::string schedule = "step:0.1,epochs=2,factor=0.1";
  std::string optimizer = "nesterov:0.9,decay=1e-4";
  muster::goal goal{};
  bool stop_at_goal = false;
  std::uint64_t seed = 1;
  bool share_statistics = false;
  nn::execution how{};
  std::string device = "cpu";      ///< or "cuda"
  std::string precision = "tf32";  ///< of a device's products: "float32", "tf32", "bfloat16" (activations, too)
  examples::stages stages{};
  std::string checkpoint{};  ///< a folder; empty: none
  bool resume = false;
  std::string save{};  ///< a file; empty: the model is not saved
  std::string json{};  ///< empty: no report
};

/// What differs between the programs.
struct program {
  std::string name;
  std::string about;
  options defaults{};
  bool mlbench = false;  ///< has the presets of MLBench's task 1a
  /// Adds the flags that say which model it is, and gives a function for its name once they are read.
  std::function<std::function<std::string()>(CLI::App&)> add_flags;
};

/// Reads the command line of a job of `ranks` ranks, from which muster has taken its own flags out already. Throws
/// muster::configuration_error.
options parse_options(int argc, char** argv, int ranks, const muster::settings& settings, const program& which);

/// What --help prints.
std::string help_text(const program& which);

/// The options that decide the numbers of a run in one line.
std::string describe(const options& chosen);

/// The batches that it asks for, of all ranks or of each.
muster::batch batches_of(const options& chosen);

}  // namespace images
