// What the command line asks for.
#pragma once

#include <cstdint>
#include <string>

#include <muster/data/bad_records.hpp>
#include <muster/train/tracker.hpp>

namespace logistic {

struct options {
  std::string train;      ///< specification of the training set; empty with synthetic data
  std::string test;       ///< specification of the test set
  std::string synthetic;  ///< "epsilon" or "epsilon:ROWS"; empty with files
  double holdout = 0;     ///< share of the training set that takes the place of the test set
  std::uint64_t epochs = 10;
  double max_train_seconds = 0;      ///< 0: no limit
  std::uint64_t batch = 100;         ///< over all ranks, as the job starts
  std::uint64_t batch_per_rank = 0;  ///< 0: `batch` stays when ranks come or go; else this does
  std::string schedule;
  muster::goal goal;  ///< without a metric: none
  std::uint64_t seed = 1;
  float l2 = 0.0f;
  float momentum = 0.0f;
  muster::bad_record_options bad;
  std::string checkpoint;  ///< a folder; empty: none
  bool resume = false;
  int threads = 1;   ///< of a rank; no number depends on it
  std::string save;  ///< empty: the model is not kept
  std::string json;  ///< empty: no report
};

/// Reads the command line of a job of `ranks` ranks, from which muster has taken its own flags out already. Fills in
/// what it leaves open, from the preset if there is one. Throws muster::configuration_error.
options parse_options(int argc, char** argv, int ranks);

/// What --help prints.
std::string help_text();

/// The SGD that it trains with where no --optimizer is named: "sgd,decay=2.5e-06".
std::string optimizer_of(const options& chosen);

/// The options that decide the numbers of a run in one line, for the report and to compare ranks.
std::string describe(const options& chosen);

}  // namespace logistic
