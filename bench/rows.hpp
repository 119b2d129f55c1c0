// The report of a program with its own rounds: readable lines, or JSON in the format of Google Benchmark.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/core/atomic_file.hpp>

namespace bench {

/// The flags of Google Benchmark that such a program supports.
struct report_flags {
  bool json = false;   ///< --benchmark_format=json
  bool quick = false;  ///< --benchmark_min_time=...: the shortest possible run
  std::string out;     ///< --benchmark_out=FILE: JSON in this file, in addition to the printed format
};

/// Removes the flags from the command line.
[[nodiscard]] inline report_flags take_report_flags(int& argc, char** argv) {
  constexpr std::string_view out = "--benchmark_out=";
  report_flags found;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--benchmark_format=json")
      found.json = true;
    else if (word.starts_with("--benchmark_min_time="))
      found.quick = true;
    else if (word.starts_with(out))
      found.out = word.substr(out.size());
    else
      argv[kept++] = argv[i];
  }
  argc = kept;
  return found;
}

/// A report, constructed at every rank; rank 0 prints.
class row_report {
 public:
  row_report(report_flags flags, const muster::group& ranks)
      : is_json_(flags.json), out_(std::move(flags.out)), ranks_(ranks.size()), speaks_(ranks.rank() == 0) {}

  /// Prints a readable line.
  template <class... Values>
  void print(const char* format, Values... values) const {
    if (is_json_ || !speaks_) return;
    if constexpr (sizeof...(values) == 0)
      std::fputs(format, stdout);
    else
      std::printf(format, values...);
    std::fflush(stdout);
  }

  /// Adds a row of JSON: the time of a unit of work, the units per second over all ranks, and further counters.
  void add(const std::string& name, double seconds, double throughput,
           const std::vector<std::pair<std::string, double>>& more = {}) {
    std::string row = "{\"name\": \"" + name + "\", \"time_unit\": \"s\"";
    const auto put = [&](const std::string& key, double value) {
      char text[64];
      std::snprintf(text, sizeof text, "\": %.9g", value);
      row += ", \"" + key + text;
    };
    put("real_time", seconds);
    put("ranks", ranks_);
    put("throughput", throughput);
    for (const auto& [key, value] : more) put(key, value);
    rows_ += (rows_.empty() ? "    " : ",\n    ") + row + "}";
  }

  /// Writes the JSON. Called at the end.
  void write() const {
    if (!speaks_) return;
    const auto text = "{\n  \"benchmarks\": [\n" + rows_ + "\n  ]\n}\n";
    if (is_json_) std::fputs(text.c_str(), stdout);
    if (!out_.empty()) muster::write_atomically(out_, text);
  }

 private:
  bool is_json_;
  std::string out_;
  int ranks_;
  bool speaks_;
  std::string rows_;
};

}  // namespace bench
