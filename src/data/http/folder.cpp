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

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::uint64_t most_file_bytes = std::uint64_t{1} << 50;
constexpr std::size_t memory_bytes = std::size_t{192} << 20;

long milliseconds_of(seconds timeout) { return static_cast<long>(std::clamp(1000 * timeout.count(), 1.0, 1e9)); }

// Other users know its name, and may write beside it. One that can write into it chooses what is read. A folder that
// cannot be made keeps nothing, like any other.
void make_own(const std::string& folder) {
  struct stat found {};
  if (::mkdir(folder.c_str(), S_IRWXU) == 0 || ::lstat(folder.c_str(), &found) != 0) return;
  const bool is_own = S_ISDIR(found.st_mode) && found.st_uid == ::geteuid();
  if (is_own && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0) return;
  throw configuration_error("the folder '" + folder + "' cannot be the cache (" +
                            (is_own ? "others may write into it" : "it belongs to another user, or is none") +
                            "); remove it, or name another one by cache=FOLDER");
}

cache_options cache_of(const http_options& options) {
  cache_options made{.folder = options.cache, .disk = options.disk};
  if (!made.folder.empty()) return made;
  made.folder = temporary_folder() + "/muster-cache-" + std::to_string(::getuid());
  make_own(made.folder);
  return made;
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
  locks_ = descriptor(::open((cache_.folder + "/locks").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  thread_ = std::thread([this] { run(); });
}

http_folder::~http_folder() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ::curl_multi_wakeup(multi_);
  thread_.join();
  for (const transfer& left : transfers_) ::curl_multi_remove_handle(multi_, left.request.get());
  transfers_.clear();
  ::curl_multi_cleanup(multi_);
}

std::string http_folder::text(const std::string& name) {
  std::string text;
  (void)ask(name, &text);
  return text;
}

curl_request http_folder::ask(const std::string& name, std::string* text) {
  const auto start = clock::now();
  for (std::chrono::milliseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
    if (text != nullptr) text->clear();
    const auto take = [](char* data, std::size_t one, std::size_t count, void* to) noexcept -> std::size_t {
      try {
        static_cast<std::string*>(to)->append(data, one * count);
        return one * count;
      } catch (const std::exception&) {  // no memory: as if the connection had broken
        return 0;
      }
    };
    curl_request request = server_.ask(name, take, text);
    if (text == nullptr) ::curl_easy_setopt(request.get(), CURLOPT_NOBODY, 1L);
    ::curl_easy_setopt(request.get(), CURLOPT_TIMEOUT_MS, milliseconds_of(timeout_));
    request_failure failure = http_server::failure_of(request.get(), ::curl_easy_perform(request.get()));
    if (failure.why.empty()) return request;
    const auto left = timeout_ - seconds(seconds_since(start));
    if (failure.again && left.count() <= 0) failure = tried_for(std::move(failure), timeout_);
    if (!failure.again) throw data_error({server_.address_of(name)}, problem_of(failure));
    std::this_thread::sleep_for(std::min<seconds>(pause, left));
  }
}

std::size_t http_folder::add(const std::string& name, std::uint64_t size, std::uint64_t content) {
  const std::lock_guard lock(mutex_);
  const std::size_t number = know(name, size, content);
  const std::string& why = files_[number].not_kept;
  if (!why.empty() && !std::exchange(told_of_cache_, true)) {
    muster::log(log_level::warning, "the cache '" + cache_.folder + "' does not keep all of " + server_.address_of("") +
                                        " (" + why + "); the rest is fetched whenever it is wanted");
  }
  return number;
}

remote_file http_folder::find(const std::string& name) {
  const auto refuse = [&](const std::string& problem) { throw data_error({server_.address_of(name)}, problem); };
  const curl_request answer = ask(name, nullptr);
  const std::string version = version_of(answer.get());
  curl_off_t length = -1;
  ::curl_easy_getinfo(answer.get(), CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  if (length < 0 || version.empty()) {
    refuse(std::string("cannot be kept (the server says no ") + (length < 0 ? "length" : "ETag or Last-Modified") +
           " of it); use another server, or copy the file to a disk");
  }
  if (length == 0) refuse("is empty (it has no bytes); check how it was made");
  const auto size = static_cast<std::uint64_t>(length);
  const std::lock_guard lock(mutex_);
  // Last-Modified counts seconds, and a weak ETag is for what means the same: bytes may change beneath either.
  const bool is_exact = answer_has_strong_etag(answer.get());
  std::random_device random;
  const std::uint64_t content = digest()
                                    .add(server_.url_of(name))
                                    .add(version)
                                    .add(is_exact ? 0 : std::uint64_t{random()} << 32U | random())
                                    .value();
  const std::size_t number = know(name, size, content, !is_exact);
  file& found = files_[number];
  if (found.version.empty()) found.version = version;
  if (!found.not_kept.empty()) {
    refuse("of " + std::to_string(size) + " bytes cannot be kept in the cache '" + cache_.folder + "' (" +
           found.not_kept + "); give it more room, or another folder");
  }
  return {number, size, is_exact ? std::optional(content) : std::nullopt};
}

std::size_t http_folder::know(const std::string& name, std::uint64_t size, std::uint64_t content, bool only_here) {
  if (size == 0 || size > most_file_bytes) {
    throw data_error({server_.address_of(name)},
                     "cannot be a file of " + std::to_string(size) + " bytes (those of a server have 1 to " +
                         std::to_string(most_file_bytes) + "); check what wrote the manifest");
  }
  const std::uint64_t key = digest().add(content).add(size).add(name).value();
  const auto known = std::ranges::find_if(files_, [&](const file& each) { return each.blocks.key == key; });
  if (known != files_.end()) return static_cast<std::size_t>(known - files_.begin());
  const std::uint64_t count = (size + block_bytes - 1) / block_bytes;
  file& added = files_.emplace_back(
      name, size,
      cached_records{.name = server_.address_of(name), .key = key, .size = count, .record_bytes = block_bytes});
  open_store(added);
  if (only_here && added.store) added.store->remove_name();
  return files_.size() - 1;
}

void http_folder::open_store(file& of) {
  std::string& why = of.not_kept;
  try {
    of.store.emplace(of.blocks, cache_, cache_.disk - kept_bytes_);
    kept_bytes_ += of.store->file_bytes();
    if (of.store->record_count() < of.blocks.size) why = "its limit is reached";
    if (!of.store->writable()) why = "it may not be written";
  } catch (const std::exception& error) {
    why = error.what();
  }
  if (of.store && !of.store->writable()) of.store.reset();
}

void http_folder::expect(std::span<const remote_part> parts) {
  {
    const std::lock_guard lock(mutex_);
    for (const remote_part& part : parts) {
      file& of = files_[part.file];
      for (std::uint64_t block = part.begin / block_bytes; block * block_bytes < part.begin + part.size; ++block)
        want(of, block, false);
    }
  }
  ::curl_multi_wakeup(multi_);
}

const std::byte* http_folder::view(const remote_part& part, bytes& held) {
  file& of = [&]() -> file& {
    const std::lock_guard lock(mutex_);
    return files_[part.file];
  }();
  const std::uint64_t first = part.begin / block_bytes;
  const std::uint64_t last = (part.begin + std::max<std::uint64_t>(part.size, 1) - 1) / block_bytes;
  if (of.keeps(last)) {
    for (std::uint64_t block = first; block <= last; ++block) (void)await(of, block);
    return of.store->view(first, {}).data() + part.begin % block_bytes;
  }
  auto put_together = std::make_shared<std::vector<std::byte>>();
  put_together->reserve(std::max<std::uint64_t>(part.size, 1));  // never null
  for (std::uint64_t block = first; block <= last; ++block) {
    const bytes alone = await(of, block);
    const std::span<const std::byte> all = alone ? std::span(*alone) : of.store->view(block, {});
    const std::uint64_t at = block * block_bytes;
    const std::uint64_t begin = std::max(part.begin, at) - at;
    const auto wanted = all.subspan(begin, std::min(part.begin + part.size - at, block_bytes) - begin);
    put_together->insert(put_together->end(), wanted.begin(), wanted.end());
  }
  held = std::move(put_together);
  return held->data();
}

// Waits for a block; null if it is kept on the disk.
http_folder::bytes http_folder::await(file& of, std::uint64_t block) {
  const bool kept = of.keeps(block);
  auto& state = of.states[block];
  if (kept && state.load(std::memory_order_acquire) == progress::here) return nullptr;
  const auto key = std::pair<const file*, std::uint64_t>(&of, block);
  std::unique_lock lock(mutex_);
  given_up_.erase(key);
  for (bool asked = false;;) {
    if (kept && state == progress::here) return nullptr;
    if (bytes found = kept ? nullptr : memory_.find(number_of(of, block))) return found;
    if (const auto found = given_up_.find(key); found != given_up_.end()) {
      const std::string why = found->second;
      given_up_.erase(found);
      throw data_error({server_.address_of(of.name), 0, 0, block * block_bytes}, why);
    }
    if (state == progress::here) state = progress::absent;  // it was, in memory
    if (state == progress::absent || !std::exchange(asked, true)) {
      want(of, block, true);
      ::curl_multi_wakeup(multi_);
    }
    told_.wait(lock);
  }
}

void http_folder::want(file& of, std::uint64_t block, bool at_once) {
  auto& state = of.states[block];
  if (state == progress::on_its_way || state == progress::here || (state == progress::wanted && !at_once)) return;
  const place here{&of, block, clock::now()};
  at_once ? wanted_.push_front(here) : wanted_.push_back(here);
  state = progress::wanted;
}

void http_folder::tell(file& of, std::uint64_t block, progress state) {
  of.states[block].store(state, std::memory_order_release);
  told_.notify_all();
}

std::uint64_t http_folder::number_of(const file& of, std::uint64_t block) const noexcept {
  return mix(of.blocks.key + block);
}

bool http_folder::lock_block(const file& of, std::uint64_t block, bool locked) const noexcept {
  if (!locks_) return true;  // no process can tell another anything
  constexpr std::uint64_t largest_offset = ~std::uint64_t{0} >> 2U;
  struct flock range {};
  range.l_type = locked ? F_WRLCK : F_UNLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(number_of(of, block) & largest_offset);
  range.l_len = 1;
  return ::fcntl(locks_.get(), F_OFD_SETLK, &range) == 0;
}

bool register_http() noexcept {
  set_remote_opener([](const std::string& address, const http_options& options) -> std::shared_ptr<remote_folder> {
    return std::make_shared<http_folder>(address, options);
  });
  return true;
}

}}}  // namespace muster::v0::detail
