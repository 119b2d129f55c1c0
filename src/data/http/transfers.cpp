// The transfer thread: fetches queued blocks.
#include "folder.hpp"

#include <fcntl.h>

#include <muster/core/number.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {
namespace {

constexpr std::size_t most_transfers = 8;
constexpr std::uint64_t most_blocks_of_transfer = 8;
constexpr std::chrono::milliseconds poll_interval{10};  // polling interval for blocks that other processes fetch

}  // namespace

void http_folder::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    start_transfers();
    const auto paused = std::chrono::ceil<std::chrono::milliseconds>(pause_until_ - clock::now());
    constexpr std::chrono::milliseconds idle{1000};
    const auto wait = queue_.empty() ? idle : std::clamp(paused, poll_interval, idle);
    lock.unlock();
    int running = 0;
    ::curl_multi_perform(multi_, &running);
    int unread = 0;
    while (const CURLMsg* const message = ::curl_multi_info_read(multi_, &unread)) {
      const auto ended = std::ranges::find_if(
          transfers_, [&](const transfer& each) { return each.request.get() == message->easy_handle; });
      if (message->msg == CURLMSG_DONE && ended != transfers_.end()) finish(ended, message->data.result);
    }
    ::curl_multi_poll(multi_, nullptr, 0, static_cast<int>(wait.count()), nullptr);
    lock.lock();
  }
}

// Returns true if this process must fetch a queued block now. Sets the state of a block that is in the cache to
// `ready`. Returns false if another process is fetching the block.
bool http_folder::must_fetch(const queued_block& entry) {
  auto* const owner = entry.owner;
  const auto block = entry.block;
  const auto is_cached = [&] { return owner->is_on_disk(block) && !owner->store->view(block, {}).empty(); };
  if (is_cached()) {
    set_state(*owner, block, progress::ready);
    return false;
  }
  // Another process has locked the block. Waits for it at most until the timeout, because that process may be
  // suspended.
  if (owner->is_on_disk(block) && !lock_block(*owner, block, true))
    return seconds_since(entry.queued_at) > timeout_.count();
  if (!is_cached()) return true;  // the process that had the lock did not store the block
  (void)lock_block(*owner, block, false);
  set_state(*owner, block, progress::ready);
  return false;
}

void http_folder::start_transfers() {
  if (clock::now() < pause_until_) return;
  for (std::size_t k = 0; k < queue_.size() && transfers_.size() < most_transfers;) {
    const queued_block next = queue_[k];
    if (next.owner->states[next.block] == progress::queued && !must_fetch(next) &&
        next.owner->states[next.block] == progress::queued) {
      ++k;  // another process fetches the block
      continue;
    }
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(k));
    if (next.owner->states[next.block] != progress::queued) continue;
    transfer new_transfer{this, next.owner, next.block, next.block + 1};
    const auto is_queued = [&] {
      return new_transfer.end < new_transfer.owner->states.size() &&
             new_transfer.owner->states[new_transfer.end] == progress::queued;
    };
    while (new_transfer.end - new_transfer.block < most_blocks_of_transfer && is_queued() &&
           must_fetch({new_transfer.owner, new_transfer.end, next.queued_at}))
      ++new_transfer.end;
    start(std::move(new_transfer));
  }
}

void http_folder::start(transfer new_transfer) {
  for (std::uint64_t block = new_transfer.block; block < new_transfer.end; ++block)
    new_transfer.owner->states[block] = progress::in_flight;
  transfer& started = transfers_.emplace_back(std::move(new_transfer));
  started.request = server_.make_request(server_.address_of_request(started.owner->name), &receive, &started);
  const std::string range =
      std::to_string(started.block * block_bytes) + "-" + std::to_string(started.owner->end_of(started.end - 1) - 1);
  ::curl_easy_setopt(started.request.get(), CURLOPT_RANGE, range.c_str());
  ::curl_multi_add_handle(multi_, started.request.get());
}

