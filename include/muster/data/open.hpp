// Data by name, as command lines give it: "libsvm:PATH", "csv:PATH?label=0", "cifar10:FOLDER".
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
#include <muster/data/sources/mapped_file.hpp>  // also so that a program with muster::zlib reads .gz

namespace muster { inline namespace v0 {

/// One kind of source that open_source() and open_dataset() know.
struct source_info {
  std::string_view scheme;       ///< "libsvm"
  std::string_view placeholder;  ///< what follows the colon: "PATH"
  std::string_view options;      ///< what may follow a question mark: "features=N&layout=dense|sparse"
  std::string_view help;
};

/// All of them, for `--help`: the library's, then those that were registered.
[[nodiscard]] std::vector<source_info> source_table();

/// Opens "SCHEME:PATH" or "SCHEME:PATH?OPTION=VALUE&OPTION=VALUE", as the table says. What follows the last '?' is
/// options if there is a '=' in it, and part of the path otherwise; in values, %26 is an ampersand and so on. Options
/// win over `options`. Throws configuration_error for a specification that is none, an unknown scheme or an option that
/// it does not have, and what the source itself throws.
[[nodiscard]] any_record_source open_source(std::string_view specification, const read_options& options = {});

/// The same as samples in memory: what is text or a query anyway, and anything else through load().
[[nodiscard]] dataset open_dataset(std::string_view specification, const read_options& options = {});

/// What a specification is opened as: samples in memory, or records that are read when they are wanted.
struct opened_source {
  std::optional<dataset> samples;            ///< if they are in memory
  std::optional<any_record_source> records;  ///< if they are not

  /// Of samples, or of records of any type.
  opened_source(dataset from) : samples(std::move(from)) {}  // NOLINT: meant to convert
  template <class Source>
  requires(!std::same_as<Source, opened_source> && std::convertible_to<Source, any_record_source>)
      opened_source(Source from)  // NOLINT: meant to convert
      : records(std::move(from)) {}
};

/// Opens what a specification of its scheme says: `from.value("path")` is what is behind the colon, `from.take("key")`
/// an option. What it leaves is refused.
using source_opener = opened_source (*)(spec_reader& from, const read_options& options);

/// Makes "SCHEME:..." a source of the program's, for the functions above and so for its command line. Thread safe.
/// Throws configuration_error for a scheme that is taken, or is none: lower-case letters, digits and underscores.
void register_source(const source_info& info, source_opener open);

namespace detail {

/// Makes "postgres:" known, and returns true; defined in muster::postgres.
bool register_postgres() noexcept;

#ifdef MUSTER_HAS_POSTGRES
// As for muster::zlib: the variable takes the object file out of the static archive.
[[maybe_unused]] static const bool postgres_is_registered = register_postgres();
#endif

}  // namespace detail

}}  // namespace muster::v0
