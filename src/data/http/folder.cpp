#include "folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include <muster/core/atomic_file.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include <muster/core/number.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/source_patience.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {
namespace {

constexpr std::uint64_t most_file_bytes = std::uint64_t{1} << 50;
constexpr std::size_t memory_bytes = std::size_t{192} << 20;

long milliseconds_of(seconds timeout) { return static_cast<long>(std::clamp(1000 * timeout.count(), 1.0, 1e9)); }

// Creates the default cache folder for this user alone. Other users know the folder's name and may write to its parent.
// A user who can write into the folder could choose the data that is read, so a folder of another user is refused. A
// folder that cannot be created caches nothing, like any other unusable folder.
void create_private_folder(const std::string& folder) {
  struct stat found {};
  if (::mkdir(folder.c_str(), S_IRWXU) == 0 || ::lstat(folder.c_str(), &found) != 0) return;
  const bool is_own = S_ISDIR(found.st_mode) && found.st_uid == ::geteuid();
  if (is_own && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0) return;
  throw configuration_error("the folder '" + folder + "' cannot be the cache (" +
                            (is_own ? "others may write into it" : "it belongs to another user, or is not a folder") +
                            "); remove it, or name another folder by cache=FOLDER");
}

long status_of(CURL* answer) {
  long status = 0;
  ::curl_easy_getinfo(answer, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

// Returns true if the server may have refused the method. Signed addresses and some servers permit only GET.
bool refuses_head(CURL* answer) {
  constexpr long malformed = 400, forbidden = 403, not_allowed = 405, not_implemented = 501;
  const long status = status_of(answer);
  return status == malformed || status == forbidden || status == not_allowed || status == not_implemented;
}

// Returns true if the answer to a request for the first byte has the length. The file may be empty, and a server may
// send all bytes.
bool is_answered(CURL* answer, CURLcode code) {
  constexpr long whole = 200, part = 206, not_satisfiable = 416;
  const long status = status_of(answer);
  return ((code == CURLE_OK || code == CURLE_WRITE_ERROR) && (status == whole || status == part)) ||
         status == not_satisfiable;
}

// Returns the length of the whole file; -1 if the server does not report the length.
curl_off_t length_of(CURL* answer) {
  curl_header* header = nullptr;
  if (::curl_easy_header(answer, "Content-Range", 0, CURLH_HEADER, -1, &header) == CURLHE_OK) {
    const std::string_view range = header->value;  // "bytes 0-0/1000"
    return parse_number<curl_off_t>(range.substr(std::min(range.find('/'), range.size() - 1) + 1)).value_or(-1);
  }
  curl_off_t length = -1;
  ::curl_easy_getinfo(answer, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  return length;
}

cache_options cache_of(const http_options& options) {
  cache_options cache{.folder = options.cache, .disk = options.disk};
  if (!cache.folder.empty()) return cache;
  cache.folder = temporary_folder() + "/muster-cache-" + std::to_string(::getuid());
  create_private_folder(cache.folder);
  return cache;
}

}  // namespace

http_folder::http_folder(const std::string& address, const http_options& options)
    : server_(address, options.timeout),
      cache_(cache_of(options)),
      timeout_(options.timeout),
      memory_(memory_bytes),
      multi_(::curl_multi_init()) {
  if (multi_ == nullptr) throw error(error_kind::other, "libcurl cannot make a handle (out of memory); free memory");
  std::error_code ignored;
  std::filesystem::create_directories(cache_.folder, ignored);
  locks_ = muster::detail::descriptor(::open((cache_.folder + "/locks").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  thread_ = std::thread([this] { run(); });
}

http_folder::~http_folder() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ::curl_multi_wakeup(multi_);
  thread_.join();
  for (const transfer& unfinished : transfers_) ::curl_multi_remove_handle(multi_, unfinished.request.get());
  transfers_.clear();
  ::curl_multi_cleanup(multi_);
}

std::string http_folder::text(const std::string& name) {
  std::string text;
  (void)send_request(http_server::name_of_file(name), &text);
  return text;
}

std::vector<std::string> http_folder::list(const std::string& folder) {
  std::string text;
  (void)send_request(folder, &text, true);
  return server_.names_in(text, folder);
}

std::string http_folder::version(const std::string& name) {
  const auto reply = send_request(http_server::name_of_file(name), nullptr);
  return version_of(reply.get());
}

curl_request http_folder::send_request(const std::string& name, std::string* text, bool is_list) {
  const auto start = clock::now();
  const auto patience = muster::detail::within_source_patience(timeout_);
  bool by_byte = text == nullptr && server_.has_query();
  for (std::chrono::milliseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
    if (text != nullptr) text->clear();
    const auto append = [](char* received, std::size_t size, std::size_t count, void* output) noexcept -> std::size_t {
      try {
        static_cast<std::string*>(output)->append(received, size * count);
        return size * count;
      } catch (const std::exception&) {  // out of memory: treated like a broken connection
        return 0;
      }
    };
    const auto stop = [](char*, std::size_t size, std::size_t count, void*) noexcept -> std::size_t {
      return size * count > 1 ? 0 : size * count;  // a server that sends the whole file has already sent its length
    };
    curl_request request =
        server_.make_request(is_list ? server_.address_of_list(name) : server_.address_of_request(name),
                             text == nullptr ? +stop : +append, text);
    if (text == nullptr && !by_byte) ::curl_easy_setopt(request.get(), CURLOPT_NOBODY, 1L);
    if (by_byte) ::curl_easy_setopt(request.get(), CURLOPT_RANGE, "0-0");
    ::curl_easy_setopt(request.get(), CURLOPT_TIMEOUT_MS,
                       milliseconds_of(patience < timeout_ ? patience - seconds(seconds_since(start)) : timeout_));
    const CURLcode code = ::curl_easy_perform(request.get());
    if (by_byte && is_answered(request.get(), code)) return request;
    request_failure failure = http_server::failure_of(request.get(), code);
    if (failure.reason.empty()) return request;
    if (text == nullptr && !by_byte && refuses_head(request.get())) {
      by_byte = true;
      continue;
    }
    const auto remaining = patience - seconds(seconds_since(start));
    if (failure.retryable && remaining.count() <= 0) failure = after_retries(std::move(failure), patience);
    if (!failure.retryable) throw_failure({server_.address_of(name)}, failure);
    std::this_thread::sleep_for(std::min<seconds>(pause, remaining));
  }
}

std::size_t http_folder::add(const std::string& name, std::uint64_t size, std::uint64_t content) {
  const std::lock_guard lock(mutex_);
  const std::size_t number = register_file(http_server::name_of_file(name), size, content);
  const std::string& reason = files_[number].uncached_reason;
  if (!reason.empty() && !std::exchange(warned_of_cache_, true)) {
    muster::log(log_level::warning, "the cache '" + cache_.folder + "' does not keep all of " + server_.address_of("") +
                                        " (" + reason + "); the rest is fetched each time it is read");
  }
  return number;
}

remote_file http_folder::find(const std::string& part_of_address) {
  const std::string name = server_.name_in_address(part_of_address);
  const auto refuse = [&](const std::string& problem) { throw data_error({server_.address_of(name)}, problem); };
  const curl_request reply = send_request(name, nullptr);
  const std::string version = version_of(reply.get());
  const curl_off_t length = length_of(reply.get());
  if (length < 0 || version.empty()) {
    refuse(std::string("cannot be kept (the server sends no ") + (length < 0 ? "length" : "ETag or Last-Modified") +
           " for it); use another server, or copy the file to a disk");
  }
  if (length == 0) refuse("is empty (it has no bytes); check how it was made");
  const auto size = static_cast<std::uint64_t>(length);
  const std::lock_guard lock(mutex_);
  // Last-Modified has a resolution of seconds, and a weak ETag only identifies equivalent contents. The bytes of a file
  // may change without a change of either, so a random number makes the digest unique.
  const bool is_exact = has_strong_etag(reply.get());
  std::random_device random;
  const std::uint64_t content = digest()
                                    .add(server_.identity_of(name))
                                    .add(version)
                                    .add(is_exact ? 0 : std::uint64_t{random()} << 32U | random())
                                    .value();
  const std::size_t number = register_file(name, size, content, !is_exact);
  file& found = files_[number];
  if (found.version.empty()) found.version = version;
  if (!found.uncached_reason.empty()) {
    refuse("of " + std::to_string(size) + " bytes cannot be kept in the cache '" + cache_.folder + "' (" +
           found.uncached_reason + "); give it more room, or another folder");
  }
  return {number, size, is_exact ? std::optional(content) : std::nullopt};
}

std::size_t http_folder::register_file(const std::string& name, std::uint64_t size, std::uint64_t content,
                                       bool process_only) {
  if (size == 0 || size > most_file_bytes) {
    throw data_error({server_.address_of(name)},
                     "cannot be a file of " + std::to_string(size) + " bytes (a file on a server has 1 to " +
                         std::to_string(most_file_bytes) + "); check the program that wrote the manifest");
  }
  const std::uint64_t key = digest().add(content).add(size).add(name).value();
  const auto known_file = std::ranges::find_if(files_, [&](const file& each) { return each.blocks.key == key; });
  if (known_file != files_.end()) return static_cast<std::size_t>(known_file - files_.begin());
  const std::uint64_t count = (size + block_bytes - 1) / block_bytes;
  file& added = files_.emplace_back(
      name, size,
      cached_records{.name = server_.address_of(name), .key = key, .size = count, .record_bytes = block_bytes});
  open_store(added);
  if (process_only && added.store) added.store->remove_name();
  return files_.size() - 1;
}

void http_folder::open_store(file& owner) {
  std::string& reason = owner.uncached_reason;
  try {
    owner.store.emplace(owner.blocks, cache_, cache_.disk - disk_bytes_);
    disk_bytes_ += owner.store->file_bytes();
    if (owner.store->record_count() < owner.blocks.size) reason = "its limit is reached";
    if (!owner.store->writable()) reason = "it is not writable";
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (owner.store && !owner.store->writable()) owner.store.reset();
}

void http_folder::expect(std::span<const remote_part> sections) {
  {
    const std::lock_guard lock(mutex_);
    for (const remote_part& part : sections) {
      file& owner = files_[part.file];
      for (std::uint64_t block = part.begin / block_bytes; block * block_bytes < part.begin + part.size; ++block)
        queue_block(owner, block, false);
    }
  }
  ::curl_multi_wakeup(multi_);
}

const std::byte* http_folder::view(const remote_part& section, bytes& held) {
  file& owner = [&]() -> file& {
    const std::lock_guard lock(mutex_);
    return files_[section.file];
  }();
  const std::uint64_t first = section.begin / block_bytes;
  const std::uint64_t last = (section.begin + std::max<std::uint64_t>(section.size, 1) - 1) / block_bytes;
  if (owner.is_on_disk(last)) {
    for (std::uint64_t block = first; block <= last; ++block) (void)wait_for_block(owner, block);
    return owner.store->view(first, {}).data() + section.begin % block_bytes;
  }
  auto assembled = std::make_shared<std::vector<std::byte>>();
  assembled->reserve(std::max<std::uint64_t>(section.size, 1));  // never a null pointer, even for 0 bytes
  for (std::uint64_t block = first; block <= last; ++block) {
    const bytes in_memory = wait_for_block(owner, block);
    const std::span<const std::byte> whole_block = in_memory ? std::span(*in_memory) : owner.store->view(block, {});
    const std::uint64_t at = block * block_bytes;
    const std::uint64_t begin = std::max(section.begin, at) - at;
    const auto part_of_block =
        whole_block.subspan(begin, std::min(section.begin + section.size - at, block_bytes) - begin);
    assembled->insert(assembled->end(), part_of_block.begin(), part_of_block.end());
  }
  held = std::move(assembled);
  return held->data();
}

// Waits until a block is ready. Returns the block, or null if it is on the disk.
http_folder::bytes http_folder::wait_for_block(file& owner, std::uint64_t block) {
  const bool on_disk = owner.is_on_disk(block);
  auto& state = owner.states[block];
  if (on_disk && state.load(std::memory_order_acquire) == progress::ready) return nullptr;
  const auto key = std::pair<const file*, std::uint64_t>(&owner, block);
  std::unique_lock lock(mutex_);
  failures_.erase(key);
  const data_location location{server_.address_of(owner.name), 0, 0, block * block_bytes};
  const auto patience = muster::detail::within_source_patience(timeout_);
  const auto until = deadline_after(patience);
  for (bool queued = false;;) {
    if (on_disk && state == progress::ready) return nullptr;
    if (bytes found = on_disk ? nullptr : memory_.find(cache_key_of(owner, block))) return found;
    if (const auto found = failures_.find(key); found != failures_.end()) {
      const request_failure failure = found->second;
      failures_.erase(found);
      throw_failure(location, failure);
    }
    // Other ranks wait for this one, and would take it for dead.
    if (patience < timeout_ && failing_since_ && clock::now() >= until)
      throw_failure(location, after_retries(last_failure_, patience));
    if (state == progress::ready) state = progress::absent;  // the block was evicted from memory
    if (state == progress::absent || !std::exchange(queued, true)) {
      queue_block(owner, block, true);
      ::curl_multi_wakeup(multi_);
    }
    state_changed_.wait_until(lock, std::max(until, clock::now() + std::chrono::seconds(1)));
  }
}

void http_folder::queue_block(file& owner, std::uint64_t block, bool at_front) {
  auto& state = owner.states[block];
  if (state == progress::in_flight || state == progress::ready || (state == progress::queued && !at_front)) return;
  const queued_block entry{&owner, block, clock::now()};
  at_front ? queue_.push_front(entry) : queue_.push_back(entry);
  state = progress::queued;
}

void http_folder::set_state(file& owner, std::uint64_t block, progress state) {
  owner.states[block].store(state, std::memory_order_release);
  state_changed_.notify_all();
}

std::uint64_t http_folder::cache_key_of(const file& owner, std::uint64_t block) const noexcept {
  return mix(owner.blocks.key + block);
}

bool http_folder::lock_block(const file& owner, std::uint64_t block, bool locked) const noexcept {
  if (!locks_) return true;  // without the file `locks`, processes fetch independently
  constexpr std::uint64_t largest_offset = ~std::uint64_t{0} >> 2U;
  struct flock range {};
  range.l_type = locked ? F_WRLCK : F_UNLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(cache_key_of(owner, block) & largest_offset);
  range.l_len = 1;
  return ::fcntl(locks_.get(), F_OFD_SETLK, &range) == 0;
}

}}}}  // namespace muster::v0::data::detail

namespace muster { inline namespace v0 { namespace detail {

extern const plugin http_plugin;
[[gnu::init_priority(101)]] const plugin http_plugin("http", [] {
  using namespace data::detail;
  set_remote_opener(
      [](const std::string& address, const data::http_options& options) -> std::shared_ptr<remote_folder> {
        return std::make_shared<http_folder>(address, options);
      });
});

}}}  // namespace muster::v0::detail
