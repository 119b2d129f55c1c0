// What the servers of an elastic job save when all its workers have died: each the ranges that it heads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/comm/bootstrap/store.hpp>
#include <muster/core/clock.hpp>
#include <muster/ps/lease.hpp>
#include <muster/ps/table.hpp>

#include "../core/wire.hpp"

namespace muster { inline namespace v0 { namespace ps::detail {

/// In the place of a table: a part with a range and the places of pushes that it had.
inline constexpr std::uint32_t places_part = 0xffffffff;

/// Behind the parts before it in a file of tables; and what lies before the bytes of one.
void add_part(muster::detail::wire_writer& to, std::uint32_t table, std::span<const std::byte> bytes);
void add_part_head(muster::detail::wire_writer& to, std::uint32_t table, std::size_t bytes);

/// What one server has.
struct server_part {
  std::vector<range_id> ranges{};  ///< all that it heads
  muster::detail::wire_writer values{};
  bool has_order = false;
  std::optional<order_plan> plan{};  ///< of the order, where it has begun
  std::vector<lease> left{};
};

/// Knows which job's tables lie in folders. A job saves over those that were there when it looked first, and over its
/// own; where another job has saved since, the files of both would mix.
class saved_folders {
 public:
  /// `job` is a name that no other job has; without one nothing is checked.
  explicit saved_folders(std::string job = {}) : job_(std::move(job)) {}

  [[nodiscard]] const std::string& job() const noexcept { return job_; }
  /// Keeps which job's tables lie there, at the first call.
  void look(const std::filesystem::path& folder);
  /// Throws configuration_error where another job has saved since then.
  void require_own(const std::filesystem::path& folder) const;
  /// Returns a number for names of files: the same in one job, and another one in other jobs.
  [[nodiscard]] std::uint64_t number(std::uint64_t by) const;

 private:
  std::string job_;
  std::map<std::string, std::string> first_;  // by folder: the job whose tables were there
};

/// One save, at one server. An entry of the store gathers the names of the files; the server that completes it writes
/// the manifest. Calls throw what the store throws, and may be made again then.
class save_by_servers {
 public:
  save_by_servers(std::shared_ptr<any_store> store, std::string key, std::string folder,
                  saved_folders folders = saved_folders())
      : store_(std::move(store)), key_(std::move(key)), folder_(std::move(folder)), folders_(std::move(folders)) {}

  /// Writes this server's part; a disk that is full is for `outcome` to tell, at every server.
  void add(const table_layout& layout, std::uint32_t self, server_part mine, clock::time_point until);
  /// Nothing while others have not added theirs; empty where all is saved; else why not, and its file is gone.
  [[nodiscard]] std::optional<std::string> outcome(clock::time_point until);

 private:
  std::shared_ptr<any_store> store_;
  std::string key_;
  std::filesystem::path folder_, file_;
  saved_folders folders_;
  std::string problem_;
};

}}}  // namespace muster::v0::ps::detail
