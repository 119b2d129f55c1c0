// The measurement protocol of a collective, shared by muster and all its peers. It does not depend on muster or a peer.
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

/// The measured operation. `written` is an allreduce of a buffer that each rank has just written, as in a training: the
/// input is in the writer's cache. `step` is work() followed by an allreduce, timed together.
enum class op { allreduce, broadcast, reduce, written, step };

inline constexpr op all_ops[] = {op::allreduce, op::broadcast, op::reduce, op::written, op::step};
/// Operations whose every size is a separate row.
inline constexpr std::span collectives(all_ops, 3);

[[nodiscard]] constexpr std::string_view to_string(op operation) noexcept {
  constexpr std::string_view names[] = {"allreduce", "broadcast", "reduce", "written", "step"};
  return names[static_cast<std::size_t>(operation)];
}

/// Returns the collective that the operation calls.
[[nodiscard]] constexpr op called(op operation) noexcept {
  return operation == op::broadcast || operation == op::reduce ? operation : op::allreduce;
}

inline constexpr std::size_t smallest = 4;
inline constexpr std::size_t largest = std::size_t{64} << 20;

/// The number of timed calls in a round, and the number of consecutive calls whose mean is one measurement.
struct repeats {
  int times = 1;
  int in_a_row = 1;
};

/// Returns the repeats for a size. Allreduces of few bytes end within twenty steps of the clock, which are 10 ns on
/// AMD's processors, and reading the clock takes a quarter of such a call. Therefore several calls are timed as one.
[[nodiscard]] inline repeats repeats_for(op operation, std::size_t bytes) {
  if (operation == op::step) return {3000};  // Averages over the time slices of other programs on the cores.
  if (called(operation) == op::allreduce && bytes <= 1024) return {40, 64};
  return {static_cast<int>(std::clamp<std::size_t>((std::size_t{64} << 20) / bytes, 5, 300))};
}

/// Returns the repeats of the untimed calls before the first round.
[[nodiscard]] inline repeats warm_up_for(op operation, std::size_t bytes) {
  const auto later = repeats_for(operation, bytes);
  return {std::min(10, later.times), later.in_a_row};
}

/// Computes for about 15 us, with the same number of instructions each time.
inline void work() {
  constexpr int multiplications = 12'000;
  volatile float result = 1;
  float product = result;
  for (int i = 0; i < multiplications; ++i) product *= 1.0000001f;
  result = product;
}

/// Calls `in_place(data)` once with numbers that show whether the collective is correct, and leaves zeros, which
/// repeated sums do not change. It also touches every page of `data` before any measurement. Throws std::runtime_error
/// for a wrong result, whose time would be meaningless.
template <class Call>
void check_result(op operation, int rank, int ranks, std::span<float> data, Call in_place) {
  const bool root = rank == 0;
  operation = called(operation);
  std::fill(data.begin(), data.end(), operation == op::broadcast && !root ? 0.0f : 1.0f);
  in_place(data);
  const bool summed = operation == op::allreduce || (operation == op::reduce && root);
  const float expected = summed ? static_cast<float>(ranks) : 1.0f;
  if (!std::all_of(data.begin(), data.end(), [=](float x) { return x == expected; })) {
    throw std::runtime_error("a wrong result of " + std::string(to_string(operation)) +
                             " (its times would mean nothing)");
  }
  std::fill(data.begin(), data.end(), 0.0f);
}

/// Returns two stamps, in nanoseconds, for each of `count.times` calls with `data` at this rank; for steps one pair for
/// all calls together. `seconds_of` computes times from the element-wise maximum of the stamps over all ranks. The time
/// of an allreduce is the time at its slowest rank. Other collectives do not synchronise the ranks: their time runs
/// from the first rank's call to the last rank's return (the clock is the host's), and ranks meet at `barrier` before
/// each call. Otherwise the time would be hidden by a root that runs ahead, or by a rank that arrives when all is done.
/// For consecutive calls each rank's mean is used, including the writes before each call.
template <class Barrier, class Call>
[[nodiscard]] std::vector<std::int64_t> call_stamps(op operation, std::span<float> data, repeats count, Barrier barrier,
                                                    Call call) {
  const auto now = [] {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(since).count()};
  };
  barrier();
  if (operation == op::step) {
    const auto begin = now();
    for (int i = 0; i < count.times; ++i) {
      work();
      call();
    }
    return {0, (now() - begin) / count.times};
  }
  std::vector<std::int64_t> stamps(2 * static_cast<std::size_t>(count.times));
  const bool kept_together = operation == op::allreduce || count.in_a_row > 1;
  for (std::size_t i = 0; i < stamps.size(); i += 2) {
    if (operation == op::written) std::fill(data.begin(), data.end(), 0.0f);
    if (!kept_together) barrier();
    const auto begin = now();
    for (int calls = 0; calls < count.in_a_row; ++calls) {
      if (operation == op::written && calls > 0) std::fill(data.begin(), data.end(), 0.0f);
      call();
    }
    const auto end = now();
    stamps[i] = kept_together ? 0 : -begin;
    stamps[i + 1] = kept_together ? (end - begin) / count.in_a_row : end;
  }
  return stamps;
}

/// Returns the seconds for each call from the maximum stamps over all ranks.
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
