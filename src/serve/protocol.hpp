// The bodies of the Open Inference Protocol (v2, REST, with the binary tensor extension) and of v1 :predict.
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

/// A request that is answered with a status other than 200. The text begins with the field that it is about.
class request_error : public std::runtime_error {
 public:
  request_error(int status, const std::string& text) : std::runtime_error(text), status_(status) {}
  [[nodiscard]] int status() const noexcept { return status_; }

 private:
  int status_;
};

/// The rows of a request.
struct parsed_request {
  std::vector<std::span<const std::byte>> rows;  ///< in the body, or in `made`
  std::vector<std::byte> made;                   ///< of what came as JSON
  std::string id{};                              ///< of v2; empty: none
  bool is_binary = false;                        ///< whether the answer is to be
};

/// Of .../infer: `json_bytes` of the body are JSON, and what is behind these are tensors. Throws request_error (400).
[[nodiscard]] parsed_request parse_infer(std::string_view body, std::size_t json_bytes, const model_info& model,
                                         std::size_t max_rows);
/// Of :predict. Throws request_error (400).
[[nodiscard]] parsed_request parse_predict(std::string_view body, const model_info& model, std::size_t max_rows);

/// What answers parse_infer(); without the numbers if the answer is binary, which follow it then.
[[nodiscard]] std::string write_infer(std::string_view name, std::uint64_t version, const parsed_request& request,
                                      const model_info& model, std::span<const std::byte> values);
/// What answers parse_predict().
[[nodiscard]] std::string write_predictions(const model_info& model, std::span<const std::byte> values);
/// What describes a model.
[[nodiscard]] std::string write_metadata(std::string_view name, std::uint64_t version, const model_info& model);
/// {"error": text}
[[nodiscard]] std::string write_error(std::string_view text);

}}}  // namespace muster::v0::serve
