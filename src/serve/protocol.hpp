// Reads and writes the bodies of the Open Inference Protocol (v2, REST, with the binary tensor extension) and of v1
// :predict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <muster/serve/predictor.hpp>

namespace muster { inline namespace v0 { namespace serve {

/// The error of a request whose reply has a status other than 200. The text begins with the faulty field.
class request_error : public std::runtime_error {
 public:
  request_error(int status, const std::string& text) : std::runtime_error(text), status_(status) {}
  [[nodiscard]] int status() const noexcept { return status_; }

 private:
  int status_;
};

/// The rows of a request.
struct parsed_request {
  std::vector<std::span<const std::byte>> rows;  ///< rows in the body, or in `decoded_rows`
  std::vector<std::byte> decoded_rows;           ///< storage for rows that were sent as JSON
  std::string id{};                              ///< identifier of a v2 request; empty: no identifier
  bool is_binary = false;                        ///< true if the reply has binary data
  bool are_files = false;                        ///< true if the rows are files, which the model reads
};

/// Parses the body of .../infer. The first `json_bytes` bytes of the body are JSON, and binary tensors follow. Throws
/// request_error: 413 for more than 16 MiB of JSON, else 400.
[[nodiscard]] parsed_request parse_infer(std::string_view body, std::size_t json_bytes, const model_info& model,
                                         std::size_t max_rows);
/// Parses the body of :predict. Throws request_error: 413 for more than 16 MiB of JSON, else 400.
[[nodiscard]] parsed_request parse_predict(std::string_view body, const model_info& model, std::size_t max_rows);

/// Writes the reply to a request of parse_infer(). If the reply is binary, the values are not in this text and must
/// follow it.
[[nodiscard]] std::string write_infer(std::string_view name, std::uint64_t version, const parsed_request& request,
                                      const model_info& model, std::span<const std::byte> values);
/// Writes the reply to a request of parse_predict().
[[nodiscard]] std::string write_predictions(const model_info& model, std::span<const std::byte> values);
/// Writes the description of a model.
[[nodiscard]] std::string write_metadata(std::string_view name, std::uint64_t version, const model_info& model);
/// Writes {"error": text}.
[[nodiscard]] std::string write_error(std::string_view text);

}}}  // namespace muster::v0::serve
