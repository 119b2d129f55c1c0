#include "http_server.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/spec.hpp>

#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {
namespace {

std::string first_of(const char* name, const char* second_name, const char* fallback = "") {
  const auto found = environment(name);
  return found ? *found : environment(second_name).value_or(fallback);
}

std::string escaped(std::string_view text) {
  constexpr std::string_view plain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";  // RFC 3986, and the slash
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string result;
  for (const char c : text) {
    if (plain.find(c) != std::string_view::npos) {
      result += c;
      continue;
    }
    result += '%';
    result += digits[static_cast<unsigned char>(c) >> 4U];
    result += digits[static_cast<unsigned char>(c) & 15U];
  }
  return result;
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

// Returns a text of HTML or XML with its named characters decoded: &amp; is an ampersand, and so on. Others are kept.
std::string without_entities(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, char>, 7> entities{{{"&amp;", '&'},
                                                                       {"&lt;", '<'},
                                                                       {"&gt;", '>'},
                                                                       {"&quot;", '"'},
                                                                       {"&apos;", '\''},
                                                                       {"&#39;", '\''},
                                                                       {"&#34;", '"'}}};
  std::string result;
  while (!text.empty()) {
    const auto* const found =
        std::ranges::find_if(entities, [&](const auto& each) { return text.starts_with(each.first); });
    result += found == entities.end() ? text.front() : found->second;
    text.remove_prefix(found == entities.end() ? 1 : found->first.size());
  }
  return result;
}

// Returns true for an error that a retry cannot resolve.
bool is_final(CURLcode code) noexcept {
  return std::ranges::count(std::array{CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE, CURLE_SSL_ISSUER_ERROR,
                                       CURLE_SSL_CERTPROBLEM, CURLE_UNSUPPORTED_PROTOCOL, CURLE_URL_MALFORMAT,
                                       CURLE_TOO_MANY_REDIRECTS, CURLE_AUTH_ERROR},
                            code) != 0;
}

}  // namespace

void throw_failure(data_location location, const request_failure& failure) {
  const std::string text = "cannot be fetched (" + failure.reason + "); " + failure.suggestion;
  if (failure.is_away) throw source_error(std::move(location), text);
  throw data_error(std::move(location), text);
}

request_failure after_retries(request_failure last, seconds timeout) {
  last.retryable = false;
  last.is_away = true;
  last.reason += ", tried again for " + std::to_string(static_cast<int>(timeout.count())) + " s";
  return last;
}

std::string version_of(CURL* reply) {
  curl_header* header = nullptr;
  for (const char* const name : {"ETag", "Last-Modified"})
    if (::curl_easy_header(reply, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK) return header->value;
  return {};
}

bool has_strong_etag(CURL* reply) {
  curl_header* header = nullptr;
  return ::curl_easy_header(reply, "ETag", 0, CURLH_HEADER, -1, &header) == CURLHE_OK &&
         !std::string_view(header->value).starts_with("W/");
}

http_server::http_server(std::string address, seconds timeout) : address_(std::move(address)), timeout_(timeout) {
  // Initialises libcurl once for each process, without cleanup.
  static const CURLcode initialised = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  if (initialised != CURLE_OK) throw error(error_kind::other, "libcurl cannot be initialised; copy the data to a disk");
  const auto query_at = std::min(address_.find('?'), address_.size());
  query_ = address_.substr(query_at);
  address_.resize(query_at);
  while (address_.ends_with('/')) address_.pop_back();
  address_ += '/';
  const auto host_at = address_.find("//") + 2;
  const std::string_view host = std::string_view(address_).substr(host_at, address_.find('/', host_at) - host_at);
  if (host.empty() || host.find('@') != std::string_view::npos) {  // the text may hold a password
    throw configuration_error(
        "an address of " + address_.substr(0, host_at) + " cannot be used (it has " +
        (host.empty() ? "no server" : "a name or password in it") +
        "); write an address such as https://server/folder, and put names and passwords into ~/.netrc");
  }
  certificates_ = first_of("CURL_CA_BUNDLE", "SSL_CERT_FILE");
  url_ = address_.substr(0, host_at) + normalised(address_.substr(host_at));
  if (!address_.starts_with("s3://")) return;
  if (has_query()) {
    throw configuration_error("the address " + address_ +
                              " cannot have a query (requests to S3 are signed by muster); " +
                              "leave the query out, or write the https:// address of the file");
  }
  use_bucket(muster::detail::decoded(address_.substr(host_at)));
}

std::string http_server::name_of_file(const std::string& name) { return escaped(name); }

std::string http_server::name_in_address(const std::string& text) const {
  return signature_.empty() && !address_.starts_with("s3://") ? normalised(text)
                                                              : escaped(muster::detail::decoded(text));
}

std::string http_server::identity_of(const std::string& name) const {
  std::string identity = url_ + name;
  for (const auto word : muster::detail::split(std::string_view(query_).substr(query_.empty() ? 0 : 1), '&')) {
    const auto hidden = muster::detail::without_secrets(word);
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
  // The certificates of Amazon's servers do not match bucket names with a dot, so such a bucket is part of the path.
  const bool own_server = endpoint.empty() && bucket.find('.') == std::string::npos;
  if (endpoint.empty()) endpoint = "https://" + (own_server ? bucket + "." : "") + "s3." + region + ".amazonaws.com";
  url_ = endpoint + escaped(own_server ? bucket_and_folder.substr(slash) : "/" + bucket_and_folder);
  bucket_ = endpoint + (own_server ? "/" : "/" + escaped(bucket) + "/");
  prefix_ = bucket_and_folder.substr(std::min(slash + 1, bucket_and_folder.size()));
  user_ = environment("AWS_ACCESS_KEY_ID").value_or("");
  password_ = environment("AWS_SECRET_ACCESS_KEY").value_or("");
  if (user_.empty()) return;  // a public bucket
  signature_ = "aws:amz:" + region + ":s3";
  // The digest of an empty body, since requests have no body. Debian's libcurl does not add this header itself.
  constexpr const char* digest_of_nothing =
      "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
  headers_.reset(::curl_slist_append(nullptr, digest_of_nothing));
  if (const auto token = environment("AWS_SESSION_TOKEN"))
    ::curl_slist_append(headers_.get(), ("x-amz-security-token: " + *token).c_str());
}

std::string http_server::address_of_list(const std::string& folder) const {
  const std::string below = folder.empty() ? "" : folder + "/";
  if (bucket_.empty()) return url_ + escaped(below) + query_;
  std::string prefix;  // a slash in a value is encoded too, as the signature requires
  for (const char c : escaped(prefix_ + below)) prefix += c == '/' ? "%2F" : std::string(1, c);
  return bucket_ + "?delimiter=%2F&list-type=2&prefix=" + prefix;
}

std::vector<std::string> http_server::names_in(const std::string& list, const std::string& folder) const {
  std::vector<std::string> names;
  const std::string before = prefix_ + (folder.empty() ? "" : folder + "/");
  const auto add = [&](std::string_view name) {
    while (name.ends_with('/')) name.remove_suffix(1);
    const bool is_name = !name.empty() && name.front() != '.' && name.find_first_of("/?#:") == std::string_view::npos;
    if (is_name && std::ranges::find(names, name) == names.end()) names.emplace_back(name);
  };
  const auto each_between = [&](std::string_view begin, std::string_view end, const auto& use) {
    for (auto at = list.find(begin); at != std::string::npos; at = list.find(begin, at)) {
      at += begin.size();
      use(std::string_view(list).substr(at, list.find(end, at) - at));
    }
  };
  if (bucket_.empty()) {
    each_between("href=\"", "\"", [&](std::string_view text) {
      const std::string link = muster::detail::decoded(without_entities(text));
      add(std::string_view(link).substr(link.starts_with("./") ? 2 : 0));  // Caddy writes ./name/
    });
    return names;
  }
  if (list.find("<IsTruncated>true") != std::string::npos)
    throw data_error({address_ + folder}, "has too many files for one list (S3 sends 1000); divide it into folders");
  const auto add_key = [&](std::string_view text) {
    const std::string key = without_entities(text);
    add(std::string_view(key).substr(std::min(before.size(), key.size())));
  };
  each_between("<CommonPrefixes><Prefix>", "<", add_key);
  each_between("<Key>", "<", add_key);
  return names;
}

curl_request http_server::make_request(const std::string& address, curl_write_callback on_bytes,
                                       void* user_data) const {
  curl_request request(::curl_easy_init());
  if (request == nullptr) throw error(error_kind::other, "libcurl cannot make a handle (out of memory); free memory");
  CURL* const easy = request.get();
  constexpr double most_silence = 10;  // seconds
  const double silence = std::clamp(timeout_.count(), 1.0, most_silence);
  ::curl_easy_setopt(easy, CURLOPT_URL, address.c_str());
  ::curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, url_.starts_with("https") ? "https" : "http,https");
  ::curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 1L);
  ::curl_easy_setopt(easy, CURLOPT_MAXREDIRS, 5L);
  ::curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(1000 * silence));
  ::curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
  ::curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, static_cast<long>(silence));
  ::curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);
  ::curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
  ::curl_easy_setopt(easy, CURLOPT_WRITEDATA, user_data);
  if (!certificates_.empty()) ::curl_easy_setopt(easy, CURLOPT_CAINFO, certificates_.c_str());
  if (signature_.empty()) {
    ::curl_easy_setopt(easy, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_OPTIONAL));
    return request;
  }
  ::curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, signature_.c_str());
  ::curl_easy_setopt(easy, CURLOPT_USERNAME, user_.c_str());
  ::curl_easy_setopt(easy, CURLOPT_PASSWORD, password_.c_str());
  ::curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers_.get());
  return request;
}

request_failure http_server::failure_of(CURL* request, CURLcode code) {
  constexpr long unauthorised = 401, forbidden = 403, not_found = 404, request_timeout = 408, not_satisfiable = 416,
                 too_many_requests = 429, server_error = 500;
  long status = 0;
  ::curl_easy_getinfo(request, CURLINFO_RESPONSE_CODE, &status);
  const std::string reply = "the server answers " + std::to_string(status);
  if (status >= server_error || status == request_timeout || status == too_many_requests)
    return {true, reply, "go on from the last checkpoint when it works again"};
  if (status == unauthorised || status == forbidden)
    return {false, reply + ": reading is not permitted", "check the key or password, and what it permits"};
  if (status == not_found)
    return {false, reply + ": the file does not exist", "check the address, or copy the file there"};
  if (status == not_satisfiable)
    return {false, reply + ": the file is shorter than before", "copy the file there again"};
  if (status >= 300) return {false, reply, "check the address"};
  if (code == CURLE_OK) return {};
  const std::string reason = ::curl_easy_strerror(code);
  if (is_final(code)) return {false, reason, "check the address, and that the server's certificate is trusted"};
  return {true, reason, "go on from the last checkpoint when the server is back"};
}

}}}}  // namespace muster::v0::data::detail
