#include <muster/data/open.hpp>

#include <muster/core/error.hpp>
#include <muster/data/libsvm.hpp>

namespace muster::inline v0 {

const std::vector<source_info>& source_table() {
  static const std::vector<source_info> table = {
      {"libsvm", "PATH", "text of LIBSVM or SVMlight, plain or .gz: `label index:value ...`, indices from 1"},
  };
  return table;
}

dataset open_dataset(std::string_view specification, const read_options& options) {
  const auto colon = specification.find(':');
  const std::string scheme(specification.substr(0, colon));
  if (colon == std::string_view::npos || scheme.empty()) {
    const std::string path(specification.substr(colon == 0 ? 1 : 0));
    throw configuration_error("'" + std::string(specification) +
                              "' does not say what kind of data it is (a source is SCHEME:PATH); write libsvm:" +
                              (path.empty() ? "PATH" : path));
  }
  const std::string rest(specification.substr(colon + 1));
  if (rest.empty()) {
    throw configuration_error("'" + std::string(specification) + "' names no file (nothing follows the colon); write " +
                              scheme + ":PATH");
  }
  if (scheme == "libsvm") return read_libsvm(rest, options);

  std::string list;
  std::vector<std::string> known;
  for (const auto& source : source_table()) {
    list += (known.empty() ? "" : ", ") + std::string(source.scheme);
    known.emplace_back(source.scheme);
  }
  const auto meant = closest(scheme, known);
  throw configuration_error("unknown source '" + scheme + "' in '" + std::string(specification) + "' (known: " + list +
                            "); " + (meant ? "did you mean " + *meant + "?" : "choose one of these"));
}

}  // namespace muster::inline v0
