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

/// Applies pushes at a server. Stateless itself: the state of each parameter is in arrays that the server keeps.
class update_function {
 public:
  virtual ~update_function() = default;

  /// Floats of state for each parameter.
  [[nodiscard]] virtual std::size_t states() const { return 0; }
  /// One update by the values of a push. `state` has the arrays, each as long as `values`, initially zeros; `count` is
  /// the number of this update of these parameters, from 1; `scale` multiplies the learning rate, or the values that
  /// are added. The same bits at every server.
  virtual void apply(std::span<float> values, std::span<const float> pushed, std::span<const std::span<float>> state,
                     std::uint64_t count, float scale) const = 0;
};

/// The update function of a name:
///
///     assign | add
///     sgd:RATE | momentum:RATE,MOMENTUM | nesterov:RATE,MOMENTUM | adagrad:RATE | adam:RATE | adamw:RATE   [,decay=D]
///
/// or a registered one. Throws configuration_error that names the mistake and the known functions.
[[nodiscard]] std::shared_ptr<const update_function> make_update(std::string_view text);

/// Registers `name` for `make_update` in this process; every process of a job must. `make` takes its values and keys
/// from the reader; those that it leaves are an error. Thread safe. Throws configuration_error for a name that is
/// taken, or is none (lower-case letters, digits and underscores), and for a `make` that is null.
void register_update(const std::string& name, std::function<std::shared_ptr<const update_function>(spec_reader&)> make);

/// One table; the same at every process of a job.
struct table_spec {
  std::string name;
  std::size_t size = 0;        ///< dense: its elements. 0: sparse, rows under 64-bit keys
  std::size_t width = 1;       ///< sparse: elements of a row
  std::string update = "add";  ///< see `make_update`
  float initial = 0;           ///< value of each element before the first update
  std::size_t ranges = 0;      ///< 0: chosen by its size and the servers
  bool leases =
      false;  ///< it has no values, and hands out the order of a training's samples: see `client::begin_order`

  // Bounds of a sparse table; a removed row is initialised again by the next push to it.
  std::size_t most_rows =
      0;  ///< 0: any number. Each range has its share, and removes the rows that were pushed to least recently
  std::uint64_t most_age = 0;  ///< pushes to its range without one to a row, after which the row is removed. 0: never
};

/// The part of a table that a range is.
struct table_range {
  std::uint32_t table = 0;
  std::size_t begin = 0;  ///< dense: the first element
  std::size_t size = 0;   ///< dense: elements. 0: sparse
};

/// The partition of tables into ranges. A plain value, a function of its arguments alone.
class table_layout {
 public:
  /// No dense range is larger, so that a range's values are one message.
  static constexpr std::size_t largest_range = 256 * 1024;  // elements

  /// Makes several ranges for each of `servers`, so that the load of a server that dies spreads over all others; of a
  /// small dense table one. Throws configuration_error for invalid tables.
  table_layout(std::vector<table_spec> tables, std::size_t servers);

  /// The tables in their order, the number of ranges of all tables, one range, and the table that it is part of. Ids
  /// are below ranges(), which is not checked.
  [[nodiscard]] const std::vector<table_spec>& tables() const noexcept { return tables_; }
  [[nodiscard]] std::size_t ranges() const noexcept { return ranges_.size(); }
  [[nodiscard]] const table_range& range(range_id id) const noexcept { return ranges_[id]; }
  [[nodiscard]] const table_spec& table_of(range_id id) const noexcept { return tables_[ranges_[id].table]; }
  /// The ranges of a table follow each other.
  [[nodiscard]] range_id first(std::uint32_t table) const noexcept { return first_[table]; }
  [[nodiscard]] range_id last(std::uint32_t table) const noexcept { return first_[table + 1]; }
  /// Of a dense table: the range with that element.
  [[nodiscard]] range_id range_of_element(std::uint32_t table, std::size_t element) const noexcept {
    return static_cast<range_id>(first_[table] + element / length_[table]);
  }
  /// Of a sparse one: the range of that key.
  [[nodiscard]] range_id range_of_key(std::uint32_t table, std::uint64_t key) const noexcept {
    const std::uint64_t count = first_[table + 1] - first_[table];
    return static_cast<range_id>(first_[table] +
                                 (mix(key + 0x9e3779b97f4a7c15ULL) >> 32) * count / (std::uint64_t{1} << 32));
  }

 private:
  std::vector<table_spec> tables_;
  std::vector<table_range> ranges_;
  std::vector<range_id> first_;      // of each table, and the end
  std::vector<std::size_t> length_;  // of its ranges but the last
};

}}}  // namespace muster::v0::ps
