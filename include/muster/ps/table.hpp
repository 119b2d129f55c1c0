// Tables of parameters: what a job's servers keep, and how it is cut into ranges.
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

namespace muster::inline v0::ps {

/// Ranges of all tables count through.
using range_id = std::uint32_t;
inline constexpr std::size_t most_ranges = 65536;

/// What a server does with a push. Stateless itself: what it remembers of each parameter are arrays beside it.
class update_function {
 public:
  virtual ~update_function() = default;

  /// How many floats it remembers of each parameter.
  [[nodiscard]] virtual std::size_t states() const { return 0; }
  /// One update: `pushed` is what came, `state` one array after the other, each of the length of `values`, zeros in the
  /// beginning; `count` is the how-manyth update of these parameters it is, from 1; `scale` times its learning rate, or
  /// times what it adds. The same bits at every server.
  virtual void apply(std::span<float> values, std::span<const float> pushed, std::span<float> state,
                     std::uint64_t count, float scale) const = 0;
};

/// The function of a name:
///
///     assign | add
///     sgd:RATE | momentum:RATE,MOMENTUM | nesterov:RATE,MOMENTUM | adagrad:RATE | adam:RATE | adamw:RATE   [,decay=D]
///
/// or one that was registered. Throws configuration_error saying what is wrong and what is known.
[[nodiscard]] std::shared_ptr<const update_function> make_update(std::string_view text);

/// Makes `name` known to `make_update` in this process; every process of a job has to. `make` takes its values and keys
/// from the reader, and what it leaves there is refused. Thread safe. A name that is known already is a
/// configuration_error.
void register_update(const std::string& name, std::function<std::shared_ptr<const update_function>(spec_reader&)> make);

/// One table; the same at every process of a job.
struct table_spec {
  std::string name;
  std::size_t size = 0;        ///< dense: its elements. 0: sparse, rows under 64-bit keys
  std::size_t width = 1;       ///< sparse: elements of a row
  std::string update = "add";  ///< see `make_update`
  float initial = 0;           ///< what each element is before the first update
  std::size_t ranges = 0;      ///< 0: as many as suit it

  // Bounds of a sparse table; what goes is forgotten, and begins anew when it is pushed to again.
  std::size_t most_rows = 0;   ///< 0: any number. Each range has its share; those that were pushed to least recently go
  std::uint64_t most_age = 0;  ///< pushes to its range after which a row that none of them was to goes. 0: never
};

/// Where in a table a range lies.
struct table_range {
  std::uint32_t table = 0;
  std::size_t begin = 0;  ///< dense: the first element
  std::size_t size = 0;   ///< dense: elements. 0: sparse
};

/// How tables are cut. A plain value, a function of its arguments alone.
class table_layout {
 public:
  /// No dense range is larger, so that a range's values are one message.
  static constexpr std::size_t largest_range = 256 * 1024;  // elements

  /// Ranges for `servers` of them: many a server, so that the load of one that dies spreads over all. Throws
  /// configuration_error for tables that cannot be.
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
  /// A digest of all that has to be the same everywhere.
  [[nodiscard]] std::uint64_t digest() const noexcept;

 private:
  std::vector<table_spec> tables_;
  std::vector<table_range> ranges_;
  std::vector<range_id> first_;      // of each table, and the end
  std::vector<std::size_t> length_;  // of its ranges but the last
};

}  // namespace muster::inline v0::ps
