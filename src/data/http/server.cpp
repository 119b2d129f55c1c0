#include "server.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/spec.hpp>

#include "../../core/text.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

std::string first_of(const char* name, const char* other, const char* otherwise = "") {
  const auto found = environment(name);
  return found ? *found : environment(other).value_or(otherwise);
}

std::string escaped(std::string_view text) {
  constexpr std::string_view plain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";  // RFC 3986, and the slash
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string made;
  for (const char c : text) {
    if (plain.find(c) != std::string_view::npos) {
      made += c;
      continue;
    }
    made += '%';
    made += digits[static_cast<unsigned char>(c) >> 4U];
    made += digits[static_cast<unsigned char>(c) & 15U];
  }
  return made;
}

// Returns a part of an address with all characters encoded that an address must not contain. A blank becomes %20, and
// %20 is kept.
std::string normalised(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdefABCDEF";
  constexpr std::string_view others = "!$&'()*+,;=:@[]";  // RFC 3986
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto code = text.substr(at, 3);
    const bool is_code =
        code.size() == 3 && code.front() == '%' && code.find_first_not_of(digits, 1) == std::string_view::npos;
    if (is_code || others.find(text[at]) != std::string_view::npos)
      result += text[at];
    else
      result += escaped(text.substr(at, 1));
  }
  return result;
}

// What will not pass by asking again.
bool is_final(CURLcode code) noexcept {
  return std::ranges::count(std::array{CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE, CURLE_SSL_ISSUER_ERROR,
                                       CURLE_SSL_CERTPROBLEM, CURLE_UNSUPPORTED_PROTOCOL, CURLE_URL_MALFORMAT,
                                       CURLE_TOO_MANY_REDIRECTS, CURLE_AUTH_ERROR},
                            code) != 0;
}

}  // namespace

std::string problem_of(const request_failure& why) { return "cannot be fetched (" + why.why + "); " + why.suggestion; }

request_failure tried_for(request_failure last, seconds timeout) {
  last.again = false;
  last.why += ", tried again for " + std::to_string(static_cast<int>(timeout.count())) + " s";
  return last;
}

