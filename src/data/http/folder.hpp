// A folder of files on a server, with what came of them on the host's disk; private to muster::http.
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

#include "../../core/descriptor.hpp"
#include "../cache/lru_cache.hpp"
#include "../cache/record_store.hpp"
#include "../records/remote_folder.hpp"
#include "server.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Files are fetched in blocks, which a record_store keeps as its records: blocks of a file lie one behind another
/// there. One thread has all requests, up to eight at once, and up to eight neighbouring blocks in each. What a reader
/// waits for comes before what is expected.
///
/// The ranks of a host fetch each block once: the process that fetches one locks a byte of a file in the folder, which
/// the kernel takes back from the dead. The others wait until it lies in the cache.
class http_folder final : public remote_folder {
 public:
  http_folder(const std::string& address, const http_options& options);
  ~http_folder() override;

  [[nodiscard]] std::string text(const std::string& name) override;
  [[nodiscard]] std::size_t add(const std::string& name, std::uint64_t size, std::uint64_t content) override;
  [[nodiscard]] remote_file find(const std::string& name) override;
  void expect(std::span<const remote_part> parts) override;
  [[nodiscard]] const std::byte* view(const remote_part& part, bytes& held) override;

 private:
  static constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;
  static constexpr std::chrono::milliseconds first_pause{100};  // before a request is made again
  static constexpr std::chrono::milliseconds longest_pause{5000};

  enum class progress : std::uint8_t { absent, wanted, on_its_way, here };
  struct file {
    file(std::string of_name, std::uint64_t bytes, cached_records of_cache)
        : name(std::move(of_name)), size(bytes), blocks(std::move(of_cache)), states(blocks.size) {}

    std::string name;
    std::uint64_t size;
    cached_records blocks;
    std::string version{};  // that answers must have, if any
    std::optional<record_store> store;
    std::string not_kept{};                     // why not all of it is
    std::vector<std::atomic<progress>> states;  // changed with the mutex held

    [[nodiscard]] bool keeps(std::uint64_t block) const noexcept { return store && block < store->record_count(); }
    [[nodiscard]] std::uint64_t end_of(std::uint64_t block) const noexcept {
      return std::min(size, (block + 1) * block_bytes);
    }
  };
  struct place {  // of a block
    file* of;
    std::uint64_t block;
    clock::time_point since;  // it is wanted
  };
  struct transfer {
    http_folder* folder;
    file* of;
    std::uint64_t block, end;  // the one that comes, and the one behind the last
    curl_request request{};
    std::vector<std::byte> came{};  // of the block
    request_failure failure{};      // that libcurl does not see
    bool checked = false;           // that the answer is what was asked for, when it began
  };
  using transfers = std::list<transfer>;

  // Of the thread that has the requests.
  void run();
  void begin_transfers();
  [[nodiscard]] bool begins(const place& wanted);
  void begin(transfer made);
  void end(transfers::iterator ended, CURLcode code);
  static std::size_t receive(char* data, std::size_t one, std::size_t count, void* to) noexcept;
  [[nodiscard]] bool is_expected_answer(transfer& of) const;
  void keep(transfer& of);
  [[nodiscard]] bool lock_block(const file& of, std::uint64_t block, bool locked) const noexcept;
  [[nodiscard]] std::uint64_t number_of(const file& of, std::uint64_t block) const noexcept;

  // The answer, with its text or (null) none; asks again until there is one.
  [[nodiscard]] curl_request ask(const std::string& name, std::string* text);
  // With the mutex. `only_here`: no other process, now or later, is to find it.
  [[nodiscard]] std::size_t know(const std::string& name, std::uint64_t size, std::uint64_t content,
                                 bool only_here = false);
  void open_store(file& of);
  [[nodiscard]] bytes await(file& of, std::uint64_t block);
  void want(file& of, std::uint64_t block, bool at_once);
  void tell(file& of, std::uint64_t block, progress state);

  const http_server server_;
  const cache_options cache_;
  const seconds timeout_;
  descriptor locks_;
  lru_cache<std::vector<std::byte>> memory_;  // of blocks that are not kept
  std::mutex mutex_;                          // of all below
  std::condition_variable told_;
  std::deque<file> files_;
  std::uint64_t kept_bytes_ = 0;  // of the files, on the disk
  bool told_of_cache_ = false;    // that it does not keep all
  std::deque<place> wanted_;      // those that are no longer are left out later
  std::map<std::pair<const file*, std::uint64_t>, std::string> given_up_;
  transfers transfers_;
  clock::time_point pause_until_{};
  std::chrono::milliseconds pause_{};
  std::optional<clock::time_point> failing_since_;
  bool ends_ = false;
  CURLM* multi_;
  std::thread thread_;
};

}}}  // namespace muster::v0::detail
