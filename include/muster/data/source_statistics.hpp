// Statistics of the numbers of a source: count, mean, deviation and range, and the frequency of every label.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace muster { inline namespace v0 { namespace data {

class any_record_source;
class loader;

/// The statistics of a set of numbers. Numbers that are not finite are not counted.
struct column_statistics {
  std::uint64_t count = 0;
  double mean = 0;
  double squares = 0;   ///< the sum of the squared differences from the mean
  double least = 0;     ///< minimum; 0 if there are no numbers
  double greatest = 0;  ///< maximum; 0 if there are no numbers

  /// Returns the standard deviation of the whole population. The numbers are not treated as a sample of a larger
  /// population.
  [[nodiscard]] double deviation() const noexcept;
  /// Adds one number (Welford 1962, https://doi.org/10.1080/00401706.1962.10490022).
  void add(double value) noexcept;
  /// Adds the numbers of another set (Chan, Golub and LeVeque 1979).
  void merge(const column_statistics& other) noexcept;

  friend bool operator==(const column_statistics&, const column_statistics&) = default;
};

/// The statistics of a source's records. A column is a channel of uint8 images, an element of a field with one extent,
/// a feature of sparse records (zeros included), or else a whole field. A field with more than 65,536 elements, and a
/// sparse record with more than 65,536 features, is one column.
struct source_statistics {
  std::uint64_t records = 0;   ///< records without bad records
  std::uint64_t left_out = 0;  ///< bad records
  std::vector<column_statistics> columns = {};
  column_statistics label = {};  ///< statistics of the first label, if there is one
  /// Frequency of the first label's values. Empty if there are more than 4,096 values.
  std::map<float, std::uint64_t> histogram = {};

  /// Adds the statistics of further records, which follow these records.
  void merge(const source_statistics& other);

  friend bool operator==(const source_statistics&, const source_statistics&) = default;
};

/// Reads all records on `threads` threads (0: all available). Records whose statistics the source has are not read: a
/// folder of records has statistics in its manifest after `muster-data stats`. The result has the same bits for any
/// number of threads. Throws configuration_error for records of bytes, which have no numbers, and all errors of
/// reading. Bad records are left out. The threads call `on_part` after each of 64 parts of the records, for a report of
/// the progress.
[[nodiscard]] source_statistics statistics(const any_record_source& source, int threads = 0,
                                           const std::function<void()>& on_part = {});
/// Returns the statistics of the loader's source, the input of the loader's first step.
[[nodiscard]] source_statistics statistics(const loader& pipeline, int threads = 0);

/// Writes the statistics of a folder of records into its manifest. Throws configuration_error if the manifest cannot be
/// written.
void keep_statistics(const std::string& folder, const source_statistics& statistics);

namespace detail {

/// Number of parts into which a source is divided. The parts are processed one by one and merged in order, so that the
/// sums are the same for any number of threads and ranks.
inline constexpr int statistics_parts = 64;
/// Returns the statistics that the source has stored for its first records, if any. The stored statistics are not
/// trusted. Throws data_error if their columns differ from the columns of the records.
[[nodiscard]] source_statistics kept_statistics(const any_record_source& source);
/// Returns the statistics of part `index` of the records from `first` on.
[[nodiscard]] source_statistics statistics_of_part(const any_record_source& source, std::uint64_t first, int index);

/// Returns a line of text that represents every number exactly.
[[nodiscard]] std::string to_text(const source_statistics& statistics);
/// Parses text from to_text(). Throws data_error naming `path` for invalid text.
[[nodiscard]] source_statistics statistics_from_text(std::string_view text, const std::string& path);

}  // namespace detail

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::column_statistics;
using data::keep_statistics;
using data::source_statistics;
using data::statistics;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