std::string version_of(CURL* answer) {
  curl_header* header = nullptr;
  for (const char* const name : {"ETag", "Last-Modified"})
    if (::curl_easy_header(answer, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK) return header->value;
  return {};
}

bool answer_has_strong_etag(CURL* answer) {
  curl_header* header = nullptr;
  return ::curl_easy_header(answer, "ETag", 0, CURLH_HEADER, -1, &header) == CURLHE_OK &&
         !std::string_view(header->value).starts_with("W/");
}

http_server::http_server(std::string address, seconds timeout) : address_(std::move(address)), timeout_(timeout) {
  static const CURLcode begun = ::curl_global_init(CURL_GLOBAL_DEFAULT);  // once a process, and never ended
  if (begun != CURLE_OK) throw error(error_kind::other, "libcurl cannot be initialised; copy the data to a disk");
  const auto query_at = std::min(address_.find('?'), address_.size());
  query_ = address_.substr(query_at);
  address_.resize(query_at);
  while (address_.ends_with('/')) address_.pop_back();
  address_ += '/';
  const auto host_at = address_.find("//") + 2;
  const std::string_view host = std::string_view(address_).substr(host_at, address_.find('/', host_at) - host_at);
  if (host.empty() || host.find('@') != std::string_view::npos) {  // the text may hold a password
    throw configuration_error("an address of " + address_.substr(0, host_at) + " cannot be used (it has " +
                              (host.empty() ? "no server" : "a name or password in it") +
                              "); write such as https://server/folder, and names and passwords into ~/.netrc");
  }
  certificates_ = first_of("CURL_CA_BUNDLE", "SSL_CERT_FILE");
  url_ = address_.substr(0, host_at) + normalised(address_.substr(host_at));
  if (!address_.starts_with("s3://")) return;
  if (has_query()) {
    throw configuration_error("the address " + address_ +
                              " cannot have a query (requests to S3 are signed by muster); " +
                              "leave the query out, or write the https:// address of the file");
  }
  use_bucket(decoded(address_.substr(host_at)));
}

std::string http_server::name_of_file(const std::string& file) { return escaped(file); }

std::string http_server::name_in_address(const std::string& text) const {
  return signature_.empty() && !address_.starts_with("s3://") ? normalised(text) : escaped(decoded(text));
}

std::string http_server::identity_of(const std::string& name) const {
  std::string identity = url_ + name;
  for (const auto word : split(std::string_view(query_).substr(query_.empty() ? 0 : 1), '&')) {
    const auto hidden = without_secrets(word);
    std::string key(word.substr(0, word.find('=')));
    std::ranges::transform(key, key.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool is_of_signature = key.starts_with("x-amz-") || key.starts_with("x-goog-") || hidden != word;
    if (!word.empty() && !is_of_signature) identity.append("&").append(word);
  }
  return identity;
}

void http_server::use_bucket(const std::string& bucket_and_folder) {
  const std::string region = first_of("AWS_REGION", "AWS_DEFAULT_REGION", "us-east-1");
  const auto slash = bucket_and_folder.find('/');
  const std::string bucket = bucket_and_folder.substr(0, slash);
  std::string endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  // A bucket with a dot has no certificate as a server of Amazon's.
  const bool own_server = endpoint.empty() && bucket.find('.') == std::string::npos;
  if (endpoint.empty()) endpoint = "https://" + (own_server ? bucket + "." : "") + "s3." + region + ".amazonaws.com";
  url_ = endpoint + escaped(own_server ? bucket_and_folder.substr(slash) : "/" + bucket_and_folder);
  user_ = environment("AWS_ACCESS_KEY_ID").value_or("");
  password_ = environment("AWS_SECRET_ACCESS_KEY").value_or("");
  if (user_.empty()) return;  // a public bucket
  signature_ = "aws:amz:" + region + ":s3";
  // The digest of no bytes, which is what requests send: Debian's libcurl signs without it.
  constexpr const char* digest_of_nothing =
      "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
  headers_.reset(::curl_slist_append(nullptr, digest_of_nothing));
  if (const auto token = environment("AWS_SESSION_TOKEN"))
    ::curl_slist_append(headers_.get(), ("x-amz-security-token: " + *token).c_str());
}

curl_request http_server::ask(const std::string& name, curl_write_callback take, void* to) const {
  curl_request made(::curl_easy_init());
  if (made == nullptr) throw error(error_kind::other, "libcurl cannot make a handle (out of memory); free memory");
  CURL* const easy = made.get();
  constexpr double most_silence = 10;  // seconds
  const double silence = std::clamp(timeout_.count(), 1.0, most_silence);
  ::curl_easy_setopt(easy, CURLOPT_URL, (url_ + name + query_).c_str());
  ::curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, url_.starts_with("https") ? "https" : "http,https");
  ::curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 1L);
  ::curl_easy_setopt(easy, CURLOPT_MAXREDIRS, 5L);
  ::curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(1000 * silence));
  ::curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
  ::curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, static_cast<long>(silence));
  ::curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);
  ::curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take);
  ::curl_easy_setopt(easy, CURLOPT_WRITEDATA, to);
  if (!certificates_.empty()) ::curl_easy_setopt(easy, CURLOPT_CAINFO, certificates_.c_str());
  if (signature_.empty()) {
    ::curl_easy_setopt(easy, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_OPTIONAL));
    return made;
  }
  ::curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, signature_.c_str());
  ::curl_easy_setopt(easy, CURLOPT_USERNAME, user_.c_str());
  ::curl_easy_setopt(easy, CURLOPT_PASSWORD, password_.c_str());
  ::curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers_.get());
  return made;
}

request_failure http_server::failure_of(CURL* request, CURLcode code) {
  constexpr long not_signed_in = 401, forbidden = 403, absent = 404, too_slow = 408, too_short = 416, too_many = 429,
                 servers_own = 500;
  long status = 0;
  ::curl_easy_getinfo(request, CURLINFO_RESPONSE_CODE, &status);
  const std::string answer = "the server answers " + std::to_string(status);
  if (status >= servers_own || status == too_slow || status == too_many)
    return {true, answer, "go on from the last checkpoint when it works again"};
  if (status == not_signed_in || status == forbidden)
    return {false, answer + ": it may not be read", "check the key or password, and what it permits"};
  if (status == absent) return {false, answer + ": it is not there", "check the address, or copy the file there"};
  if (status == too_short) return {false, answer + ": it is shorter than it was", "copy the file there again"};
  if (status >= 300) return {false, answer, "check the address"};
  if (code == CURLE_OK) return {};
  const std::string why = ::curl_easy_strerror(code);
  if (is_final(code)) return {false, why, "check the address, and that the server's certificate is one to trust"};
  return {true, why, "go on from the last checkpoint when the server is back"};
}

}}}  // namespace muster::v0::detail
