// The report of a program that takes rounds of its own: lines for people, or JSON as Google Benchmark writes it.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/comm/group.hpp>

namespace bench {

/// The flags of Google Benchmark that mean something to such a program.
struct report_flags {
  bool json = false;   ///< --benchmark_format=json
  bool quick = false;  ///< --benchmark_min_time=...: somebody wants to see it run, as short as can be
};

/// Takes them out of the command line.
[[nodiscard]] inline report_flags take_report_flags(int& argc, char** argv) {
  report_flags found;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--benchmark_format=json")
      found.json = true;
    else if (word.starts_with("--benchmark_min_time="))
      found.quick = true;
    else
      argv[kept++] = argv[i];
  }
  argc = kept;
  return found;
}

/// Made at every rank; rank 0 prints.
class row_report {
 public:
  row_report(report_flags flags, const muster::group& ranks)
      : is_json_(flags.json), ranks_(ranks.size()), speaks_(ranks.rank() == 0) {}

  /// To people.
  template <class... Values>
  void say(const char* format, Values... values) const {
    if (is_json_ || !speaks_) return;
    if constexpr (sizeof...(values) == 0)
      std::fputs(format, stdout);
    else
      std::printf(format, values...);
    std::fflush(stdout);
  }

  /// To programs: what a unit of work took, how many units all ranks did in a second, and whatever else.
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

  /// At the end.
  void write() const {
    if (is_json_ && speaks_) std::printf("{\n  \"benchmarks\": [\n%s\n  ]\n}\n", rows_.c_str());
  }

 private:
  bool is_json_;
  int ranks_;
  bool speaks_;
  std::string rows_;
};

}  // namespace bench
