// What the numbers of a source are like: how many there are, their mean, deviation and range, and how often each label.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace muster { inline namespace v0 {

class any_record_source;
class loader;

/// Some numbers. Those that are not finite do not count.
struct column_statistics {
  std::uint64_t count = 0;
  double mean = 0;
  double squares = 0;   ///< the sum of the squared differences from the mean
  double least = 0;     ///< 0 of none
  double greatest = 0;  ///< the same

  /// The standard deviation of these numbers, which are all there are and no sample of more.
  [[nodiscard]] double deviation() const noexcept;
  /// One more (Welford 1962, https://doi.org/10.1080/00401706.1962.10490022).
  void add(double value) noexcept;
  /// These and others (Chan, Golub and LeVeque 1979).
  void merge(const column_statistics& others) noexcept;

  friend bool operator==(const column_statistics&, const column_statistics&) = default;
};

/// The records of a source. A column is a channel of images of bytes, an element of a field of one extent, a feature of
/// sparse records (which has zeros too), or else all of a field; and where there would be more than 65,536, all of it.
struct source_statistics {
  std::uint64_t records = 0;
  std::uint64_t left_out = 0;  ///< bad ones
  std::vector<column_statistics> columns = {};
  column_statistics label = {};                   ///< of the first label, if there is one
  std::map<float, std::uint64_t> histogram = {};  ///< of it; empty where there are more than 4,096 different ones

  /// These records, and others behind them.
  void merge(const source_statistics& others);

  friend bool operator==(const source_statistics&, const source_statistics&) = default;
};

/// Reads all records, on `threads` threads (0: all there are), except those of which the source knows the statistics: a
/// folder of records has them in its manifest once `muster-data stats` was run. The same bits for any number of
/// threads. Throws configuration_error for records of bytes, which have no numbers, and what reading them throws; bad
/// records are left out.
[[nodiscard]] source_statistics statistics(const any_record_source& source, int threads = 0);
/// Of the source of a loader: what its first step gets.
[[nodiscard]] source_statistics statistics(const loader& of, int threads = 0);

/// Has a folder of records keep its statistics, in its manifest. Throws configuration_error when it cannot be written.
void keep_statistics(const std::string& folder, const source_statistics& of);

namespace detail {

/// A source is cut into so many parts, which are gone over one by one and merged in order: the same sums whatever
/// threads and ranks do it.
inline constexpr int statistics_parts = 64;
/// What the source keeps of its first records, if anything; it was written by others. Throws data_error where it has
/// not the columns of the records.
[[nodiscard]] source_statistics kept_statistics(const any_record_source& source);
/// Part `part` of the records from `first` on.
[[nodiscard]] source_statistics statistics_of_part(const any_record_source& source, std::uint64_t first, int part);

/// In one line of text, every number as it is.
[[nodiscard]] std::string to_text(const source_statistics& of);
/// Throws data_error naming `path` for text that is none.
[[nodiscard]] source_statistics statistics_from_text(std::string_view text, const std::string& path);

}  // namespace detail

}}  // namespace muster::v0
