// Blocks on their way: which are fetched when, in one thread.
#include "folder.hpp"

#include <fcntl.h>

#include <muster/core/number.hpp>

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::size_t most_transfers = 8;
constexpr std::uint64_t most_blocks_of_transfer = 8;
constexpr std::chrono::milliseconds between_looks{10};  // at what other processes fetch

}  // namespace

void http_folder::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    begin_transfers();
    const auto paused = std::chrono::ceil<std::chrono::milliseconds>(pause_until_ - clock::now());
    constexpr std::chrono::milliseconds idle{1000};
    const auto wait = wanted_.empty() ? idle : std::clamp(paused, between_looks, idle);
    lock.unlock();
    int running = 0;
    ::curl_multi_perform(multi_, &running);
    int left = 0;
    while (const CURLMsg* const message = ::curl_multi_info_read(multi_, &left)) {
      const auto ended = std::ranges::find_if(
          transfers_, [&](const transfer& each) { return each.request.get() == message->easy_handle; });
      if (message->msg == CURLMSG_DONE && ended != transfers_.end()) end(ended, message->data.result);
    }
    ::curl_multi_poll(multi_, nullptr, 0, static_cast<int>(wait.count()), nullptr);
    lock.lock();
  }
}

// Whether a block that is wanted is to be fetched now.
bool http_folder::begins(const place& wanted) {
  auto* const of = wanted.of;
  const auto block = wanted.block;
  const auto is_here = [&] { return of->keeps(block) && !of->store->view(block, {}).empty(); };
  if (is_here()) {
    tell(*of, block, progress::here);
    return false;
  }
  // Another process may have stopped amid it: not for ever.
  if (of->keeps(block) && !lock_block(*of, block, true)) return seconds_since(wanted.since) > timeout_.count();
  if (!is_here()) return true;  // the one that had it locked has not put it there
  (void)lock_block(*of, block, false);
  tell(*of, block, progress::here);
  return false;
}

void http_folder::begin_transfers() {
  if (clock::now() < pause_until_) return;
  for (std::size_t k = 0; k < wanted_.size() && transfers_.size() < most_transfers;) {
    const place next = wanted_[k];
    if (next.of->states[next.block] == progress::wanted && !begins(next) &&
        next.of->states[next.block] == progress::wanted) {
      ++k;  // another process has it
      continue;
    }
    wanted_.erase(wanted_.begin() + static_cast<std::ptrdiff_t>(k));
    if (next.of->states[next.block] != progress::wanted) continue;
    transfer made{this, next.of, next.block, next.block + 1};
    const auto is_wanted = [&] {
      return made.end < made.of->states.size() && made.of->states[made.end] == progress::wanted;
    };
    while (made.end - made.block < most_blocks_of_transfer && is_wanted() && begins({made.of, made.end, next.since}))
      ++made.end;
    begin(std::move(made));
  }
}

void http_folder::begin(transfer made) {
  for (std::uint64_t block = made.block; block < made.end; ++block) made.of->states[block] = progress::on_its_way;
  transfer& here = transfers_.emplace_back(std::move(made));
  here.request = server_.ask(here.of->name, &receive, &here);
  const std::string range =
      std::to_string(here.block * block_bytes) + "-" + std::to_string(here.of->end_of(here.end - 1) - 1);
  ::curl_easy_setopt(here.request.get(), CURLOPT_RANGE, range.c_str());
  ::curl_multi_add_handle(multi_, here.request.get());
}

