// The parser for the JSON head of a request to the gateway, which describes the rows after it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

namespace served {

/// The error of a refused request, with the HTTP status of the reply.
struct refusal : std::runtime_error {
  refusal(int code, const std::string& text) : std::runtime_error(text), status(code) {}
  int status;
};

/// The parsed head of a request.
struct request_head {
  nlohmann::ordered_json document;
  std::uint64_t rows = 0, bytes = 0;  ///< number of rows, and number of bytes in the binary tensor
  bool is_strings = false;            ///< true if each row is preceded by its length
};

/// Parses the head of a request. Throws refusal for a request that cannot be split: input and output must each be a
/// single binary tensor, and the input must have rows.
[[nodiscard]] request_head parse_head(const std::string& text);

}  // namespace served
