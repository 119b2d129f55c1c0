// The registry of the parts of a program: muster's optional parts and the program's own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster { inline namespace v0 {

/// A part of the program that adds transports, stores, sources, codecs, algorithms or settings to muster.
///
/// A part of muster defines one variable of this type. The target of the part adds an object file to the program that
/// refers to the variable, so the linker takes it from an archive and keeps its shared library: a part that is linked
/// is loaded before the first ordinary global variable of the program is initialised.
///
///   const muster::plugin mine("mine", [] { muster::register_source(...); muster::register_transport(...); });
class plugin {
 public:
  /// Calls `load`, which calls `register_source` and the like, once for each variable. Throws configuration_error if
  /// another plug-in has the name, and the errors of `load`. Thread safe.
  plugin(std::string_view name, void (*load)());
  /// Takes the name from the list. What `load` has registered stays.
  ~plugin();
  plugin(const plugin&) = delete;
  plugin& operator=(const plugin&) = delete;

  /// Returns the name that the constructor was given.
  [[nodiscard]] std::string_view name() const noexcept { return name_; }

 private:
  std::string_view name_;
};

/// Returns the names of the loaded plug-ins, sorted. Thread safe.
[[nodiscard]] std::vector<std::string> plugin_names();

namespace detail {

/// Returns the reason of an error of a part that is not linked.
[[nodiscard]] inline std::string linked_without(std::string_view library) {
  return "this program was linked without muster::" + std::string(library);
}

}  // namespace detail
}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
