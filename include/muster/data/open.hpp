// Datasets by name, as command lines give them: "libsvm:PATH".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <muster/data/dataset.hpp>
#include <muster/data/text_file.hpp>  // also so that a program with muster::zlib reads .gz

namespace muster::inline v0 {

/// One kind of source that open_dataset() knows.
struct source_info {
  std::string_view scheme;       ///< "libsvm"
  std::string_view placeholder;  ///< what follows the colon: "PATH"
  std::string_view help;
};

/// All of them, for `--help`.
[[nodiscard]] const std::vector<source_info>& source_table();

/// Opens "SCHEME:REST". Throws configuration_error for a specification that is none or whose scheme is unknown, and
/// what the source itself throws.
[[nodiscard]] dataset open_dataset(std::string_view specification, const read_options& options = {});

}  // namespace muster::inline v0
