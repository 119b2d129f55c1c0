// The rows of bench/data about text and records, and the text that they read.
#pragma once

#include <cstddef>
#include <string>

/// Rows of the shape of the epsilon dataset, in its own notation: 2,000 numbers of six digits a line.
std::string dense_libsvm_text(std::size_t rows);
/// Rows of the shape of a9a: 14 of 123 features, each 1.
std::string sparse_libsvm_text(std::size_t rows);
/// Rows of 100 numbers of six digits behind a label.
std::string csv_text(std::size_t rows);

/// What each row of the benchmark reads.
struct source_texts {
  std::string dense;
  std::string sparse;
  std::string csv;
};

/// Writes them as dense.svm, sparse.svm and table.csv, so that others can read the same.
void write_texts(const source_texts& texts, const std::string& folder);

/// Registers the benchmarks of all sources. `texts` stay where they are until these have run.
void register_sources(const source_texts& texts);
