// Requests to an HTTP or S3 server. Private to muster::http.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <curl/curl.h>

#include <muster/core/clock.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

using curl_request = std::unique_ptr<CURL, muster::detail::freed_by<&::curl_easy_cleanup>>;

/// The reason for the failure of a request.
struct request_failure {
  bool retryable = false;  ///< true if a retry may succeed
  std::string reason{};    ///< empty: the request did not fail
  std::string suggestion{};
  bool is_away = false;  ///< true if retries did not succeed, and later ones may
};

/// Throws source_error for a server that is away, else data_error.
[[noreturn]] void throw_failure(data_location location, const request_failure& failure);
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

  /// Returns the percent-encoded name of a file in the folder. The other functions take such a name.
  [[nodiscard]] static std::string name_of_file(const std::string& name);
  /// Returns the same for a name that was given as part of an address, and may already be encoded.
  [[nodiscard]] std::string name_in_address(const std::string& text) const;
  /// Returns the file's address for messages, without the query of the address, which may be a signature.
  [[nodiscard]] std::string address_of(const std::string& name) const { return address_ + name; }
  /// Returns a text that identifies the file: its address with the server (also for S3), and its query without the
  /// signature.
  [[nodiscard]] std::string identity_of(const std::string& name) const;
  /// Returns true if the address has a query, which is sent with each request.
  [[nodiscard]] bool has_query() const noexcept { return query_.size() > 1; }
  /// Returns the address of the file `name` for a request.
  [[nodiscard]] std::string address_of_request(const std::string& name) const { return url_ + name + query_; }
  /// Returns the address of the list of a folder below this one: S3's list of objects, or the folder itself.
  [[nodiscard]] std::string address_of_list(const std::string& folder) const;
  /// Returns the names in such a list. Throws data_error for a list of S3 that is not complete.
  [[nodiscard]] std::vector<std::string> names_in(const std::string& list, const std::string& folder) const;
  /// Makes a request to an address. libcurl calls `on_bytes` with the received bytes and with `user_data`.
  [[nodiscard]] curl_request make_request(const std::string& address, curl_write_callback on_bytes,
                                          void* user_data) const;
  /// Returns the failure of a request that ended with `code`.
  [[nodiscard]] static request_failure failure_of(CURL* request, CURLcode code);

 private:
  void use_bucket(const std::string& bucket_and_folder);

  std::string address_;  // address for messages, with a slash at the end
  std::string query_;    // begins with a question mark, or is empty
  std::string url_;      // address for libcurl
  std::string bucket_;   // address of the bucket, for a list of objects; empty unless it is S3
  std::string prefix_;   // begin of the names of objects in the folder
  std::string signature_, user_, password_, certificates_;
  std::unique_ptr<curl_slist, muster::detail::freed_by<&::curl_slist_free_all>> headers_;
  seconds timeout_;
};

}}}}  // namespace muster::v0::data::detail
