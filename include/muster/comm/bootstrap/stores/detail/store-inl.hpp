#pragma once

#include <muster/comm/bootstrap/store.hpp>

#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
// Replaces control characters, because a key may contain any byte and an error is one line.
inline std::string printed(std::string_view key) {
  std::string text(key.substr(0, 60));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return "'" + text + (key.size() > 60 ? "...'" : "'");
}

MUSTER_INLINE void check_store_key(std::string_view key, const std::string& where, std::size_t limit) {
  if (!key.empty() && key.size() <= limit) return;
  throw configuration_error("the store " + where + " does not take a key of " + std::to_string(key.size()) +
                            " bytes (a key has 1 to " + std::to_string(limit) + "); choose another key");
}

MUSTER_INLINE void check_store_value(std::optional<std::string_view> value, const std::string& where) {
  if (!value || value->size() <= store_value_limit) return;
  throw configuration_error("the store " + where + " does not take a value of " + std::to_string(value->size()) +
                            " bytes (a value has at most " + std::to_string(store_value_limit) +
                            "); send large data between the ranks instead");
}

MUSTER_INLINE void store_timed_out(const char* function, std::string_view key, const std::string& where) {
  throw timeout_error(std::string(function) + " at the store", {},
                      std::string(function) + (key.empty() ? "" : " of " + printed(key)) + " at the store " + where +
                          " did not finish in time (the server of the store does not answer); check that its host is "
                          "up and not overloaded");
}

}}}  // namespace muster::v0::detail
