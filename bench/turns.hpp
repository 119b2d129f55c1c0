// Programs that take turns: several jobs of different MPIs are started at once. All their ranks sleep, and one job at a
// time is told to measure. Contenders that cannot share a process are therefore measured at nearly the same time on a
// machine whose speed drifts. bench/compare_collectives.py sends the turns.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "protocol.hpp"

namespace bench {

/// The next measurement.
struct turn {
  op operation = op::allreduce;
  std::string contender;
  std::size_t bytes = 0;
};

/// A rank's turns. They are either lines "allreduce muster_shm 1024" of the named pipe `<folder>/<rank>`, or a
/// list. A rank can wait for a pipe without using the processor, in contrast to a message of an MPI.
class turns {
 public:
  turns(const std::string& folder, int rank) : pipe_(folder + "/" + std::to_string(rank)) {
    if (!pipe_) throw std::runtime_error("cannot open " + folder + "/" + std::to_string(rank));
  }
  /// Constructs the list for these collectives, at every size on the command line (at all sizes if there is none).
  turns(int argc, char** argv, std::span<const op> ops) {
    std::vector<std::size_t> sizes;
    for (int i = 1; i < argc; ++i) {
      char* end = nullptr;
      sizes.push_back(std::strtoull(argv[i], &end, 10));
      if (*end != '\0') throw std::runtime_error(std::string(argv[i]) + " is not a number of bytes");
    }
    if (sizes.empty()) {
      for (std::size_t bytes = smallest; bytes <= largest; bytes *= 4) sizes.push_back(bytes);
    }
    for (auto bytes = sizes.rbegin(); bytes != sizes.rend(); ++bytes) {
      for (auto operation = ops.rbegin(); operation != ops.rend(); ++operation)
        list_.push_back({*operation, "", *bytes});
    }
    for (const auto& each : list_) check(each);
  }

  /// Waits asleep for the next turn; returns nothing after the last turn.
  [[nodiscard]] std::optional<turn> next() {
    if (!list_.empty()) {
      auto first = std::move(list_.back());
      list_.pop_back();
      return first;
    }
    std::string line;
    if (!pipe_.is_open() || !std::getline(pipe_, line)) return std::nullopt;
    std::istringstream words(line);
    std::string name;
    turn received;
    words >> name >> received.contender >> received.bytes;
    const auto known = std::find_if(std::begin(all_ops), std::end(all_ops), [&](op o) { return to_string(o) == name; });
    if (!words || known == std::end(all_ops)) throw std::runtime_error("malformed turn '" + line + "'");
    received.operation = *known;
    check(received);
    return received;
  }

 private:
  static void check(const turn& asked) {
    if (asked.bytes < smallest || asked.bytes > largest || asked.bytes % sizeof(float) != 0) {
      throw std::runtime_error(std::to_string(asked.bytes) +
                               " bytes cannot be measured (a size is a multiple of 4 from " + std::to_string(smallest) +
                               " to " + std::to_string(largest) + ")");
    }
  }

  std::ifstream pipe_;
  std::vector<turn> list_;  // In reverse order.
};

/// Prints the first line of JSON of a job, at rank 0: its contenders and its library.
inline void print_ready(std::span<const std::string> contenders, std::string_view library) {
  std::string names;
  for (const auto& name : contenders) names += (names.empty() ? "\"" : ", \"") + name + "\"";
  std::printf("{\"ready\": [%s], \"library\": \"%.*s\"}\n", names.c_str(), static_cast<int>(library.size()),
              library.data());
  std::fflush(stdout);
}

/// Prints a line of JSON with the result of a turn, at rank 0.
inline void print_result(const turn& taken, const std::vector<double>& times) {
  std::printf("{\"op\": \"%s\", \"contender\": \"%s\", \"bytes\": %zu, \"median_seconds\": %.9g}\n",
              std::string(to_string(taken.operation)).c_str(), taken.contender.c_str(), taken.bytes, median(times));
  std::fflush(stdout);
}

/// Returns FOLDER if `--turns=FOLDER` is the only argument on the command line.
[[nodiscard]] inline std::optional<std::string> folder_of_turns(int argc, char** argv) {
  constexpr std::string_view flag = "--turns=";
  if (argc != 2 || !std::string_view(argv[1]).starts_with(flag)) return std::nullopt;
  return std::string(argv[1] + flag.size());
}

}  // namespace bench
