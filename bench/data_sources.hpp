// The rows of bench/data about text and records, and the text that they read.
#pragma once

#include <cstddef>
#include <string>

/// Returns rows of the shape of the epsilon dataset in LIBSVM format: 2,000 numbers of six digits a line.
std::string dense_libsvm_text(std::size_t rows);
/// Returns rows of the shape of a9a: 14 of 123 features, each 1.
std::string sparse_libsvm_text(std::size_t rows);
/// Returns rows of 100 numbers of six digits after a label.
std::string csv_text(std::size_t rows);

/// The input for each row of the benchmark.
struct source_texts {
  std::string dense;
  std::string sparse;
  std::string csv;
};

/// Writes the texts as dense.svm, sparse.svm and table.csv, so that other programs can read the same input.
void write_texts(const source_texts& texts, const std::string& folder);

/// Registers the benchmarks for all sources. `texts` must remain valid until these have run.
void register_sources(const source_texts& texts);
