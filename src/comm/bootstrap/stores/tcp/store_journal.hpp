// What a store's server keeps on disk, so that one that is started again goes on with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "../../../net/socket.hpp"
#include "store_table.hpp"

namespace muster::inline v0::detail {

/// The changes of a table, one behind the other in the file "store" of a folder. What is recorded survives this
/// process, and the host as far as its disk does; a record that was not written to its end is as if it had not begun.
class store_journal {
 public:
  /// Puts into the table what the folder has, which is made where there is none. Throws configuration_error when that
  /// cannot be, or when another process has it open.
  store_journal(const std::string& folder, store_table& into);

  /// On return it is on the disk: O(bytes of the change), and a flush. Throws error when that fails.
  void record(std::string_view key, std::uint64_t version, std::optional<std::string_view> value);

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  descriptor lock_;  // the folder
  descriptor file_;
};

}  // namespace muster::inline v0::detail