// Returns true if the reply has the requested range of the expected version. Otherwise sets the transfer's failure.
bool http_folder::is_expected_reply(transfer& active) const {
  constexpr long complete = 200, partial = 206;
  CURL* const request = active.request.get();
  long status = 0;
  ::curl_easy_getinfo(request, CURLINFO_RESPONSE_CODE, &status);
  if (status != complete && status != partial) return false;
  std::uint64_t size = active.owner->size, begin = active.block * block_bytes;
  curl_header* header = nullptr;
  const char* const name = status == partial ? "Content-Range" : "Content-Length";
  if (::curl_easy_header(request, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK) {
    const std::string_view value = header->value;
    size = parse_number<std::uint64_t>(value.substr(value.find('/') + 1)).value_or(size);
    const auto at = value.find(' ') + 1;  // "bytes 0-99/1000"
    if (status == partial) begin = parse_number<std::uint64_t>(value.substr(at, value.find('-') - at)).value_or(begin);
  }
  if (size != active.owner->size) {
    active.failure = {false,
                      "the server has " + std::to_string(size) + " bytes, but " +
                          (active.owner->version.empty() ? "the manifest declares " : "it had ") +
                          std::to_string(active.owner->size),
                      "copy the file there again"};
  } else if (!active.owner->version.empty() && version_of(request) != active.owner->version) {
    active.failure = {false, "the server has a different version of the file than at the start", "start again"};
  } else if (begin != active.block * block_bytes) {
    active.failure = {false, "the server sends another range than the requested range",
                      "check its cache, or use another server"};
  } else if (status == complete && (active.block != 0 || active.owner->end_of(active.end - 1) != size)) {
    active.failure = {false, "the server does not support range requests",
                      "use another server, or copy the data to a disk"};
  }
  return active.failure.reason.empty();
}

std::size_t http_folder::receive(char* received, std::size_t size, std::size_t count, void* user_data) noexcept {
  transfer& current = *static_cast<transfer*>(user_data);
  const std::size_t total = size * count;
  try {
    if (!current.checked && !current.folder->is_expected_reply(current)) return 0;
    current.checked = true;
    auto rest = std::as_bytes(std::span(received, total));
    while (!rest.empty()) {
      if (current.block == current.end) return 0;  // more bytes than requested
      const std::uint64_t missing =
          current.owner->end_of(current.block) - current.block * block_bytes - current.received.size();
      const auto piece = rest.first(std::min<std::size_t>(rest.size(), missing));
      current.received.insert(current.received.end(), piece.begin(), piece.end());
      rest = rest.subspan(piece.size());
      if (piece.size() == missing) current.folder->store_block(current);
    }
    return total;
  } catch (const std::exception&) {  // out of memory: treated like a broken connection
    return 0;
  }
}

void http_folder::store_block(transfer& active) {
  const std::lock_guard lock(mutex_);
  if (active.owner->is_on_disk(active.block)) {
    (void)active.owner->store->put(active.block, active.received, {});
    (void)lock_block(*active.owner, active.block, false);
    active.received.clear();
  } else {
    memory_.keep(cache_key_of(*active.owner, active.block),
                 std::make_shared<const std::vector<std::byte>>(std::exchange(active.received, {})));
  }
  set_state(*active.owner, active.block++, progress::ready);
  failing_since_.reset();
  pause_ = {};
}

void http_folder::finish(transfers::iterator active, CURLcode code) {
  const std::lock_guard lock(mutex_);
  ::curl_multi_remove_handle(multi_, active->request.get());
  request_failure failure =
      active->failure.reason.empty() ? http_server::failure_of(active->request.get(), code) : active->failure;
  if (failure.reason.empty()) failure = {true, "the server has sent fewer bytes than requested", "check its log"};
  for (std::uint64_t block = active->block; block < active->end; ++block)
    (void)lock_block(*active->owner, block, false);
  if (active->block < active->end && failure.retryable) {
    const auto now = clock::now();
    if (!failing_since_) failing_since_ = now;
    pause_ = pause_ == pause_.zero() ? first_pause : std::min(2 * pause_, longest_pause);
    const auto remaining = timeout_ - seconds(now - *failing_since_);
    last_failure_ = failure;
    if (remaining.count() <= 0) failure = after_retries(std::move(failure), timeout_);
    pause_until_ = now + std::chrono::ceil<std::chrono::milliseconds>(std::min<seconds>(pause_, remaining));
  }
  for (std::uint64_t block = active->end; block-- > active->block;) {
    active->owner->states[block] = progress::absent;
    if (failure.retryable)
      queue_block(*active->owner, block, true);
    else
      failures_[{active->owner, block}] = failure;
  }
  state_changed_.notify_all();
  transfers_.erase(active);
}

}}}}  // namespace muster::v0::data::detail
