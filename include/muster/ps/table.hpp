// Tables of parameters, and their partition into ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/hash.hpp>
#include <muster/core/spec.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// The number of a range, counted through all tables.
using range_id = std::uint32_t;
inline constexpr std::size_t most_ranges = 65536;

/// A function that applies pushes at a server. The object itself has no state: the server keeps every parameter's state
/// in arrays.
class update_function {
 public:
  virtual ~update_function() = default;

  /// Returns the number of floats of state for each parameter: the number of arrays in `optimizer_state` of `apply`.
  [[nodiscard]] virtual std::size_t states() const { return 0; }
  /// Applies the values of one push to `values`. `optimizer_state` holds the arrays, each as long as `values`,
  /// initially zeros. `count` is the number of this update to these parameters, from 1. `scale` multiplies the learning
  /// rate, or the added values. Must compute the same bits at every server.
  virtual void apply(std::span<float> values, std::span<const float> pushed,
                     std::span<const std::span<float>> optimizer_state, std::uint64_t count, float scale) const = 0;
};

/// Returns the update function with this name:
///
///     assign | add
///     sgd:RATE | momentum:RATE,MOMENTUM | nesterov:RATE,MOMENTUM | adagrad:RATE | adam:RATE | adamw:RATE   [,decay=D]
///
/// or a registered function. Throws configuration_error that names the mistake and the known functions.
[[nodiscard]] std::shared_ptr<const update_function> make_update(std::string_view text);

/// Registers `name` for `make_update` in this process. Every process of a job must register it. `make` reads its values
/// and keys from the reader, and unread values are an error. Thread safe. Throws configuration_error for a name that is
/// already registered or invalid (allowed: lower-case letters, digits and underscores), and for an empty `make`.
void register_update(const std::string& name, std::function<std::shared_ptr<const update_function>(spec_reader&)> make);

/// The description of a table, equal at every process of a job.
struct table_spec {
  std::string name;
  std::size_t size = 0;        ///< dense: number of elements; 0: a sparse table with rows under 64-bit keys
  std::size_t width = 1;       ///< sparse: number of elements in a row
  std::string update = "add";  ///< see `make_update`
  float initial = 0;           ///< initial value of the elements
  /// Dense: fills `values`, zeros before, with the initial values of the elements from `first` on, in place of
  /// `initial`. Each server calls the function for its own ranges, so no process holds the initial values of the table.
  /// Must give the same bits at every server, and be thread safe.
  std::function<void(std::size_t first, std::span<float> values)> initial_values{};
  std::size_t ranges = 0;  ///< number of ranges; 0: computed from the size and the number of servers
  bool leases = false;     ///< the table has no values and leases the samples of a training, see `client::begin_order`

  // Bounds of a sparse table. The next push to a removed row initialises the row again.
  /// Maximum number of rows, 0: no limit. Each range has its share, and removes the rows with the oldest last push.
  std::size_t most_rows = 0;
  /// A row is removed after this many pushes to its range without a push to the row. 0: never.
  std::uint64_t most_age = 0;
};

/// A contiguous part of a table.
struct table_range {
  std::uint32_t table = 0;
  std::size_t begin = 0;  ///< dense: the first element
  std::size_t size = 0;   ///< dense: number of elements; 0: sparse
};

/// The partition of tables into ranges. A plain value that depends only on the constructor's arguments.
class table_layout {
 public:
  /// Maximum number of elements in a dense range, so that the values of a range fit into one message.
  static constexpr std::size_t largest_range = 256 * 1024;

  /// Makes several ranges for each of `servers`, hot spares included, so that the load of a dead server spreads over
  /// all other servers. A small dense table is one range. Throws configuration_error for invalid tables.
  table_layout(std::vector<table_spec> tables, std::size_t servers);

  /// Returns the tables in their order.
  [[nodiscard]] const std::vector<table_spec>& tables() const noexcept { return tables_; }
  /// Returns the number of ranges of all tables.
  [[nodiscard]] std::size_t ranges() const noexcept { return ranges_.size(); }
  /// Returns the range with this id, which must be below ranges(). This is not checked.
  [[nodiscard]] const table_range& range(range_id range_number) const noexcept { return ranges_[range_number]; }
  /// Returns the table that contains the range. The same condition holds for the id.
  [[nodiscard]] const table_spec& table_of(range_id range_number) const noexcept {
    return tables_[ranges_[range_number].table];
  }
  /// Returns the first range of the table. The ranges of a table are consecutive.
  [[nodiscard]] range_id first(std::uint32_t table) const noexcept { return first_[table]; }
  /// Returns the range after the last range of the table.
  [[nodiscard]] range_id end(std::uint32_t table) const noexcept { return first_[table + 1]; }
  /// Returns the range that contains this element of a dense table.
  [[nodiscard]] range_id range_of_element(std::uint32_t table, std::size_t element) const noexcept {
    return static_cast<range_id>(first_[table] + element / length_[table]);
  }
  /// Returns the range that contains this key of a sparse table.
  [[nodiscard]] range_id range_of_key(std::uint32_t table, std::uint64_t key) const noexcept {
    const std::uint64_t count = first_[table + 1] - first_[table];
    return static_cast<range_id>(first_[table] +
                                 (mix(key + 0x9e3779b97f4a7c15ULL) >> 32) * count / (std::uint64_t{1} << 32));
  }

 private:
  std::vector<table_spec> tables_;
  std::vector<table_range> ranges_;
  std::vector<range_id> first_;      // by table: the first range; then the number of ranges
  std::vector<std::size_t> length_;  // by table: the length of its ranges except the last
};

}}}  // namespace muster::v0::ps

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/ps/detail/definitions.hpp>
#endif
