// Sources by specification, as on command lines: "libsvm:PATH", "csv:PATH?label=0", "cifar10:FOLDER".
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/core/spec.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A kind of source that open_source() and open_dataset() support.
struct source_info {
  std::string_view scheme;       ///< "libsvm"
  std::string_view placeholder;  ///< placeholder for the text after the colon: "PATH"
  std::string_view options;      ///< options after the question mark: "features=N&layout=dense|sparse"
  std::string_view help;
};

/// Returns all kinds of sources, for `--help`: the library's, then the registered kinds.
[[nodiscard]] std::vector<source_info> source_table();

/// Opens "SCHEME:PATH" or "SCHEME:PATH?OPTION=VALUE&OPTION=VALUE", as the table describes. The text after the last '?'
/// is options if it contains a '=', and part of the path otherwise. In values %26 is an ampersand, and so on. Options
/// in the specification have priority over `options`. Throws configuration_error for an invalid specification, an
/// unknown scheme or an unknown option, and all errors of the source itself.
[[nodiscard]] any_record_source open_source(std::string_view specification, const read_options& options = {});

/// Opens a specification as samples in memory: text and queries directly, and other sources through load().
[[nodiscard]] dataset open_dataset(std::string_view specification, const read_options& options = {});

/// The result of opening a specification: samples in memory, or records that are read on request.
struct opened_source {
  std::optional<dataset> samples;            ///< set if the samples are in memory
  std::optional<any_record_source> records;  ///< set if they are not

  /// Converts from a dataset, or from a source of any type.
  opened_source(dataset source) : samples(std::move(source)) {}  // NOLINT: meant to convert
  template <class Source>
  requires(!std::same_as<Source, opened_source> && std::convertible_to<Source, any_record_source>)
      opened_source(Source source)  // NOLINT: meant to convert
      : records(std::move(source)) {}
};

/// Opens a specification of the function's scheme. `spec.value("path")` is the text after the colon, and
/// `spec.take("key")` is an option. Options that the function does not take are refused.
using source_opener = opened_source (*)(spec_reader& spec, const read_options& options);

/// Registers "SCHEME:..." as a source of the program, for the functions above and therefore for its command line.
/// Thread safe. Throws configuration_error for a scheme that exists already or is invalid. A scheme consists of
/// lower-case letters, digits and underscores.
void register_source(const source_info& info, source_opener open);

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::open_dataset;
using data::open_source;
using data::opened_source;
using data::register_source;
using data::source_info;
using data::source_opener;
using data::source_table;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
