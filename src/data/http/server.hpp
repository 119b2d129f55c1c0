// Requests to an HTTP or S3 server. Private to muster::http.
#pragma once

#include <memory>
#include <string>

#include <curl/curl.h>

#include <muster/core/clock.hpp>

#include "../../core/descriptor.hpp"

namespace muster { inline namespace v0 { namespace detail {

using curl_request = std::unique_ptr<CURL, freed_by<&::curl_easy_cleanup>>;

/// The reason for the failure of a request.
struct request_failure {
  bool retryable = false;  ///< true if a retry may succeed
  std::string reason{};    ///< empty: the request did not fail
  std::string suggestion{};
};

/// Returns the error text, which follows the name of a file.
[[nodiscard]] std::string error_text_of(const request_failure& failure);
/// Returns the failure to report after retries for the time `timeout`. `last` is the last failure.
[[nodiscard]] request_failure after_retries(request_failure last, seconds timeout);
/// Returns the version of a file on the server: the ETag, or Last-Modified, or an empty text.
[[nodiscard]] std::string version_of(CURL* reply);
/// Returns true if the version is a strong ETag, which identifies the exact bytes.
[[nodiscard]] bool has_strong_etag(CURL* reply);

/// The address of a folder and the credentials for its server. For S3 the variables of Amazon's tools configure the
/// access: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID,
/// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. For other servers, ~/.netrc has names and passwords. CURL_CA_BUNDLE or
/// SSL_CERT_FILE names the file of trusted certificates.
class http_server {
 public:
  /// Throws configuration_error for an invalid address, or an address with a password.
  http_server(std::string address, seconds timeout);

  /// Returns the address of the file `name` for messages.
  [[nodiscard]] std::string address_of(const std::string& name) const { return address_ + name; }
  /// Returns the URL of the file `name` for requests. For S3 the URL has the server's name.
  [[nodiscard]] std::string url_of(const std::string& name) const { return url_ + name; }
  /// Makes a request for the file `name`. libcurl calls `on_bytes` with the received bytes and with `user_data`.
  [[nodiscard]] curl_request make_request(const std::string& name, curl_write_callback on_bytes, void* user_data) const;
  /// Returns the failure of a request that ended with `code`.
  [[nodiscard]] static request_failure failure_of(CURL* request, CURLcode code);

 private:
  void use_bucket(const std::string& bucket_and_folder);

  std::string address_;  // address for messages, with a slash at the end
  std::string url_;      // address for libcurl
  std::string signature_, user_, password_, certificates_;
  std::unique_ptr<curl_slist, freed_by<&::curl_slist_free_all>> headers_;
  seconds timeout_;
};

}}}  // namespace muster::v0::detail
