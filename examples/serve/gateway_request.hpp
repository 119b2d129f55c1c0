// What the JSON of a request to the gateway says of the rows behind it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

namespace served {

/// What is answered instead.
struct refusal : std::runtime_error {
  refusal(int code, const std::string& text) : std::runtime_error(text), status(code) {}
  int status;
};

/// What a request says of its rows.
struct request_head {
  nlohmann::ordered_json document;
  std::uint64_t rows = 0, bytes = 0;
  bool is_strings = false;  // rows have their length before them
};

/// Throws refusal for a request that cannot be split: not of one binary tensor with rows, or to be answered otherwise.
[[nodiscard]] request_head parse_head(const std::string& text);

}  // namespace served
