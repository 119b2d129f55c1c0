// The options of the command line.
#pragma once

#include <cstdint>
#include <string>

#include <muster/data/bad_records.hpp>
#include <muster/train/tracker.hpp>

namespace logistic {

struct options {
  std::string train;      ///< Specification of the training set; empty with synthetic data.
  std::string test;       ///< Specification of the test set.
  std::string synthetic;  ///< "epsilon[:ROWS]" or "clicks[:ROWS]"; empty with files.
  double holdout = 0;     ///< Share of the training set that replaces the test set.
  std::uint64_t epochs = 10;
  double max_train_seconds = 0;  ///< 0: no limit.
  std::uint64_t batch = 100;     ///< Samples over all initial ranks.
  /// 0: `batch` is constant when ranks join or leave; otherwise each rank's batch is constant.
  std::uint64_t batch_per_rank = 0;
  std::string schedule;
  muster::goal goal;  ///< Without a metric there is no goal.
  std::uint64_t seed = 1;
  float l2 = 0.0f;
  float momentum = 0.0f;
  muster::bad_record_options bad;
  std::string checkpoint;  ///< A folder; empty: none.
  bool resume = false;
  int threads = 1;   ///< Threads of a rank. Results do not depend on this number.
  std::string init;  ///< Empty: the parameters begin with zeros.
  std::string save;  ///< Empty: the model is not saved.
  std::string json;  ///< Empty: no report.
};

/// Parses the command line of a job of `ranks` ranks, after muster has removed its own flags. Fills in unset options,
/// from the preset if there is one. Throws muster::configuration_error.
options parse_options(int argc, char** argv, int ranks);

/// Returns the text that --help prints.
std::string help_text();

/// Returns the default of --optimizer, the example's SGD: "sgd,decay=2.5e-06".
std::string optimizer_of(const options& chosen);

/// Returns the options that determine the numbers of a run in one line, for the report and to compare ranks.
std::string describe(const options& chosen);

}  // namespace logistic
