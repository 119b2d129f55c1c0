// The tables that the servers of an elastic job save after all workers have died: each server saves the ranges whose
// head it is.
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

#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace ps::detail {

/// Takes the place of a table's number in a part that contains a range and its used places.
inline constexpr std::uint32_t places_part = 0xffffffff;

/// Appends a part to a file of tables.
void add_part(muster::detail::wire_writer& writer, std::uint32_t table, std::span<const std::byte> bytes);
/// Appends only the head that precedes a part of `bytes` bytes.
void add_part_head(muster::detail::wire_writer& writer, std::uint32_t table, std::size_t bytes);

/// The values and leases of a server.
struct server_part {
  std::vector<range_id> ranges{};  ///< all ranges whose head the server is
  muster::detail::wire_writer values{};
  bool has_order = false;
  std::optional<order_plan> plan{};  ///< the plan of the order, if it has begun
  std::vector<lease> left{};
};

/// The owners of the tables in folders. A job may replace its own tables, and the tables that were in the folder when
/// the job first read the folder. If another job has saved into the folder since then, the files of both jobs would
/// mix, and the save is refused.
class saved_folders {
 public:
  /// Takes the unique name of this job. Without a name nothing is checked.
  explicit saved_folders(std::string job = {}) : job_(std::move(job)) {}

  [[nodiscard]] const std::string& job() const noexcept { return job_; }
  /// Records the job that owns the tables in the folder. Later calls for the same folder have no effect.
  void note_owner(const std::filesystem::path& folder);
  /// Throws configuration_error if another job has saved into the folder since `note_owner`.
  void require_own(const std::filesystem::path& folder) const;
  /// Returns a number for file names, which differs between jobs and is constant within a job. `saver` is the worker or
  /// server that writes the file.
  [[nodiscard]] std::uint64_t file_number(std::uint64_t saver) const;

 private:
  std::string job_;
  std::map<std::string, std::string> first_owners_;  // by folder: the job that owned the tables at first
};

/// A save at one server. An entry of the store collects the names of the files. The server that completes the entry
/// writes the manifest. The functions throw the store's errors, and may then be called again.
class save_by_servers {
 public:
  save_by_servers(std::shared_ptr<any_store> store, std::string key, std::string folder,
                  saved_folders folders = saved_folders())
      : store_(std::move(store)), key_(std::move(key)), folder_(std::move(folder)), folders_(std::move(folders)) {}

  /// Writes the part `mine` of the server at the place `self`. If the disk is full, `outcome` reports that at every
  /// server.
  void add(const table_layout& layout, std::uint32_t self, server_part mine, clock::time_point until);
  /// Returns nullopt while other servers have not added their parts, an empty string if all is saved, and otherwise the
  /// reason. In the latter case this server's file is removed.
  [[nodiscard]] std::optional<std::string> outcome(clock::time_point until);

 private:
  std::shared_ptr<any_store> store_;
  std::string key_;
  std::filesystem::path folder_, file_;
  saved_folders folders_;
  std::string problem_;
};

}}}  // namespace muster::v0::ps::detail
