// The parser of request paths.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <muster/core/number.hpp>

namespace muster { inline namespace v0 { namespace serve {

/// The resource that a path names.
enum class resource { unknown, live, ready, server, metadata, model_ready, infer, predict, metrics };

/// A parsed path.
struct route {
  resource target = resource::unknown;
  std::string_view model{};
  std::optional<std::uint64_t> version{};
};

/// Parses a path without its query. Escapes are not decoded, because model names have no characters that need escapes.
[[nodiscard]] inline route parse_route(std::string_view path) {
  if (path == "/metrics") return {resource::metrics};
  if (path == "/v2" || path == "/v2/") return {resource::server};
  if (path == "/v2/health/live") return {resource::live};
  if (path == "/v2/health/ready") return {resource::ready};
  const bool is_v1 = path.starts_with("/v1/models/");
  if (!is_v1 && !path.starts_with("/v2/models/")) return {};
  path.remove_prefix(11);
  const auto end = path.find_first_of(is_v1 ? ":" : "/");
  route found{resource::unknown, path.substr(0, end)};
  path.remove_prefix(found.model.size());
  if (found.model.empty()) return {};
  constexpr std::string_view versions = "/versions/";
  if (!is_v1 && path.starts_with(versions)) {
    path.remove_prefix(versions.size());
    const auto digits = path.substr(0, path.find('/'));
    found.version = parse_number<std::uint64_t>(digits);
    if (!found.version) return {};
    path.remove_prefix(digits.size());
  }
  if (is_v1) {
    found.target = path == ":predict" ? resource::predict : path.empty() ? resource::model_ready : resource::unknown;
  } else {
    found.target = path == "/infer"   ? resource::infer
                   : path == "/ready" ? resource::model_ready
                   : path.empty()     ? resource::metadata
                                      : resource::unknown;
  }
  return found;
}

}}}  // namespace muster::v0::serve
