#include <muster/ps/table.hpp>

#include <algorithm>

#include <muster/core/error.hpp>

namespace muster::inline v0::ps {
namespace {

constexpr std::size_t ranges_a_server = 8;
constexpr std::size_t smallest_range = 1024;  // elements: smaller ones only cost messages

}  // namespace

table_layout::table_layout(std::vector<table_spec> tables, std::size_t servers) : tables_(std::move(tables)) {
  const auto refuse = [](const table_spec& one, const std::string& why, const std::string& suggestion) {
    throw configuration_error("table '" + one.name + "' cannot be made (" + why + "); " + suggestion);
  };
  for (std::uint32_t index = 0; index < tables_.size(); ++index) {
    const auto& one = tables_[index];
    if (one.name.empty()) refuse(one, "it has no name", "give it one");
    const auto same =
        std::count_if(tables_.begin(), tables_.end(), [&](const auto& other) { return other.name == one.name; });
    if (same != 1) refuse(one, "another has its name", "give each table a name of its own");
    if (one.width == 0) refuse(one, "its rows have no elements", "choose a width from 1");
    if (one.size != 0 && (one.most_rows != 0 || one.most_age != 0))
      refuse(one, "a dense table keeps all its elements", "bound only sparse tables");
    (void)make_update(one.update);
    first_.push_back(static_cast<range_id>(ranges_.size()));
    const std::size_t spread = std::max<std::size_t>(1, servers) * ranges_a_server;
    if (one.size == 0) {
      length_.push_back(1);
      ranges_.resize(ranges_.size() + (one.ranges != 0 ? one.ranges : spread), {index, 0, 0});
    } else {
      std::size_t length = one.ranges != 0 ? (one.size + one.ranges - 1) / one.ranges
                                           : std::max(smallest_range, (one.size + spread - 1) / spread);
      length = std::min(largest_range, (length + 15) / 16 * 16);
      length_.push_back(length);
      for (std::size_t begin = 0; begin < one.size; begin += length)
        ranges_.push_back({index, begin, std::min(length, one.size - begin)});
    }
    if (ranges_.size() > most_ranges)
      refuse(one, "the tables would have more than " + std::to_string(most_ranges) + " ranges", "make them smaller");
  }
  first_.push_back(static_cast<range_id>(ranges_.size()));
}

std::uint64_t table_layout::digest() const noexcept {
  muster::digest all;
  for (const auto& one : tables_) {
    all.add(one.name).add(std::uint64_t{one.size}).add(std::uint64_t{one.width}).add(one.update);
    all.add(std::uint64_t{one.most_rows}).add(one.most_age).add(std::as_bytes(std::span(&one.initial, 1)));
  }
  return all.add(std::uint64_t{ranges_.size()}).value();
}

}  // namespace muster::inline v0::ps
