// A server of HTTP or S3 as requests see it; private to muster::http.
#pragma once

#include <memory>
#include <string>

#include <curl/curl.h>

#include <muster/core/clock.hpp>

#include "../../core/descriptor.hpp"

namespace muster { inline namespace v0 { namespace detail {

using curl_request = std::unique_ptr<CURL, freed_by<&::curl_easy_cleanup>>;

/// Why a request came to nothing.
struct request_failure {
  bool again = false;  ///< it may be another matter soon
  std::string why{};   ///< empty: it did not fail
  std::string suggestion{};
};

/// How it reads behind the name of a file.
[[nodiscard]] std::string problem_of(const request_failure& why);
/// The last failure of those of so long a time.
[[nodiscard]] request_failure tried_for(request_failure last, seconds timeout);
/// What tells a file from those that were or will be there by its name.
[[nodiscard]] std::string version_of(CURL* answer);
/// Whether that is an ETag for just these bytes.
[[nodiscard]] bool answer_has_strong_etag(CURL* answer);

/// Where a folder lies, and how it is asked for. For S3 the names of Amazon's tools say how: AWS_ENDPOINT_URL_S3 or
/// AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; for
/// others ~/.netrc has names and passwords. CURL_CA_BUNDLE or SSL_CERT_FILE names certificates to trust.
class http_server {
 public:
  /// Throws configuration_error for an address that is none, or has a password in it.
  http_server(std::string address, seconds timeout);

  /// Returns the percent-encoded name of a file in the folder. The other functions take such a name.
  [[nodiscard]] static std::string name_of_file(const std::string& file);
  /// Returns the same for a name that was given as part of an address, and may already be encoded.
  [[nodiscard]] std::string name_in_address(const std::string& text) const;
  /// Returns the file's address for messages, without the query of the address, which may be a signature.
  [[nodiscard]] std::string address_of(const std::string& name) const { return address_ + name; }
  /// Returns a text that identifies the file: its address with the server (also for S3), and its query without the
  /// signature.
  [[nodiscard]] std::string identity_of(const std::string& name) const;
  /// Returns true if the address has a query, which is sent with each request.
  [[nodiscard]] bool has_query() const noexcept { return query_.size() > 1; }
  /// A request for it; `take`, with `to`, is called with the bytes that come, as libcurl has it.
  [[nodiscard]] curl_request ask(const std::string& name, curl_write_callback take, void* to) const;
  /// What a request that ended with `code` came to.
  [[nodiscard]] static request_failure failure_of(CURL* request, CURLcode code);

 private:
  void use_bucket(const std::string& bucket_and_folder);

  std::string address_;  // with a slash at its end
  std::string query_;    // begins with a question mark, or is empty
  std::string url_;      // the address for libcurl
  std::string signature_, user_, password_, certificates_;
  std::unique_ptr<curl_slist, freed_by<&::curl_slist_free_all>> headers_;
  seconds timeout_;
};

}}}  // namespace muster::v0::detail