// Whether the answer is a part of the file that is meant.
bool http_folder::is_expected_answer(transfer& of) const {
  constexpr long whole = 200, part = 206;
  CURL* const request = of.request.get();
  long status = 0;
  ::curl_easy_getinfo(request, CURLINFO_RESPONSE_CODE, &status);
  if (status != whole && status != part) return false;
  std::uint64_t size = of.of->size, begin = of.block * block_bytes;
  curl_header* header = nullptr;
  const char* const name = status == part ? "Content-Range" : "Content-Length";
  if (::curl_easy_header(request, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK) {
    const std::string_view value = header->value;
    size = parse_number<std::uint64_t>(value.substr(value.find('/') + 1)).value_or(size);
    const auto at = value.find(' ') + 1;  // "bytes 0-99/1000"
    if (status == part) begin = parse_number<std::uint64_t>(value.substr(at, value.find('-') - at)).value_or(begin);
  }
  if (size != of.of->size) {
    of.failure = {false,
                  "the server has " + std::to_string(size) + " bytes, and " +
                      (of.of->version.empty() ? "the manifest says " : "it had ") + std::to_string(of.of->size),
                  "copy the file there again"};
  } else if (!of.of->version.empty() && version_of(request) != of.of->version) {
    of.failure = {false, "the server has another version of it than at the start", "start again"};
  } else if (begin != of.block * block_bytes) {
    of.failure = {false, "the server sends another part than it was asked for",
                  "look at its cache, or use another server"};
  } else if (status == whole && (of.block != 0 || of.of->end_of(of.end - 1) != size)) {
    of.failure = {false, "the server does not send parts of files", "use another server, or copy the data to a disk"};
  }
  return of.failure.why.empty();
}

std::size_t http_folder::receive(char* data, std::size_t one, std::size_t count, void* to) noexcept {
  transfer& of = *static_cast<transfer*>(to);
  const std::size_t size = one * count;
  try {
    if (!of.checked && !of.folder->is_expected_answer(of)) return 0;
    of.checked = true;
    auto rest = std::as_bytes(std::span(data, size));
    while (!rest.empty()) {
      if (of.block == of.end) return 0;  // more than was asked for
      const std::uint64_t missing = of.of->end_of(of.block) - of.block * block_bytes - of.came.size();
      const auto piece = rest.first(std::min<std::size_t>(rest.size(), missing));
      of.came.insert(of.came.end(), piece.begin(), piece.end());
      rest = rest.subspan(piece.size());
      if (piece.size() == missing) of.folder->keep(of);
    }
    return size;
  } catch (const std::exception&) {  // no memory: as if the connection had broken
    return 0;
  }
}

void http_folder::keep(transfer& of) {
  const std::lock_guard lock(mutex_);
  if (of.of->keeps(of.block)) {
    (void)of.of->store->put(of.block, of.came, {});
    (void)lock_block(*of.of, of.block, false);
    of.came.clear();
  } else {
    memory_.keep(number_of(*of.of, of.block),
                 std::make_shared<const std::vector<std::byte>>(std::exchange(of.came, {})));
  }
  tell(*of.of, of.block++, progress::here);
  failing_since_.reset();
  pause_ = {};
}

void http_folder::end(transfers::iterator ended, CURLcode code) {
  const std::lock_guard lock(mutex_);
  ::curl_multi_remove_handle(multi_, ended->request.get());
  request_failure failure =
      ended->failure.why.empty() ? http_server::failure_of(ended->request.get(), code) : ended->failure;
  if (failure.why.empty()) failure = {true, "the server has sent less than it was asked for", "look at its log"};
  for (std::uint64_t block = ended->block; block < ended->end; ++block) (void)lock_block(*ended->of, block, false);
  if (ended->block < ended->end && failure.again) {
    const auto now = clock::now();
    if (!failing_since_) failing_since_ = now;
    pause_ = pause_ == pause_.zero() ? first_pause : std::min(2 * pause_, longest_pause);
    const auto left = timeout_ - seconds(now - *failing_since_);
    if (left.count() <= 0) failure = tried_for(std::move(failure), timeout_);
    pause_until_ = now + std::chrono::ceil<std::chrono::milliseconds>(std::min<seconds>(pause_, left));
  }
  for (std::uint64_t block = ended->end; block-- > ended->block;) {
    ended->of->states[block] = progress::absent;
    if (failure.again)
      want(*ended->of, block, true);
    else
      given_up_[{ended->of, block}] = problem_of(failure);
  }
  told_.notify_all();
  transfers_.erase(ended);
}

}}}  // namespace muster::v0::detail
