// A folder of files on a server, with a cache on the host's disk. Private to muster::http.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <muster/core/clock.hpp>

#include <muster/core/descriptor.hpp>
#include <muster/data/cache/lru_cache.hpp>
#include <muster/data/cache/record_store.hpp>
#include <muster/data/records/remote_folder.hpp>
#include "http_server.hpp"

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// A remote folder over HTTP. Files are fetched in blocks. A record_store caches the blocks as its records, so that the
/// blocks of a file are contiguous on the disk. Blocks that do not fit on the disk are cached in memory.
///
/// A block has one of four states: `absent`, `queued` (waits for a request), `in_flight` (a request is running) and
/// `ready` (in the cache). A reader moves a block from `absent` to `queued`, and the transfer thread from `queued` to
/// `in_flight` and `ready`. A failed block returns to `queued` if the error is temporary; otherwise it returns to
/// `absent`, and the reader that waits for it throws the error. A change of state requires mutex_; readers may load a
/// state without mutex_.
///
/// The transfer thread owns all requests: up to eight at the same time, each for up to eight neighbouring blocks. A
/// block for which a reader waits is at the front of the queue; expected blocks are at the end.
///
/// The processes of a host fetch each block once. A process that fetches a block locks a byte of the file `locks` in
/// the cache folder; the kernel releases the lock of a dead process. The other processes wait until the block is in the
/// cache.
class http_folder final : public remote_folder {
 public:
  http_folder(const std::string& address, const http_options& options);
  ~http_folder() override;

  [[nodiscard]] std::string text(const std::string& name) override;
  [[nodiscard]] std::size_t add(const std::string& name, std::uint64_t size, std::uint64_t content) override;
  [[nodiscard]] remote_file find(const std::string& name) override;
  [[nodiscard]] std::vector<std::string> list(const std::string& folder) override;
  [[nodiscard]] std::string version(const std::string& name) override;
  void expect(std::span<const remote_part> sections) override;
  [[nodiscard]] const std::byte* view(const remote_part& section, bytes& held) override;

 private:
  static constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;
  static constexpr std::chrono::milliseconds first_pause{100};  // pause before the first retry of a request
  static constexpr std::chrono::milliseconds longest_pause{5000};

  enum class progress : std::uint8_t { absent, queued, in_flight, ready };
  struct file {
    file(std::string file_name, std::uint64_t bytes, cached_records cached_blocks)
        : name(std::move(file_name)), size(bytes), blocks(std::move(cached_blocks)), states(blocks.size) {}

    std::string name;  // percent-encoded
    std::uint64_t size;
    cached_records blocks;
    std::string version{};  // version that replies must have; empty: any version
    std::optional<record_store> store;
    std::string uncached_reason{};              // reason why the disk does not cache the whole file; empty: it does
    std::vector<std::atomic<progress>> states;  // written with mutex_ held; read without

    [[nodiscard]] bool is_on_disk(std::uint64_t block) const noexcept { return store && block < store->record_count(); }
    [[nodiscard]] std::uint64_t end_of(std::uint64_t block) const noexcept {
      return std::min(size, (block + 1) * block_bytes);
    }
  };
  struct queued_block {
    file* owner;
    std::uint64_t block;
    clock::time_point queued_at;  // time at which the block was queued
  };
  struct transfer {
    http_folder* folder;
    file* owner;
    std::uint64_t block, end;  // the block that is being received, and the end of the requested range
    curl_request request{};
    std::vector<std::byte> received{};  // bytes of the block that were received so far
    request_failure failure{};          // failure that libcurl does not detect
    bool checked = false;               // true once the reply's header was checked against the request
  };
  using transfers = std::list<transfer>;

  // Functions of the transfer thread.
  void run();
  void start_transfers();
  [[nodiscard]] bool must_fetch(const queued_block& entry);
  void start(transfer new_transfer);
  void finish(transfers::iterator active, CURLcode code);
  static std::size_t receive(char* received, std::size_t size, std::size_t count, void* user_data) noexcept;
  [[nodiscard]] bool is_expected_reply(transfer& active) const;
  void store_block(transfer& active);
  // Locks the block for this process if `locked` is true, and unlocks it otherwise. Returns false without waiting if
  // another process has the lock.
  [[nodiscard]] bool lock_block(const file& owner, std::uint64_t block, bool locked) const noexcept;
  [[nodiscard]] std::uint64_t cache_key_of(const file& owner, std::uint64_t block) const noexcept;

  // Sends a request for a file and returns the completed request. Fetches the contents into `text`, or only the header
  // if `text` is null: by HEAD, or by a GET of the first byte where HEAD is not allowed (as for a signed address).
  // Retries temporary failures until the timeout.
  // `is_list`: asks for the names in a folder.
  [[nodiscard]] curl_request send_request(const std::string& name, std::string* text, bool is_list = false);
  // Registers a file and returns its number. The caller holds mutex_. With `process_only` no other process can find the
  // cached file, now or later.
  [[nodiscard]] std::size_t register_file(const std::string& name, std::uint64_t size, std::uint64_t content,
                                          bool process_only = false);
  void open_store(file& owner);
  [[nodiscard]] bytes wait_for_block(file& owner, std::uint64_t block);
  void queue_block(file& owner, std::uint64_t block, bool at_front);
  void set_state(file& owner, std::uint64_t block, progress state);

  const http_server server_;
  const cache_options cache_;
  const seconds timeout_;
  muster::detail::descriptor locks_;
  lru_cache<std::vector<std::byte>> memory_;  // blocks that are not on the disk
  std::mutex mutex_;                          // guards the fields from files_ to stopping_
  std::condition_variable state_changed_;
  std::deque<file> files_;
  std::uint64_t disk_bytes_ = 0;    // size of the cached files on the disk
  bool warned_of_cache_ = false;    // set once a warning about an incomplete cache was logged
  std::deque<queued_block> queue_;  // may have blocks that are no longer queued, which the transfer thread skips
  std::map<std::pair<const file*, std::uint64_t>, request_failure> failures_;
  request_failure last_failure_;
  transfers transfers_;
  clock::time_point pause_until_{};
  std::chrono::milliseconds pause_{};
  std::optional<clock::time_point> failing_since_;
  bool stopping_ = false;
  CURLM* multi_;
  std::thread thread_;
};

}}}}  // namespace muster::v0::data::detail
