// How a collective is timed: the same for muster and for each of its peers, so it is here once. Knows neither.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

/// What is timed. `written` is an allreduce of a buffer that each rank has just written, as in a training: what it
/// reads is in the writer's cache. `step` is work() and then an allreduce, timed as a whole.
enum class op { allreduce, broadcast, reduce, written, step };

inline constexpr op all_ops[] = {op::allreduce, op::broadcast, op::reduce, op::written, op::step};
/// Those of which every size is a row of its own.
inline constexpr std::span collectives(all_ops, 3);

[[nodiscard]] constexpr std::string_view to_string(op what) noexcept {
  constexpr std::string_view names[] = {"allreduce", "broadcast", "reduce", "written", "step"};
  return names[static_cast<std::size_t>(what)];
}

/// The collective that is called.
[[nodiscard]] constexpr op called(op what) noexcept {
  return what == op::broadcast || what == op::reduce ? what : op::allreduce;
}

inline constexpr std::size_t smallest = 4;
inline constexpr std::size_t largest = std::size_t{64} << 20;

/// How often a call is timed in a round; each time so many in a row, whose mean counts.
struct repeats {
  int times = 1;
  int in_a_row = 1;
};

/// Allreduces of few bytes end within twenty steps of the clock, which are 10 ns on AMD's processors, and reading it
/// takes a quarter of such a call: so many are timed as one.
[[nodiscard]] inline repeats repeats_for(op what, std::size_t bytes) {
  if (what == op::step) return {3000};  // with other programs on the cores, time slices come and go
  if (called(what) == op::allreduce && bytes <= 1024) return {40, 64};
  return {static_cast<int>(std::clamp<std::size_t>((std::size_t{64} << 20) / bytes, 5, 300))};
}

/// Before the first round, untimed.
[[nodiscard]] inline repeats warm_up_for(op what, std::size_t bytes) {
  const auto later = repeats_for(what, bytes);
  return {std::min(10, later.times), later.in_a_row};
}

/// Some 15 us of computation that takes the same number of instructions each time.
inline void work() {
  constexpr int multiplications = 12'000;
  volatile float result = 1;
  float product = result;
  for (int i = 0; i < multiplications; ++i) product *= 1.0000001f;
  result = product;
}

/// Calls `in_place(data)` once with numbers that tell whether it works, and leaves zeros behind: these stay what they
/// are however often they are summed. It also makes sure that every page of `data` is there before a clock runs.
/// Throws std::runtime_error for a wrong result: a time of it means nothing.
template <class Call>
void check_result(op what, int rank, int ranks, std::span<float> data, Call in_place) {
  const bool root = rank == 0;
  what = called(what);
  std::fill(data.begin(), data.end(), what == op::broadcast && !root ? 0.0f : 1.0f);
  in_place(data);
  const bool summed = what == op::allreduce || (what == op::reduce && root);
  const float expected = summed ? static_cast<float>(ranks) : 1.0f;
  if (!std::all_of(data.begin(), data.end(), [=](float x) { return x == expected; })) {
    throw std::runtime_error("a wrong result of " + std::string(to_string(what)) + " (its times would mean nothing)");
  }
  std::fill(data.begin(), data.end(), 0.0f);
}

/// Two numbers for each of `count.times` with `data` at this rank; of steps for all of them together. When of each
/// the largest of all ranks is taken, `seconds_of` makes times of them: of an allreduce that of its slowest rank; of
/// the others, by which the ranks are not kept together, what it took from the first rank's call to the last one's
/// return (the clock is the host's), and they meet at `barrier` before each call. Else a root that runs ahead, or a
/// rank that comes when all is done, would hide it. Of calls in a row each rank's mean, with what is
/// written before each.
template <class Barrier, class Call>
[[nodiscard]] std::vector<std::int64_t> call_stamps(op what, std::span<float> data, repeats count, Barrier barrier,
                                                    Call call) {
  const auto now = [] {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(since).count()};
  };
  barrier();
  if (what == op::step) {
    const auto begin = now();
    for (int i = 0; i < count.times; ++i) {
      work();
      call();
    }
    return {0, (now() - begin) / count.times};
  }
  std::vector<std::int64_t> stamps(2 * static_cast<std::size_t>(count.times));
  const bool kept_together = what == op::allreduce || count.in_a_row > 1;
  for (std::size_t i = 0; i < stamps.size(); i += 2) {
    if (what == op::written) std::fill(data.begin(), data.end(), 0.0f);
    if (!kept_together) barrier();
    const auto begin = now();
    for (int calls = 0; calls < count.in_a_row; ++calls) {
      if (what == op::written && calls > 0) std::fill(data.begin(), data.end(), 0.0f);
      call();
    }
    const auto end = now();
    stamps[i] = kept_together ? 0 : -begin;
    stamps[i + 1] = kept_together ? (end - begin) / count.in_a_row : end;
  }
  return stamps;
}

/// The seconds of each call, from the largest signatures of all ranks.
[[nodiscard]] inline std::vector<double> seconds_of(std::span<const std::int64_t> largest_stamps) {
  std::vector<double> times(largest_stamps.size() / 2);
  for (std::size_t i = 0; i < times.size(); ++i) {
    times[i] = static_cast<double>(largest_stamps[2 * i] + largest_stamps[2 * i + 1]) * 1e-9;
  }
  return times;
}

[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace bench
